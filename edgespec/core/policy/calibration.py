"""From a drafter's raw estimate that a token is accepted to a probability, learnt from what became of its drafts.

A small model does not know how sure it may be: greedy, it is right more often than its probabilities say, and with
noise the lead of its best token promises too much. What helps is to count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

BINS, WIDEST_LOGIT = 16, 4.0
PRIOR, MEMORY = 4.0, 64.0


class Calibration:
    """Share of right tokens by raw estimate, in bins of its logit; where nothing was seen yet the estimate stands.

    The estimate weighs as much as `prior` tokens. After `MEMORY` tokens a bin forgets half, to follow the text.
    """

    def __init__(self, prior: float = PRIOR) -> None:
        self.prior = prior
        self._seen = [0.0] * BINS
        self._right = [0.0] * BINS

    def probability(self, raw: float) -> float:
        """The probability that a token with this raw estimate, in (0, 1), is right."""
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
    """A calibration for each sort of token, made when it is first asked for."""

    def __init__(self, prior: float = PRIOR) -> None:
        super().__init__()
        self._prior = prior

    def __missing__(self, sort: str) -> Calibration:
        return self.setdefault(sort, Calibration(self._prior))

    def state(self) -> dict[str, list[list[float]]]:
        """What was counted, as plain data."""
        return {sort: [list(known._seen), list(known._right)] for sort, known in self.items()}

    def restore(self, state: Mapping[str, Sequence[Sequence[float]]]) -> None:
        """Go on from what `state` returned once. Raises ValueError, TypeError or AttributeError for what it cannot have
        returned."""
        restored = {sort: Calibration(self._prior) for sort in state}
        for sort, counts in state.items():
            seen, right = ([float(count) for count in each] for each in counts)
            if len(seen) != BINS or not all(0 <= r <= s <= MEMORY for s, r in zip(seen, right, strict=True)):
                raise ValueError("no counts of a calibration")
            restored[sort]._seen, restored[sort]._right = seen, right
        self.clear()
        self.update(restored)


def _bin(raw: float) -> int:
    place = (math.log(raw / (1 - raw)) / WIDEST_LOGIT + 1) / 2
    return min(BINS - 1, max(0, int(place * BINS)))
