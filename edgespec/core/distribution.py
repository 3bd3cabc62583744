"""A distribution: the probabilities of the next token, and what a verify rule does with two of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgespec.core.sampling import Candidates, Ids

Probabilities = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probabilities of possible tokens: `ids` int32[n] ascending, `p` float64[n], sum 1.

    Two distributions need not have the same tokens, as target and draft are truncated separately: operations on two of
    them match tokens by id.
    """

    ids: Ids
    p: Probabilities

    @classmethod
    def of(cls, candidates: Candidates) -> Distribution:
        """The softmax of what the sampling chain kept."""
        logits = candidates.logits.astype(np.float64)
        weights = np.exp(logits - logits.max())
        ids = np.arange(len(logits), dtype=np.int32) if candidates.ids is None else candidates.ids
        return cls(ids, weights / weights.sum())

    @classmethod
    def point(cls, token: int) -> Distribution:
        """All probability on one token: a draft token that was not sampled."""
        return cls(np.array([token], np.int32), np.ones(1))

    def probability(self, token: int) -> float:
        at = int(np.searchsorted(self.ids, token))
        return float(self.p[at]) if at < len(self.ids) and self.ids[at] == token else 0.0

    def entropy(self) -> float:
        """In nats."""
        possible = self.p[self.p > 0]
        return -float(np.sum(possible * np.log(possible)))

    def without(self, token: int) -> Distribution | None:
        """The distribution given that `token` is excluded, or None when there is no other token."""
        others = (self.ids != token) & (self.p > 0)
        total = self.p[others].sum()
        return Distribution(self.ids[others], self.p[others] / total) if total > 0 else None

    def excess(self, other: Distribution, scale: float = 1.0) -> Probabilities:
        """(scale p - q)+ for each of this distribution's tokens, float64[n]."""
        if len(other.ids) == 0:
            return self.p * scale
        at = np.minimum(np.searchsorted(other.ids, self.ids), len(other.ids) - 1)
        theirs = np.where(other.ids[at] == self.ids, other.p[at], 0.0)
        above: Probabilities = np.maximum(self.p * scale - theirs, 0.0)
        return above

    def residual(self, other: Distribution, scale: float = 1.0) -> Distribution:
        """norm((scale p - q)+); this distribution itself where nothing remains, as when both are equal."""
        above = self.excess(other, scale)
        total = above.sum()
        return Distribution(self.ids, above / total) if total > 0 else self
