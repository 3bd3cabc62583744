"""The limits of a child process, which its parent process checks."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import inf
from time import monotonic

import psutil

LOOK_S = 0.02  # seconds between two checks of a child


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one piece of work, or of the time between two reports of progress. Processor time is the usual
    limit, since a busy machine does not use it up; `clock_s` is for a child that gets no processor time at all."""

    cpu_s: float = inf
    clock_s: float = inf
    memory_bytes: float = inf


class Meter:
    """Measures the time and the memory that a process has used since the meter was made."""

    def __init__(self, pid: int) -> None:
        self._process: psutil.Process | None = None
        with suppress(psutil.Error):  # it has just ended
            self._process = psutil.Process(pid)
        self._started_s = monotonic()
        self._cpu_s, self._bytes = self._used()

    def exceeded(self, limits: Limits) -> str:
        """Return the first limit that the process has exceeded: "time", "memory", "clock" or ""."""
        cpu_s, n_bytes = self._used()
        if cpu_s - self._cpu_s > limits.cpu_s:
            return "time"
        if n_bytes - self._bytes > limits.memory_bytes:
            return "memory"
        return "clock" if monotonic() - self._started_s > limits.clock_s else ""

    def _used(self) -> tuple[float, int]:
        """Return seconds of processor time and bytes of memory; zero for a process that has just ended."""
        if self._process is None:
            return 0.0, 0
        try:
            times = self._process.cpu_times()
            return times.user + times.system, self._process.memory_info().rss
        except psutil.Error:
            return 0.0, 0
