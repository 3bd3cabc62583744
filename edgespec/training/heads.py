"""The interface of a draft head of any kind for training, and Hydra and Medusa heads in PyTorch.

A Hydra or Medusa head (arXiv 2402.05109, 2401.10774) has a small network for each token of a draft. From the target's
final state h after token P, network k (from 0) predicts token P + k + 2 as `output (h + down_k silu(up_k x))`. In a
Hydra head x is h followed by the normed embeddings of the tokens P + 1 to P + k + 1. In a Medusa head x is h alone, so
that all networks can run at once, without knowing each other's tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone uses
from torch import Tensor

from edgespec.drafters.heads import HEADS
from edgespec.gguf_file.header import Header
from edgespec.training.batches import Batch

Weights = dict[str, Tensor]
"""Tensors by their names in GGUF, without `.weight`."""

Metadata = dict[str, int | float | str | list[int]]
"""Entries of a GGUF file."""

EPS = 1e-5
NETWORKS = 3  # of a Hydra or Medusa head
TRAINED = ("output.weight", "attn_v.weight")  # of the tensors that a file may lack
UNSURE = 0.4  # factor on the logits in the beginning: without it, an untrained head would be sure of its guesses


class Drafted(NamedTuple):
    """The prediction of one token of the drafts from all anchors."""

    #: float[B, A, V']
    logits: Tensor
    #: float[B, A], the logit of the chance that the likeliest token is the target's choice; None if the head does not
    #: estimate it.
    confidence: Tensor | None = None


class Shape(ABC):
    """The dimensions of a head (a dataclass), and what it computes. V' is its vocabulary, D the target's width."""

    #: The number of anchors in a step of the training.
    step_anchors: ClassVar[int] = 1024
    #: Its name in `drafters.heads.HEADS`, which has its tensors.
    kind: ClassVar[str]
    width: int
    layers: int  # or networks

    @classmethod
    @abstractmethod
    def of(cls, target: Header, vocab: int, block: int) -> Self:
        """Return the dimensions of a head for this target: as wide, and with as many attention heads."""

    @abstractmethod
    def sizes(self, layer: int) -> dict[str, int]:
        """The numbers behind the words of `drafters/heads.py` in a layer."""

    def metadata(self, target: Header, layers: Sequence[int]) -> Metadata:
        """The metadata that its file needs after the name of the architecture, if it reads the inputs of `layers`."""
        return {"embedding_length": self.width, "vocab_size": target.n_vocab, "block_count": self.layers}

    def own_metadata(self) -> Metadata:
        """Metadata with other keys."""
        return {}

    @property
    @abstractmethod
    def deepest(self) -> int:
        """The longest draft that it is trained for."""

    def depth(self, done: float) -> int:
        """The number of draft tokens that the loss covers when this fraction of the time is over."""
        return self.deepest

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor, as in PyTorch: outputs first."""
        shapes = HEADS[self.kind].shapes(self.layers, self.sizes, lambda name: name.endswith(TRAINED))
        return {name.removesuffix(".weight"): shape[::-1] for name, shape in shapes.items() if name.endswith(".weight")}

    @abstractmethod
    def initial(self, output: Tensor, output_norm: Tensor, rms: Tensor, seed: int = 0) -> Weights:
        """Return weights to begin with. `output` [V', D] are the target's output rows and `output_norm` is the norm
        before them; `rms` is the root mean square of each feature that the head reads."""

    @abstractmethod
    def drafts(
        self, weights: Weights, embedding: Tensor, batch: Batch, depth: int, dropout: float = 0.0
    ) -> Iterator[Drafted]:
        """Yield the first `depth` tokens of the drafts from all anchors, each after the text's own tokens.

        `embedding` [V, D] is the target's; `dropout` is the share of inputs to drop.
        """

    def _random(self, seed: int) -> Weights:
        """Matrices of random numbers that keep the scale of their input, and vectors of ones."""
        generator = torch.Generator().manual_seed(seed)
        return {
            name: torch.randn(size, generator=generator) * size[1] ** -0.5 if len(size) == 2 else torch.ones(size)
            for name, size in self.tensors().items()
        }


@dataclass(frozen=True, slots=True)
class Medusa(Shape):
    """`layers` networks of one hidden layer, which is as wide as the target."""

    kind = "medusa"
    width: int
    layers: int
    vocab: int

    @classmethod
    def of(cls, target: Header, vocab: int, block: int) -> Self:
        return cls(target.number("embedding_length"), NETWORKS, vocab)

    @property
    def deepest(self) -> int:
        return self.layers

    def sizes(self, layer: int) -> dict[str, int]:
        return {"width": self.width, "inputs": self.width, "drafts": self.vocab}

    def metadata(self, target: Header, layers: Sequence[int]) -> Metadata:
        own = {"target_hidden_size": self.width, "attention.layer_norm_rms_epsilon": EPS}
        return Shape.metadata(self, target, layers) | own

    def initial(self, output: Tensor, output_norm: Tensor, rms: Tensor, seed: int = 0) -> Weights:
        weights = self._random(seed)
        for k in range(self.layers):
            weights[f"head.{k}.down"].zero_()  # each network begins with the target's own prediction
        return weights | {"output": UNSURE * output.float()}

    def drafts(
        self, weights: Weights, embedding: Tensor, batch: Batch, depth: int, dropout: float = 0.0
    ) -> Iterator[Drafted]:
        state = _states(batch)
        for k in range(depth):
            yield Drafted(_predicted(weights, k, state, state, dropout))


@dataclass(frozen=True, slots=True)
class Hydra(Medusa):
    """Networks that also read the draft tokens before theirs."""

    kind = "hydra"

    def sizes(self, layer: int) -> dict[str, int]:
        return Medusa.sizes(self, layer) | {"inputs": (layer + 2) * self.width}

    def drafts(
        self, weights: Weights, embedding: Tensor, batch: Batch, depth: int, dropout: float = 0.0
    ) -> Iterator[Drafted]:
        state, tokens = _states(batch), batch.tokens
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        anchors = batch.start[:, None] + torch.arange(state.shape[1], device=tokens.device)
        seen = [state]
        for k in range(depth):
            following = tokens[rows, (anchors + 1 + k).clamp(max=tokens.shape[1] - 1)]
            embedded = F.embedding(following, embedding).float()
            seen.append(F.rms_norm(embedded, (self.width,), weights["embd_norm"], EPS))
            yield Drafted(_predicted(weights, k, state, torch.cat(seen, -1), dropout))


def _states(batch: Batch) -> Tensor:
    """The target's final states at the anchors, float[B, A, D]."""
    return batch.hidden[:, : batch.is_text.shape[2]]


def _predicted(weights: Weights, k: int, state: Tensor, seen: Tensor, dropout: float) -> Tensor:
    inner = F.silu(F.linear(F.dropout(seen, dropout), weights[f"head.{k}.up"]))
    return F.linear(state + F.linear(inner, weights[f"head.{k}.down"]), weights["output"])
