"""Energy of the processor packages, from Linux's counters of Intel's and AMD's processors (RAPL).

Only if their files are readable, which most systems allow for root only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class _Counter:
    """One package: a file with microjoules that wraps to 0 after `most`."""

    file: Path
    most: int

    def read(self) -> int:
        return int(self.file.read_text("ascii"))


class EnergyMeter:
    """Energy used by all packages together since `start`."""

    def __init__(self, folder: Path = POWERCAP) -> None:
        self._counters = _counters(folder)
        self._started = self._read()

    def start(self) -> None:
        self._started = self._read()

    def joules(self) -> float | None:
        """Since `start`; None if no counter can be read. Correct unless one wraps twice."""
        now = self._read()
        if not now or len(now) != len(self._started):
            return None
        differences = (
            (after - before) % counter.most
            for before, after, counter in zip(self._started, now, self._counters, strict=True)
        )
        return sum(differences) / 1e6

    def _read(self) -> list[int]:
        try:
            return [counter.read() for counter in self._counters]
        except (OSError, ValueError):
            return []


def _counters(folder: Path) -> list[_Counter]:
    """One counter per package: it includes its parts, and some packages are listed under two interfaces."""
    found: dict[str, _Counter] = {}
    for zone in sorted(folder.glob("*"), reverse=True):  # intel-rapl before intel-rapl-mmio
        try:
            name = (zone / "name").read_text("ascii").strip()
            counter = _Counter(zone / "energy_uj", int((zone / "max_energy_range_uj").read_text("ascii")) + 1)
            counter.read()
        except (OSError, ValueError):
            continue
        if name.startswith("package"):
            found.setdefault(name, counter)
    return list(found.values())
