"""Calibrate a drafter's confidence: turn its raw estimate that a token is accepted into a probability.

The confidence of a small model is biased. At temperature 0 the model is right more often than its probabilities say;
with noise the lead of its best token is too optimistic. So the accepted tokens are counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

BINS, WIDEST_LOGIT = 16, 4.0
PRIOR, MEMORY = 4.0, 64.0


class Calibration:
    """The share of accepted tokens by raw estimate, in bins of the estimate's logit.

    The raw estimate has the weight of `prior` tokens, so it is returned unchanged while its bin is empty. A bin that
    has counted `MEMORY` tokens halves its counts, so that it follows a text that changes.
    """

    def __init__(self, prior: float = PRIOR) -> None:
        self.prior = prior
        self._seen = [0.0] * BINS
        self._right = [0.0] * BINS

    def probability(self, raw: float) -> float:
        """Return the probability that a token with this raw estimate, in (0, 1), is accepted."""
        at = _bin(raw)
        return (self._right[at] + self.prior * raw) / (self._seen[at] + self.prior)

    def observe(self, raw: float, right: bool) -> None:
        at = _bin(raw)
        if self._seen[at] >= MEMORY:
            self._seen[at] /= 2
            self._right[at] /= 2
        self._seen[at] += 1
        self._right[at] += right


class Calibrations(dict[str, Calibration]):
    """A calibration for each sort of token, created on first use."""

    def __init__(self, prior: float = PRIOR) -> None:
        super().__init__()
        self._prior = prior

    def __missing__(self, sort: str) -> Calibration:
        return self.setdefault(sort, Calibration(self._prior))

    def state(self) -> dict[str, list[list[float]]]:
        """Return the counts as plain data."""
        return {sort: [list(known._seen), list(known._right)] for sort, known in self.items()}

    def restore(self, state: Mapping[str, Sequence[Sequence[float]]]) -> None:
        """Continue from a saved `state`."""
        self.clear()
        for sort, (seen, right) in state.items():
            self[sort]._seen, self[sort]._right = [*seen], [*right]


def _bin(raw: float) -> int:
    place = (math.log(raw / (1 - raw)) / WIDEST_LOGIT + 1) / 2
    return min(BINS - 1, max(0, int(place * BINS)))
