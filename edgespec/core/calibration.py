"""From a drafter's raw estimate that a guess is right to a probability, learnt from what became of its guesses.

A small model does not know how sure it may be: greedy, it is right more often than its probabilities say, and with
noise the lead of its best token promises too much. What helps is to count.
"""

from __future__ import annotations

import math

BINS, WIDEST_LOGIT = 16, 4.0
PRIOR, MEMORY = 4.0, 64.0


class Calibration:
    """Share of right guesses by raw estimate, in bins of its logit; where nothing was seen yet the estimate stands.

    The prior weighs as much as `PRIOR` guesses. After `MEMORY` guesses a bin forgets half, so that it follows the text.
    """

    def __init__(self) -> None:
        self._seen = [0.0] * BINS
        self._right = [0.0] * BINS

    def probability(self, raw: float) -> float:
        """The probability that a guess with this raw estimate, in (0, 1), is right."""
        at = _bin(raw)
        return (self._right[at] + PRIOR * raw) / (self._seen[at] + PRIOR)

    def observe(self, raw: float, right: bool) -> None:
        at = _bin(raw)
        if self._seen[at] >= MEMORY:
            self._seen[at] /= 2
            self._right[at] /= 2
        self._seen[at] += 1
        self._right[at] += right


def _bin(raw: float) -> int:
    place = (math.log(raw / (1 - raw)) / WIDEST_LOGIT + 1) / 2
    return min(BINS - 1, max(0, int(place * BINS)))
