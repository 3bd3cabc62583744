"""Judge a head: the loss that it is trained with, and the share of its tokens that the target would accept."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from edgespec.training.batches import Batch
from edgespec.training.features import SAMPLED
from edgespec.training.heads import Shape, Weights
from edgespec.training.job import Acceptance
from edgespec.training.target import Teacher

DECAY = 0.8  # weight of a step relative to the step before, as in the paper


def loss_of(weights: Weights, shape: Shape, teacher: Teacher, batch: Batch, depth: int, dropout: float = 0.0) -> Tensor:
    """Return the cross-entropy in nats with the target's distribution over the head's vocabulary: a mean over anchors
    and, with falling weights, over the steps of a draft."""
    wanted = _distribution(teacher, batch)
    mass = wanted.sum(-1)
    total, weight = torch.zeros((), device=wanted.device), 0.0
    n_anchors = batch.is_text.shape[2]
    for step, drafted in enumerate(shape.drafts(weights, teacher.embedding, batch, depth, dropout)):
        rows, cells = drafted.float(), slice(step, step + n_anchors)
        entropy = mass[:, cells] * rows.logsumexp(-1) - (wanted[:, cells] * rows).sum(-1)
        judged = batch.is_text[step]
        total = total + DECAY**step * (entropy * judged).sum() / judged.sum().clamp(min=1)
        weight += DECAY**step
    return total / weight


def acceptance(
    weights: Weights, shape: Shape, teacher: Teacher, batches: Iterable[tuple[float, Batch]], depth: int
) -> Acceptance:
    """Measure on batches, each with the temperature of its answers. Call without gradients."""
    accepted, judged = torch.zeros(2, depth), torch.zeros(2, depth)  # of greedy and of sampled answers
    for temperature, batch in batches:
        n_anchors, is_sampled = batch.is_text.shape[2], int(temperature > 0)
        wanted = _distribution(teacher, batch, SAMPLED)
        is_right = torch.ones_like(batch.is_text[0])
        for step, drafted in enumerate(shape.drafts(weights, teacher.embedding, batch, depth)):
            rows, cells = drafted.float(), slice(step, step + n_anchors)
            if is_sampled:
                share = torch.minimum((rows / SAMPLED).softmax(-1), wanted[:, cells]).sum(-1)
            else:
                is_right &= teacher.vocabulary[rows.argmax(-1)] == batch.best[:, cells]
                share = is_right.float()
            accepted[is_sampled, step] += (share * batch.is_text[step]).sum().cpu()
            judged[is_sampled, step] += batch.is_text[step].sum().cpu()
    return Acceptance(*(accepted / judged.clamp(min=1)).tolist())


def _distribution(teacher: Teacher, batch: Batch, temperature: float = 1.0) -> Tensor:
    """The target's probabilities of the tokens in the head's vocabulary; with the tokens left out, they sum to 1."""
    normaliser = batch.normalisers[..., 1 if temperature != 1.0 else 0, None]
    with torch.no_grad():
        rows = torch.nn.functional.linear(batch.hidden[:, 1:], teacher.output).float()
        return (rows / temperature - normaliser).exp_().clamp_(max=1.0)
