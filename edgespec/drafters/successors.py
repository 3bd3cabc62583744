"""The tokens that the target found likely after each token the last time, from rows of logits that verification
computes anyway (Luo et al., 2408.08696)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgespec.core.sampler import log_sum_exp
from edgespec.core.sampling import FloatRow, largest
from edgespec.drafters.base import DraftContext, Outcome
from edgespec.drafters.walk import WalkingDrafter

MOST = 8  # successors kept for each token
UNLIKELY = 4.0  # nats: tokens that are less likely than the best one by more than this are not kept
MANY = 256  # from this many tokens on, selecting the best is faster than sorting
RELIABILITY = 0.5  # assumed probability that a stored row is also right after the same token elsewhere
BLENDED = 0.3  # share of the successors in a head's draft; a larger share harms a good head


class Successors:
    """A table shared by all sequences and drafters: int32[n_vocab, 8] successors (-1: none) and their logits."""

    def __init__(self, n_vocab: int) -> None:
        self._ids: NDArray[np.int32] = np.full((n_vocab, MOST), -1, np.int32)
        self._logits: NDArray[np.float32] = np.zeros((n_vocab, MOST), np.float32)
        self._learnt: Outcome | None = None

    def learn(self, outcome: Outcome) -> None:
        """Store the rows of a step; storing the same step twice does no harm."""
        if outcome is self._learnt:
            return
        self._learnt = outcome
        for node, token in zip([-1, *outcome.path], outcome.tokens, strict=True):
            row = outcome.logits(node)
            best = (row >= row.max() - UNLIKELY).nonzero()[0]
            if len(best) > MANY:
                best = largest(row, MOST)
            best = best[np.argsort(-row[best], kind="stable")[:MOST]]
            self._ids[token] = -1
            self._ids[token, : len(best)], self._logits[token, : len(best)] = best, row[best]

    def of(self, token: int, temperature: float = 1.0) -> tuple[NDArray[np.int32], FloatRow]:
        """Return the successors of a token, likeliest first, and their probabilities, which sum to 1; empty if none are
        known."""
        ids = self._ids[token][self._ids[token] >= 0]
        logits = self._logits[token, : len(ids)] / temperature
        weights: FloatRow = np.exp(logits - logits[:1])
        return ids, weights / (weights.sum() or 1)

    def blend(self, row: FloatRow, token: int, drafted: FloatRow | None = None) -> None:
        """Mix the successors of `token` into a draft's logits float32[n_vocab] for the next token, in place.

        The logits become log-probabilities. `drafted` are the logits that are not -inf, if the caller knows them.
        """
        ids, weights = self.of(token)
        if len(ids):
            row -= log_sum_exp(row if drafted is None else drafted) - np.log(1 - BLENDED)
            row[ids] = np.logaddexp(row[ids], np.log(BLENDED * weights))


class RecyclingDrafter(WalkingDrafter[int]):
    """Token recycling: grows a chain or a tree from the table of successors."""

    name = "recycling"
    needs_logits = True

    def __init__(self, successors: Successors) -> None:
        super().__init__()
        self._successors = successors

    def observe(self, outcome: Outcome) -> None:
        self._successors.learn(outcome)

    def start(self, sequence: DraftContext) -> int:
        return sequence.tokens[-1] if sequence.tokens else -1

    def distribution(self, place: int, sequence: DraftContext, most: int) -> Mapping[int, float]:
        if not sequence.is_draft_invariant:
            return {}
        ids, weights = self._successors.of(place, sequence.sampler.settings.temperature or 1.0)
        return dict(zip(ids[:most].tolist(), (RELIABILITY * weights[:most]).tolist(), strict=True))

    def step(self, place: int, token: int) -> int:
        return token
