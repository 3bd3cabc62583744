"""GGUF files in training: what is read of the target, and the head that is written.

Heads are in llama.cpp's architectures `eagle3` and `dflash`, or in edgespec's own for Hydra and Medusa heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec.drafters.heads import HEADS
from edgespec.errors import EdgespecError, UsageError
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.weights import PRINT_KEY, read_rows, target_print
from edgespec.gguf_file.writing import stored, stored_ids, typed, write_file
from edgespec.training.features import Features
from edgespec.training.heads import Shape, Weights
from edgespec.training.job import SHAPES
from edgespec.training.layers import LayerShape


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
    """Return the dimensions of a head of this kind for a target."""
    module, _, name = SHAPES[kind].partition(".")
    shape: Shape = getattr(import_module(f"edgespec.training.{module}"), name).of(header, vocab, block)
    return shape


def inputs_for(shape: Shape, features: Features) -> Features:
    """The features with the inputs that this kind of head reads."""
    if HEADS[shape.kind].reads == "layers":
        return features
    return replace(features, inputs=features.hidden if isinstance(shape, LayerShape) else features.inputs[:, :0])


def write_head(
    path: Path,
    shape: Shape,
    weights: Weights,
    vocabulary: NDArray[np.int64],
    target: Header,
    layers: Sequence[int],
    type: str,
    about: Mapping[str, object],
) -> None:
    """Write a head for `target`, with the metadata `about` in addition; an EAGLE-3 head reads the inputs of `layers`.

    Raises EdgespecError for weights that are not numbers and for a file that cannot be written.
    """
    arrays = {f"{name}.weight": weights[name].float().numpy() for name in shape.tensors()}
    if broken := [name for name, values in arrays.items() if not np.isfinite(values).all()]:
        raise EdgespecError("the head has weights that are not numbers", why=", ".join(broken))
    architecture = HEADS[shape.kind].architecture
    entries = {f"{architecture}.{key}": value for key, value in shape.metadata(target, layers).items()}
    known = {"tokenizer.ggml.model": "no_vocab", PRINT_KEY: target_print(target).tolist()}
    tensors = {name: stored(values, type) for name, values in arrays.items()} | {"d2t": stored_ids(vocabulary)}
    write_file(path, architecture, typed({**about, **shape.own_metadata(), **entries, **known}), tensors)
