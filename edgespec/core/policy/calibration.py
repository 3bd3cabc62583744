"""From a drafter's raw estimate that a guess is right to a probability, learnt from what became of its guesses.

A small model does not know how sure it may be: greedy, it is right more often than its probabilities say, and with
noise the lead of its best token promises too much. What helps is to count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

BINS, WIDEST_LOGIT = 16, 4.0
PRIOR, MEMORY = 4.0, 64.0


class Calibration:
    """Share of right guesses by raw estimate, in bins of its logit; where nothing was seen yet the estimate stands.

    The estimate weighs as much as `prior` guesses. After `MEMORY` guesses a bin forgets half, to follow the text.
    """

    def __init__(self, prior: float = PRIOR) -> None:
        self.prior = prior
        self._seen = [0.0] * BINS
        self._right = [0.0] * BINS

    def probability(self, raw: float) -> float:
        """The probability that a guess with this raw estimate, in (0, 1), is right."""
        at = _bin(raw)
        return (self._right[at] + self.prior * raw) / (self._seen[at] + self.prior)

    def observe(self, raw: float, right: bool) -> None:
        at = _bin(raw)
        if self._seen[at] >= MEMORY:
            self._seen[at] /= 2
            self._right[at] /= 2
        self._seen[at] += 1
        self._right[at] += right

    def state(self) -> list[list[float]]:
        """What was counted, as plain data."""
        return [list(self._seen), list(self._right)]

    def restore(self, state: Sequence[Sequence[float]]) -> None:
        """Go on from what `state` returned once. Raises ValueError or TypeError for what it cannot have returned."""
        seen, right = ([float(count) for count in counts] for counts in state)
        if {len(seen), len(right)} != {BINS} or not all(
            0 <= r <= s <= MEMORY for s, r in zip(seen, right, strict=True)
        ):
            raise ValueError("no counts of a calibration")
        self._seen, self._right = seen, right


class Calibrations:
    """A calibration for each sort of guess, made when it is first asked for."""

    def __init__(self, prior: float = PRIOR) -> None:
        self._prior = prior
        self._by_sort: dict[str, Calibration] = {}

    def __getitem__(self, sort: str) -> Calibration:
        found = self._by_sort.get(sort)
        if found is None:
            found = self._by_sort[sort] = Calibration(self._prior)
        return found

    def state(self) -> dict[str, list[list[float]]]:
        return {sort: calibration.state() for sort, calibration in self._by_sort.items()}

    def restore(self, state: Mapping[str, Sequence[Sequence[float]]]) -> None:
        """Raises ValueError, TypeError or AttributeError for what `state` cannot have returned."""
        restored = {sort: Calibration(self._prior) for sort in state}
        for sort, counts in state.items():
            restored[sort].restore(counts)
        self._by_sort = restored


def _bin(raw: float) -> int:
    place = (math.log(raw / (1 - raw)) / WIDEST_LOGIT + 1) / 2
    return min(BINS - 1, max(0, int(place * BINS)))
