"""The parts of a transformer layer that heads of several kinds share.

Letters in shapes: B texts, L tokens each, A anchors (cells where a draft may begin), D width, V' the head's vocabulary.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone uses
from torch import Tensor

from edgespec.gguf_file.header import Header
from edgespec.training.heads import Metadata, Shape, Weights


@dataclass(frozen=True, slots=True)
class LayerShape(Shape, ABC):
    """A head with transformer layers. `vocab` is V'; `rope_base` and `eps` are the target's."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    rope_base: float
    eps: float
    layers: int

    @classmethod
    def of(cls, target: Header, vocab: int, block: int) -> Self:
        return cls(**cls.dimensions(target, vocab, block))

    @classmethod
    def dimensions(cls, target: Header, vocab: int, block: int) -> dict[str, Any]:
        """The fields of a head for this target."""

        def setting(name: str, usual: float) -> float:
            value = target.metadata.get(f"{target.architecture}.{name}")
            return float(value) if isinstance(value, int | float) else usual

        heads = target.head_counts("attention.head_count")
        return {
            "width": target.number("embedding_length"),
            "heads": max(heads),
            "kv_heads": max(target.head_counts("attention.head_count_kv") or heads),
            "head_dim": target.head_sizes[0],
            "ffn": target.number("feed_forward_length"),
            "vocab": vocab,
            "rope_base": setting("rope.freq_base", 10000.0),
            "eps": setting("attention.layer_norm_rms_epsilon", 1e-5),
            "layers": 1,
        }

    def sizes(self, layer: int) -> dict[str, int]:
        keys = self.kv_heads * self.head_dim
        of_heads = {"queries": self.heads * self.head_dim, "keys": keys, "values": keys, "head": self.head_dim}
        return of_heads | {"width": self.width, "inputs": self.width, "ffn": self.ffn, "drafts": self.vocab}

    def metadata(self, target: Header, layers: Sequence[int]) -> Metadata:
        return Shape.metadata(self, target, layers) | {
            "context_length": target.number("context_length"),
            "feed_forward_length": self.ffn,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": self.eps,
            "rope.dimension_count": self.head_dim,
            "rope.freq_base": self.rope_base,
            "target_layers": [*layers],
        }


def fuse(weights: Weights, rms: Tensor) -> None:
    """Let the random `fc` begin as the last of the inputs, with a little of the others.

    Dividing by `rms`, that of the features, gives them all the same weight: a few are a hundred times larger.
    """
    width, n_read = weights["fc"].shape
    weights["fc"] = 0.3 * weights["fc"] + torch.eye(width, n_read).roll(n_read - width, 1)
    weights["fc"][:, n_read - len(rms) :] /= rms.clamp(min=1e-4)


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotary positions over adjacent pairs: x [B, H, N, d], positions [B or 1, N]."""
    size = x.shape[-1]
    frequencies = base ** (-torch.arange(0, size, 2, device=x.device) / size)
    angles = (positions[..., None].float() * frequencies)[:, None]
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


def feed_forward(weights: Weights, shape: LayerShape, layer: int, state: Tensor, dropout: float) -> Tensor:
    """The gated feed-forward part of a layer, norm included."""
    block = f"blk.{layer}.ffn"
    x = F.dropout(norm(state, weights[f"{block}_norm"], shape), dropout)
    gate = F.silu(F.linear(x, weights[f"{block}_gate"]))
    return F.linear(gate * F.linear(x, weights[f"{block}_up"]), weights[f"{block}_down"])


def norm(x: Tensor, weight: Tensor, shape: LayerShape) -> Tensor:
    return F.rms_norm(x.float(), x.shape[-1:], weight, shape.eps)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, N, H d] -> [B, H, N, d]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def rows_at(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x [B, N, ...] at index [B, A]; the last row for an index beyond the end."""
    index = index.clamp(max=x.shape[1] - 1)
    batch = torch.arange(x.shape[0], device=x.device)[:, None]
    return x[batch, index]
