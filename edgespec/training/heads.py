"""What training knows of a head, whatever its kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from edgespec.training.batches import Batch

Weights = dict[str, Tensor]
"""By the names that they have in GGUF, with `.weight` left out."""

UNSURE = 0.4  # of the scale of the target's logits to begin with, or a head that knows nothing is sure of it


class Shape(Protocol):
    """The dimensions of a head, a dataclass, and what it computes; V' is its vocabulary, D the target's width."""

    @property
    def deepest(self) -> int:
        """The longest draft that it is trained for."""

    def depth(self, done: float) -> int:
        """How many tokens of a draft the loss looks at when this share of the time is over."""

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, as PyTorch has it: outputs first."""

    def initial(self, output: Tensor, output_norm: Tensor, rms: Tensor, seed: int = 0) -> Weights:
        """Weights to begin with, given the target's `output` rows [V', D] and the norm before them, and the root mean
        square `rms` of each of the features that it reads."""

    def drafts(
        self, weights: Weights, embedding: Tensor, batch: Batch, depth: int, dropout: float = 0.0
    ) -> Iterator[Tensor]:
        """The logits float[B, A, V'] of the first `depth` tokens of a draft from each anchor, each told the tokens
        before it as the text has them. `embedding` [V, D] is the target's, `dropout` the share of inputs left out."""
