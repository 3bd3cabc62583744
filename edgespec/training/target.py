"""What training takes from the target's file: its dimensions, embedding, output rows and last norm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from edgespec.errors import UsageError
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.weights import read_rows
from edgespec.training.eagle3 import Eagle3
from edgespec.training.heads import Shape
from edgespec.training.hydra import Hydra
from edgespec.training.judge import Teacher

HYDRA_HEADS = 3


@dataclass(frozen=True, slots=True)
class TargetParts:
    """The teacher, and the norm before its output, float32[D]."""

    teacher: Teacher
    output_norm: torch.Tensor


def shape_of(header: Header, vocab: int, kind: str = "eagle3") -> Shape:
    """The dimensions of a head for this target: as wide, with its number of attention heads."""
    if kind == "hydra":
        return Hydra(header.number("embedding_length"), HYDRA_HEADS, vocab)
    width, (head_dim, _) = header.number("embedding_length"), header.head_sizes
    base = header.metadata.get(f"{header.architecture}.rope.freq_base", 10000.0)
    eps = header.metadata.get(f"{header.architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    return Eagle3(
        width=width,
        heads=max(header.head_counts("attention.head_count")),
        kv_heads=max(header.head_counts("attention.head_count_kv") or header.head_counts("attention.head_count")),
        head_dim=head_dim,
        ffn=header.number("feed_forward_length"),
        vocab=vocab,
        rope_base=float(base) if isinstance(base, int | float) else 10000.0,
        eps=float(eps) if isinstance(eps, int | float) else 1e-5,
    )


def read_target(header: Header, vocabulary: NDArray[np.int64]) -> TargetParts:
    """Raises ModelFileError for weights that cannot be read, UsageError for a target whose logits are not a plain
    product of its last state and its output rows."""
    for key in ("logit_scale", "final_logit_softcapping"):
        if header.metadata.get(f"{header.architecture}.{key}"):
            raise UsageError(f"heads for models with {key} cannot be trained")
    output = "output.weight" if "output.weight" in header.tensors else "token_embd.weight"
    embedding = torch.from_numpy(read_rows(header, "token_embd.weight").astype(np.float16))
    rows = torch.from_numpy(read_rows(header, output, vocabulary.tolist()))
    norm = torch.from_numpy(read_rows(header, "output_norm.weight"))
    return TargetParts(Teacher(embedding, rows, torch.from_numpy(vocabulary)), norm)
