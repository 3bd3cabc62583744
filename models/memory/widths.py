"""The values that a token has in the layers of a model, from the shapes of the weights."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from edgespec.gguf_file.header import Header

IN_LAYER = re.compile(r"blk\.(\d+)\.(.+?)(?:\.weight)?$")


@dataclass(slots=True, frozen=True)
class Widths:
    """The widest layer's values per token, from the shapes of the weights."""

    residual: int
    query: int
    key_and_value: int
    heads: int
    feed_forward: int

    @classmethod
    def of(cls, header: Header) -> Widths:
        rows_in: dict[str, int] = defaultdict(int)
        rows_out: dict[str, int] = defaultdict(int)
        for name, tensor in header.tensors.items():
            match = IN_LAYER.match(name)
            if match and len(tensor.shape) > 1:
                rows_in[match[2]] = max(rows_in[match[2]], tensor.shape[0])
                rows_out[match[2]] = max(rows_out[match[2]], tensor.shape[1])
        width, used = header.number("embedding_length"), header.number("expert_used_count")
        query, value_size = rows_in["attn_output"], header.head_sizes[1]
        heads = query // value_size if value_size else 0
        if header.number("attention.key_length_mla"):
            heads = header.number("attention.head_count")
            query = heads * header.head_sizes[0]
        dense = _gated(rows_out["ffn_up"] + rows_out["ffn_gate"], rows_in["ffn_down"])
        expert = rows_out["ffn_up_exps"] + rows_out["ffn_gate_exps"] + rows_out["ffn_gate_up_exps"]
        experts = used * _gated(expert, rows_in["ffn_down_exps"])
        if width > expert:  # the experts' output does not fit into the place of their gates
            experts += used * width
        return cls(
            residual=width,
            query=query,
            key_and_value=rows_out["attn_k"] + rows_out["attn_v"],
            heads=heads,
            feed_forward=max(dense, experts),
        )


def _gated(up: int, down: int) -> int:
    """Return the buffer of a feed-forward network: a gated product needs an additional buffer."""
    return up + down if up > down else up
