"""GGUF files in training: what is read of the target, and the head that is written.

Heads are in llama.cpp's architectures `eagle3` and `dflash`, or in edgespec's own for Hydra and Medusa heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec.errors import EdgespecError, UsageError
from edgespec.gguf_file.head_check import DFLASH, EAGLE3, FINAL_STATE, HYDRA, MASK_TOKEN, MEDUSA, READS
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.weights import PRINT_KEY, read_rows, target_print
from edgespec.gguf_file.writing import stored, stored_ids, typed, write_file
from edgespec.training.dflash import DFlash, DSpark
from edgespec.training.eagle3 import Eagle1, Eagle3
from edgespec.training.features import Features
from edgespec.training.heads import EPS, Hydra, Medusa, Shape, Weights
from edgespec.training.layers import LayerShape

NETWORKS = 3  # of a Hydra or Medusa head
BLOCK_LAYERS, MARKOV_RANK = 1, 64  # of a DFlash or DSpark head


@dataclass(frozen=True, slots=True)
class Teacher:
    """The target's weights that the loss needs."""

    #: float16[V, D]
    embedding: Tensor
    #: float32[V', D], the output rows of the tokens that the head can draft.
    output: Tensor
    #: float32[D], the norm before the output.
    output_norm: Tensor
    #: int64[V'], the ids of these tokens.
    vocabulary: Tensor

    def to(self, device: str) -> Teacher:
        return Teacher(*(part.to(device) for part in (self.embedding, self.output, self.output_norm, self.vocabulary)))


def read_teacher(header: Header, vocabulary: NDArray[np.int64]) -> Teacher:
    """Raises ModelFileError for weights that cannot be read, UsageError for a target whose logits are not simply the
    product of its final state and its output rows."""
    for key in ("logit_scale", "final_logit_softcapping"):
        if header.metadata.get(f"{header.architecture}.{key}"):
            raise UsageError(f"heads for models with {key} cannot be trained")
    if "output.bias" in header.tensors:
        raise UsageError("heads for models whose output has a bias cannot be trained")
    output = "output.weight" if "output.weight" in header.tensors else "token_embd.weight"
    return Teacher(
        embedding=torch.from_numpy(read_rows(header, "token_embd.weight").astype(np.float16)),
        output=torch.from_numpy(read_rows(header, output, vocabulary.tolist())),
        output_norm=torch.from_numpy(read_rows(header, "output_norm.weight")),
        vocabulary=torch.from_numpy(vocabulary),
    )


def shape_of(header: Header, vocab: int, kind: str = "eagle3", block: int = 4) -> Shape:
    """Return the dimensions of a head for this target: as wide, and with as many attention heads."""
    width, (head_dim, _) = header.number("embedding_length"), header.head_sizes
    if kind in ("hydra", "medusa"):
        return (Hydra if kind == "hydra" else Medusa)(width, NETWORKS, vocab)

    def setting(name: str, usual: float) -> float:
        value = header.metadata.get(f"{header.architecture}.{name}")
        return float(value) if isinstance(value, int | float) else usual

    layer: dict[str, Any] = {
        "width": width,
        "heads": max(header.head_counts("attention.head_count")),
        "kv_heads": max(header.head_counts("attention.head_count_kv") or header.head_counts("attention.head_count")),
        "head_dim": head_dim,
        "ffn": header.number("feed_forward_length"),
        "vocab": vocab,
        "rope_base": setting("rope.freq_base", 10000.0),
        "eps": setting("attention.layer_norm_rms_epsilon", 1e-5),
        "layers": 1 if kind.startswith("eagle") else BLOCK_LAYERS,
    }
    if kind.startswith("eagle"):
        return (Eagle1 if kind == "eagle1" else Eagle3)(**layer)
    end = header.metadata.get("tokenizer.ggml.eos_token_id")
    layer |= {
        "kv_heads": layer["heads"],  # a block knows the text through its attention only: fewer values would lose a part
        "block": block,
        "n_read": 3 * width,
        "mask": end if isinstance(end, int) else 0,  # nothing is drafted after it, so it is not needed for itself
    }
    return DFlash(**layer) if kind == "dflash" else DSpark(**layer, rank=MARKOV_RANK, tokens=header.n_vocab)


def inputs_for(shape: Shape, features: Features) -> Features:
    """The features with the inputs that this kind of head reads."""
    if isinstance(shape, Eagle1):
        return replace(features, inputs=features.hidden)
    return features if isinstance(shape, LayerShape) else replace(features, inputs=features.inputs[:, :0])


def write_head(
    path: Path,
    shape: Shape,
    weights: Weights,
    vocabulary: NDArray[np.int64],
    target: Header,
    layers: Sequence[int],
    type: str,
    about: Mapping[str, Any],
) -> None:
    """Write a head for `target`, with the metadata `about` in addition; an EAGLE-3 head reads the inputs of `layers`.

    Raises EdgespecError for weights that are not numbers and for a file that cannot be written.
    """
    arrays = {f"{name}.weight": weights[name].float().numpy() for name in shape.tensors()}
    if broken := [name for name, values in arrays.items() if not np.isfinite(values).all()]:
        raise EdgespecError("the head has weights that are not numbers", why=", ".join(broken))
    architecture, entries = _entries(shape, target, layers)
    known = {"tokenizer.ggml.model": "no_vocab", PRINT_KEY: target_print(target).tolist()}
    tensors = {name: stored(values, type) for name, values in arrays.items()} | {"d2t": stored_ids(vocabulary)}
    write_file(path, architecture, typed({**about, **entries, **known}), tensors)


def _entries(shape: Shape, target: Header, layers: Sequence[int]) -> tuple[str, dict[str, Any]]:
    """The architecture of a head, and the metadata that it needs."""
    common = {"embedding_length": shape.width, "vocab_size": target.n_vocab}
    if isinstance(shape, Medusa):
        architecture = HYDRA if isinstance(shape, Hydra) else MEDUSA
        entries: dict[str, Any] = {
            **common,
            "block_count": shape.heads,
            "target_hidden_size": shape.width,
            "attention.layer_norm_rms_epsilon": EPS,
        }
        return architecture, {f"{architecture}.{name}": value for name, value in entries.items()}
    assert isinstance(shape, LayerShape)
    reads_state = isinstance(shape, Eagle1)
    entries = {
        **common,
        "context_length": target.number("context_length"),
        "block_count": shape.layers,
        "feed_forward_length": shape.ffn,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": shape.eps,
        "rope.dimension_count": shape.head_dim,
        "rope.freq_base": shape.rope_base,
        "target_layers": [0, 0, 0] if reads_state else list(layers),
    }
    if isinstance(shape, DFlash):
        own = {"block_size": shape.n_places, "attention.causal": True, "sample_from_anchor": isinstance(shape, DSpark)}
        others: dict[str, Any] = {MASK_TOKEN: shape.mask}
        return DFLASH, others | {f"{DFLASH}.{name}": value for name, value in (entries | own).items()}
    assert isinstance(shape, Eagle3)
    entries["target_hidden_size"] = shape.n_read // 3  # llama.cpp reads three times as many numbers
    reads = {READS: FINAL_STATE} if reads_state else {}
    return EAGLE3, reads | {f"{EAGLE3}.{name}": value for name, value in entries.items()}
