"""What training takes from the target's file: its dimensions, embedding, output rows and last norm."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from edgespec.errors import UsageError
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.weights import read_rows
from edgespec.training.eagle3 import Eagle1, Eagle3
from edgespec.training.features import Features
from edgespec.training.heads import Shape
from edgespec.training.hydra import Hydra, Medusa
from edgespec.training.judge import Teacher

NETWORKS = 3


@dataclass(frozen=True, slots=True)
class TargetParts:
    """The teacher, and the norm before its output, float32[D]."""

    teacher: Teacher
    output_norm: torch.Tensor


def shape_of(header: Header, vocab: int, kind: str = "eagle3") -> Shape:
    """The dimensions of a head for this target: as wide, with its number of attention heads."""
    width, (head_dim, _) = header.number("embedding_length"), header.head_sizes
    if kind in ("hydra", "medusa"):
        return (Hydra if kind == "hydra" else Medusa)(width, NETWORKS, vocab)
    base = header.metadata.get(f"{header.architecture}.rope.freq_base", 10000.0)
    eps = header.metadata.get(f"{header.architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    return (Eagle1 if kind == "eagle1" else Eagle3)(
        width=width,
        heads=max(header.head_counts("attention.head_count")),
        kv_heads=max(header.head_counts("attention.head_count_kv") or header.head_counts("attention.head_count")),
        head_dim=head_dim,
        ffn=header.number("feed_forward_length"),
        vocab=vocab,
        rope_base=float(base) if isinstance(base, int | float) else 10000.0,
        eps=float(eps) if isinstance(eps, int | float) else 1e-5,
    )


def seen_by(shape: Shape, features: Features) -> Features:
    """What is kept of the target, with the features that this head reads as its inputs."""
    if isinstance(shape, Eagle1):
        return replace(features, inputs=features.hidden)
    return features if isinstance(shape, Eagle3) else replace(features, inputs=features.inputs[:, :0])


def read_target(header: Header, vocabulary: NDArray[np.int64]) -> TargetParts:
    """Raises ModelFileError for weights that cannot be read, UsageError for a target whose logits are not a plain
    product of its last state and its output rows."""
    for key in ("logit_scale", "final_logit_softcapping"):
        if header.metadata.get(f"{header.architecture}.{key}"):
            raise UsageError(f"heads for models with {key} cannot be trained")
    if "output.bias" in header.tensors:
        raise UsageError("heads for models whose output has a bias cannot be trained")
    output = "output.weight" if "output.weight" in header.tensors else "token_embd.weight"
    embedding = torch.from_numpy(read_rows(header, "token_embd.weight").astype(np.float16))
    rows = torch.from_numpy(read_rows(header, output, vocabulary.tolist()))
    norm = torch.from_numpy(read_rows(header, "output_norm.weight"))
    return TargetParts(Teacher(embedding, rows, torch.from_numpy(vocabulary)), norm)
