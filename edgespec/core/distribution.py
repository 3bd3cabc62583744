"""Distributions of the next token, and the operations on them that verification rules need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgespec.core.sampling import Candidates, Indices

Probabilities = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probabilities of possible tokens: `ids` intp[n] ascending, `p` float64[n], sum 1.

    Operations on two distributions match tokens by id. The ids may differ because target and draft are truncated
    separately.
    """

    ids: Indices
    p: Probabilities

    @classmethod
    def of(cls, candidates: Candidates) -> Distribution:
        """Return the softmax of the candidates that the sampling chain kept."""
        logits = candidates.logits.astype(np.float64)
        weights = np.exp(logits - logits.max())
        ids = np.arange(len(logits)) if candidates.ids is None else candidates.ids
        return cls(ids, weights / weights.sum())

    @classmethod
    def point(cls, token: int) -> Distribution:
        """Return the distribution with all probability on one token: that of a draft token that was not sampled."""
        return cls(np.array([token]), np.ones(1))

    def probability(self, token: int) -> float:
        at = int(np.searchsorted(self.ids, token))
        return float(self.p[at]) if at < len(self.ids) and self.ids[at] == token else 0.0

    def without(self, token: int) -> Distribution | None:
        """Return the distribution given that `token` is excluded, or None if there is no other token."""
        others = (self.ids != token) & (self.p > 0)
        total = self.p[others].sum()
        return Distribution(self.ids[others], self.p[others] / total) if total > 0 else None

    def excess(self, other: Distribution, scale: float = 1.0) -> Probabilities:
        """Return (scale p - q)+ for each token of this distribution, float64[n]."""
        if len(other.ids) == 0:
            return self.p * scale
        at = np.minimum(np.searchsorted(other.ids, self.ids), len(other.ids) - 1)
        theirs = np.where(other.ids[at] == self.ids, other.p[at], 0.0)
        above: Probabilities = np.maximum(self.p * scale - theirs, 0.0)
        return above

    def residual(self, other: Distribution, scale: float = 1.0) -> Distribution:
        """Return norm((scale p - q)+), or this distribution if nothing remains, for example if both are equal."""
        above = self.excess(other, scale)
        total = above.sum()
        return Distribution(self.ids, above / total) if total > 0 else self
