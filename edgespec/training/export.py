"""A head as GGUF: in llama.cpp's architecture `eagle3`, or in our own for Hydra and Medusa heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgespec.errors import EdgespecError, ModelFileError, UsageError
from edgespec.files.unfinished import becoming
from edgespec.gguf_file.head_check import FINAL_STATE, HYDRA, MEDUSA, READS
from edgespec.gguf_file.header import Header, read_header
from edgespec.gguf_file.target_print import KEY, target_print
from edgespec.gguf_file.weights import read_rows
from edgespec.training.eagle3 import Eagle1, Eagle3
from edgespec.training.heads import Shape, Weights
from edgespec.training.hydra import EPS, Hydra, Medusa

_VALUES = {"str": "STRING", "int": "UINT32", "float": "FLOAT32", "list": "ARRAY"}
TYPES = ("F16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")


@dataclass(frozen=True, slots=True)
class About:
    """What a file says of how it was made. `acceptance` are the shares of greedy drafts of 1, 2, ... tokens."""

    name: str
    description: str
    licence: str
    tokens: int
    minutes: float
    acceptance: Sequence[float]


def write_head(
    path: Path,
    shape: Shape,
    weights: Weights,
    vocabulary: NDArray[np.int64],
    target: Header,
    layers: Sequence[int],
    type: str,
    about: About,
) -> None:
    """Write a head for `target`; an EAGLE-3 head reads the inputs of three of its `layers`. Raises EdgespecError,
    UsageError."""
    import gguf

    check_type(type)
    try:
        with becoming(path) as scratch:
            writer = gguf.GGUFWriter(scratch, _architecture(shape))
            for key, value in _entries(shape, target, layers, about).items():
                writer.add_key_value(key, value, gguf.GGUFValueType[_VALUES[value.__class__.__name__]])
            for name, values in tensors(shape, weights).items():
                stored = gguf.GGMLQuantizationType[
                    "F32" if values.ndim == 1 else type if _fits(values, type) else "F16"
                ]
                writer.add_tensor(name, gguf.quants.quantize(values, stored), raw_dtype=stored)
            writer.add_tensor("d2t", np.ascontiguousarray(vocabulary, np.int64))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
    except OSError as error:
        raise EdgespecError(f"{path} cannot be written", why=error.strerror or str(error)) from error


def read_head(path: Path, shape: Shape) -> Weights:
    """The weights of a file, as what reads it sees them: rounded as its type has it. Raises ModelFileError."""
    header = read_header(path)
    weights = {name: torch.from_numpy(read_rows(header, f"{name}.weight")) for name in shape.tensors()}
    for name, size in shape.tensors().items():
        if tuple(weights[name].shape) != size:
            raise ModelFileError(f"{path} is a head of another shape", why=f"{name} is {tuple(weights[name].shape)}")
    return weights


def tensors(shape: Shape, weights: Weights) -> dict[str, NDArray[np.float32]]:
    """By their names in the file. Raises EdgespecError for weights that are not numbers."""
    found = {f"{name}.weight": weights[name].float().numpy() for name in shape.tensors()}
    broken = [name for name, values in found.items() if not np.isfinite(values).all()]
    if broken:
        raise EdgespecError("the head has weights that are not numbers", why=", ".join(broken))
    return found


def check_type(type: str) -> None:
    """Raises UsageError for weights that heads are not written with."""
    if type not in TYPES:
        raise UsageError(f"a head cannot be written as {type!r}", hint=f"use one of {', '.join(TYPES)}")


def _entries(shape: Shape, target: Header, layers: Sequence[int], about: About) -> Mapping[str, Any]:
    return {
        "general.name": about.name,
        "general.description": about.description,
        "general.license": about.licence,
        "general.base_model.count": 1,
        "general.base_model.0.name": target.name,
        **(_of_eagle3(shape, target, layers) if isinstance(shape, Eagle3) else {}),
        **(_of_networks(shape, target) if isinstance(shape, Medusa) else {}),
        "tokenizer.ggml.model": "no_vocab",
        KEY: target_print(target).tolist(),
        "edgespec.head.training_tokens": about.tokens,
        "edgespec.head.training_minutes": float(about.minutes),
        "edgespec.head.acceptance": [float(share) for share in about.acceptance],
    }


def _architecture(shape: Shape) -> str:
    return "eagle3" if isinstance(shape, Eagle3) else HYDRA if isinstance(shape, Hydra) else MEDUSA


def _of_eagle3(shape: Eagle3, target: Header, layers: Sequence[int]) -> Mapping[str, Any]:
    """Keys of llama.cpp; it reads three times `target_hidden_size` numbers."""
    reads_state = isinstance(shape, Eagle1)
    return {
        **({READS: FINAL_STATE} if reads_state else {}),
        "eagle3.context_length": target.number("context_length"),
        "eagle3.embedding_length": shape.width,
        "eagle3.block_count": 1,
        "eagle3.feed_forward_length": shape.ffn,
        "eagle3.attention.head_count": shape.heads,
        "eagle3.attention.head_count_kv": shape.kv_heads,
        "eagle3.attention.key_length": shape.head_dim,
        "eagle3.attention.value_length": shape.head_dim,
        "eagle3.attention.layer_norm_rms_epsilon": shape.eps,
        "eagle3.rope.dimension_count": shape.head_dim,
        "eagle3.rope.freq_base": shape.rope_base,
        "eagle3.vocab_size": target.n_vocab,
        "eagle3.target_layers": [0, 0, 0] if reads_state else list(layers),
        "eagle3.target_hidden_size": shape.n_read // 3,
    }


def _of_networks(shape: Medusa, target: Header) -> Mapping[str, Any]:
    """Our own: as many networks as `block_count` says."""
    keys = {
        "embedding_length": shape.width,
        "block_count": shape.heads,
        "vocab_size": target.n_vocab,
        "target_hidden_size": shape.width,
        "attention.layer_norm_rms_epsilon": EPS,
    }
    return {f"{_architecture(shape)}.{name}": value for name, value in keys.items()}


def _fits(values: NDArray[np.float32], type: str) -> bool:
    return type == "F16" or values.shape[-1] % 32 == 0
