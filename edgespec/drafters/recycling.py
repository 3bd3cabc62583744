"""Token recycling: what the target found likely after a token, the last time it saw it (Luo et al., 2408.08696).

Verification computes rows of logits anyway: the most likely tokens of each are stored as successors of the token before
it. A chain or a tree grows from that table.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgespec.core.sampling import FloatRow, largest
from edgespec.drafters.base import DraftContext, Outcome
from edgespec.drafters.walk import WalkingDrafter

SUCCESSORS = 8
UNLIKELY = 4.0  # nats below the likeliest token: less likely ones are not drafted
MANY = 256  # from so many tokens on selecting the likeliest takes less time than sorting them
RELIABILITY = 0.5  # how likely a row tells what comes behind the same token elsewhere, if nothing else is known


class RecyclingDrafter(WalkingDrafter[int]):
    """A table that all sequences share: int32[n_vocab, 8] successors, -1 where there is none, and their logits."""

    name = "recycling"
    needs_logits = True

    def __init__(self, n_vocab: int) -> None:
        super().__init__()
        self._successors: NDArray[np.int32] = np.full((n_vocab, SUCCESSORS), -1, np.int32)
        self._logits: NDArray[np.float32] = np.zeros((n_vocab, SUCCESSORS), np.float32)

    def observe(self, outcome: Outcome) -> None:
        for node, token in zip([-1, *outcome.path], outcome.tokens, strict=True):
            self._learn(token, outcome.logits(node))

    def _learn(self, token: int, row: FloatRow) -> None:
        best = (row >= row.max() - UNLIKELY).nonzero()[0]
        if len(best) > MANY:
            best = largest(row, SUCCESSORS)
        best = best[np.argsort(-row[best], kind="stable")[:SUCCESSORS]]
        self._successors[token] = -1
        self._successors[token, : len(best)], self._logits[token, : len(best)] = best, row[best]

    def start(self, sequence: DraftContext) -> int:
        return sequence.tokens[-1] if sequence.tokens else -1

    def distribution(self, place: int, sequence: DraftContext, most: int) -> Mapping[int, float]:
        successors = self._successors[place]
        known = successors >= 0
        if not (sequence.is_draft_invariant and known.any()):
            return {}
        logits = self._logits[place, known] / (sequence.sampler.settings.temperature or 1.0)
        weights = np.exp(logits - logits[0])
        weights *= RELIABILITY / weights.sum()
        return dict(zip(successors[known][:most].tolist(), weights[:most].tolist(), strict=True))

    def step(self, place: int, token: int) -> int:
        return token
