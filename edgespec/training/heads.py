"""The interface of a draft head of any kind for training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from edgespec.training.batches import Batch

Weights = dict[str, Tensor]
"""Tensors by their names in GGUF, without `.weight`."""

UNSURE = 0.4  # factor on the logits in the beginning: without it, an untrained head would be sure of its guesses


class Shape(ABC):
    """The dimensions of a head (a dataclass), and what it computes. V' is its vocabulary, D the target's width."""

    width: int

    @property
    @abstractmethod
    def deepest(self) -> int:
        """The longest draft that it is trained for."""

    def depth(self, done: float) -> int:
        """The number of draft tokens that the loss covers when this fraction of the time is over."""
        return self.deepest

    @abstractmethod
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, as in PyTorch: outputs first."""

    @abstractmethod
    def initial(self, output: Tensor, output_norm: Tensor, rms: Tensor, seed: int = 0) -> Weights:
        """Return weights to begin with. `output` [V', D] are the target's output rows and `output_norm` is the norm
        before them; `rms` is the root mean square of each feature that the head reads."""

    @abstractmethod
    def drafts(
        self, weights: Weights, embedding: Tensor, batch: Batch, depth: int, dropout: float = 0.0
    ) -> Iterator[Tensor]:
        """Yield the logits float[B, A, V'] of the first `depth` tokens of a draft from each anchor, each after
        the text's own tokens. `embedding` [V, D] is the target's; `dropout` is the share of inputs to drop."""

    def _random(self, seed: int) -> Weights:
        """Matrices of random numbers that keep the scale of their input, and vectors of ones."""
        generator = torch.Generator().manual_seed(seed)
        return {
            name: torch.randn(size, generator=generator) * size[1] ** -0.5 if len(size) == 2 else torch.ones(size)
            for name, size in self.tensors().items()
        }
