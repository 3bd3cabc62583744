"""Read the target's dimensions, embedding, output rows and last norm for training."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec.errors import UsageError
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.weights import read_rows
from edgespec.training.eagle3 import Eagle1, Eagle3
from edgespec.training.features import Features
from edgespec.training.heads import Hydra, Medusa, Shape

NETWORKS = 3


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


def shape_of(header: Header, vocab: int, kind: str = "eagle3") -> Shape:
    """Return the dimensions of a head for this target: as wide, and with as many attention heads."""
    width, (head_dim, _) = header.number("embedding_length"), header.head_sizes
    if kind in ("hydra", "medusa"):
        return (Hydra if kind == "hydra" else Medusa)(width, NETWORKS, vocab)

    def setting(name: str, usual: float) -> float:
        value = header.metadata.get(f"{header.architecture}.{name}")
        return float(value) if isinstance(value, int | float) else usual

    return (Eagle1 if kind == "eagle1" else Eagle3)(
        width=width,
        heads=max(header.head_counts("attention.head_count")),
        kv_heads=max(header.head_counts("attention.head_count_kv") or header.head_counts("attention.head_count")),
        head_dim=head_dim,
        ffn=header.number("feed_forward_length"),
        vocab=vocab,
        rope_base=setting("rope.freq_base", 10000.0),
        eps=setting("attention.layer_norm_rms_epsilon", 1e-5),
    )


def inputs_for(shape: Shape, features: Features) -> Features:
    """The features with the inputs that this kind of head reads."""
    if isinstance(shape, Eagle1):
        return replace(features, inputs=features.hidden)
    return features if isinstance(shape, Eagle3) else replace(features, inputs=features.inputs[:, :0])
