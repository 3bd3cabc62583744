"""How good a head is: the loss it learns by, and how many of its tokens the target would accept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from edgespec.training.answers import SAMPLED
from edgespec.training.batches import Batch
from edgespec.training.heads import Shape, Weights

DECAY = 0.8  # of the weight of a step against the one before, as the paper has it


@dataclass(frozen=True, slots=True)
class Teacher:
    """What of the target the loss needs: embedding [V, D], output rows of the head's vocabulary [V', D], its ids."""

    embedding: Tensor
    output: Tensor
    vocabulary: Tensor

    def on(self, device: str) -> Teacher:
        return Teacher(self.embedding.to(device), self.output.to(device), self.vocabulary.to(device))


@dataclass(slots=True)
class Acceptance:
    """Of held-out answers, by position in a draft. `greedy` is the share of greedy drafts whose first k tokens are all
    the target's own choices; `sampled` the chance that token k is accepted at temperature .8, given those before."""

    greedy: list[float] = field(default_factory=list)
    sampled: list[float] = field(default_factory=list)

    @property
    def first(self) -> float:
        return self.greedy[0] if self.greedy else 0.0

    def __str__(self) -> str:
        return " ".join(f"{share:.2f}" for share in self.greedy)


def loss_of(weights: Weights, shape: Shape, teacher: Teacher, batch: Batch, depth: int, dropout: float = 0.0) -> Tensor:
    """Cross-entropy in nats against the target's distribution, as far as it lies in the head's vocabulary, averaged
    over anchors and, with falling weights, over the steps of a draft."""
    wanted = _distribution(teacher, batch)
    mass = wanted.sum(-1)
    total, weight = torch.zeros((), device=wanted.device), 0.0
    n_anchors = batch.is_text.shape[2]
    for step, drafted in enumerate(shape.drafts(weights, teacher.embedding, batch, depth, dropout)):
        rows = drafted.float()
        p = wanted[:, step : step + n_anchors]
        entropy = mass[:, step : step + n_anchors] * rows.logsumexp(-1) - (p * rows).sum(-1)
        judged = batch.is_text[step]
        total = total + DECAY**step * (entropy * judged).sum() / judged.sum().clamp(min=1)
        weight += DECAY**step
    return total / weight


def acceptance(
    weights: Weights, shape: Shape, teacher: Teacher, batches: Iterable[tuple[float, Batch]], depth: int
) -> Acceptance:
    """Measured on batches, each with the temperature of its answers; to be called without gradients."""
    hits, overlaps = torch.zeros(depth), torch.zeros(depth)
    n_hits, n_overlaps = torch.zeros(depth), torch.zeros(depth)
    for temperature, batch in batches:
        n_anchors = batch.is_text.shape[2]
        is_right = torch.ones_like(batch.is_text[0])
        wanted = _distribution(teacher, batch, SAMPLED) if temperature else None
        for step, drafted in enumerate(shape.drafts(weights, teacher.embedding, batch, depth)):
            rows, judged = drafted.float(), batch.is_text[step]
            if wanted is None:
                is_right = is_right & (teacher.vocabulary[rows.argmax(-1)] == batch.best[:, step : step + n_anchors])
                hits[step] += (is_right & judged).sum().cpu()
                n_hits[step] += judged.sum().cpu()
            else:
                shared = torch.minimum((rows / SAMPLED).softmax(-1), wanted[:, step : step + n_anchors]).sum(-1)
                overlaps[step] += (shared * judged).sum().cpu()
                n_overlaps[step] += judged.sum().cpu()
    return Acceptance((hits / n_hits.clamp(min=1)).tolist(), (overlaps / n_overlaps.clamp(min=1)).tolist())


def _distribution(teacher: Teacher, batch: Batch, temperature: float = 1.0) -> Tensor:
    """The target's probabilities of the tokens of the head's vocabulary; they sum to 1 with those left out."""
    normaliser = batch.normalisers[..., 1 if temperature != 1.0 else 0, None]
    with torch.no_grad():
        rows = torch.nn.functional.linear(batch.hidden[:, 1:], teacher.output).float()
        return (rows / temperature - normaliser).exp_().clamp_(max=1.0)
