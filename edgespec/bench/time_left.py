"""Estimate the remaining time from the elapsed time."""

from __future__ import annotations

from time import perf_counter

from edgespec.text.figures import clock


class TimeLeft:
    """The progress of work of `total` units that starts now."""

    def __init__(self, total: float) -> None:
        self._total, self.done = total, 0.0
        self._started_s = perf_counter()

    @property
    def share(self) -> float:
        return min(1.0, self.done / self._total) if self._total > 0 else 1.0

    def line(self, what: str) -> str:
        """Return `what` with the time left, if that can be estimated."""
        if not 0 < self.done < self._total:
            return what
        left_s = (perf_counter() - self._started_s) * (self._total / self.done - 1)
        return f"{what}, {clock(left_s)} left"
