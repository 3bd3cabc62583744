"""What a step costs: seconds of a target pass by its width, of a drafter's pass, and of reading a token it missed.

t(n), a pass over n tokens, is no smooth curve: kernels jump where their tiles are full. So it is a table, which starts
from an assumed shape and is corrected by every measurement. A load that slows down all passes alike is estimated beside
the table and taken out of the measurements, so that the table keeps what matters for decisions, the ratios.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Shape = Mapping[int, float]
"""Assumed cost of a pass by width, in passes over one token; widths between are interpolated."""

Work = tuple[str, int, int]
"""A drafter, the leaves its drafts may have, and how many sequences share its passes: each has less of one then."""

Key = tuple[str, *tuple[Any, ...]]
"""("target", width), or ("step" or "read", *Work): a pass of the drafter, reading a token."""

LOAD_GAIN = 1 / 4  # the load changes within a few passes of the target,
LEAST_GAIN = 1 / 64  # the table does not
SPIKE = 0.5  # one pass moves an estimate by at most this, in logarithms: a process was switched out
REMEMBERED = 8  # measurements that a stored estimate counts for,
PRIOR = 2  # and an assumed time of reading a token
DRAFT_SHARE, READ_SHARE = 0.1, 0.125  # assumed: a draft's pass in target passes, a token read in draft passes


@dataclass(slots=True)
class Estimate:
    """The logarithm of a cost in seconds, the mean of `count` measurements, the later ones counting for more."""

    log_s: float
    count: int = 1


class Costs:
    """The table, in seconds of an idle machine. Before anything was measured a pass over one token takes 1.

    `assumed` are the seconds of a draft's pass and of reading a token, by drafter, until they are measured.
    """

    def __init__(self, shape: Shape, assumed: Mapping[str, tuple[float, float]] | None = None) -> None:
        self._assumed = assumed or {}
        self._shape = np.log(sorted(shape)), np.log([shape[width] for width in sorted(shape)])
        self._tables: dict[int, dict[Key, Estimate]] = {}  # by depth
        self._curves: dict[int, Sequence[float]] = {}  # seconds of target passes by width, by depth
        self.load = 0.0

    @property
    def is_measured(self) -> bool:
        """Whether a pass of the target was ever measured."""
        return any(what == "target" for table in self._tables.values() for what, *_ in table)

    def measured(self) -> tuple[dict[int, float], dict[Work, float]]:
        """Seconds of target passes by width, and of drafters' passes, as far as they were measured, where the context
        was least deep."""
        table = self._tables[min(self._tables)] if self._tables else {}
        target = {key[1]: math.exp(known.log_s) for key, known in table.items() if key[0] == "target"}
        return target, {key[1:]: math.exp(known.log_s) for key, known in table.items() if key[0] == "step"}

    # --- asking ---------------------------------------------------------------------------------------------------

    def target(self, width: int, depth: int = 0) -> float:
        """Seconds of a target pass over `width` tokens behind `depth` others."""
        level = _level(depth)
        curve = self._curves.get(level, ())
        if width >= len(curve):
            curve = self._curves[level] = self._curve(level, width)
        return curve[width]

    def step(self, drafter: str, depth: int = 0, leaves: int = 1, sequences: int = 1) -> float:
        """Seconds of one pass of a drafter, or of one draft where it makes no passes."""
        table = self._table(_level(depth))
        known = table.get(("step", drafter, leaves, sequences)) or table.get(("step", drafter, leaves, 1))
        if known is None:
            return self._assumed[drafter][0] if drafter in self._assumed else DRAFT_SHARE * self.target(1, depth)
        return math.exp(known.log_s)

    def read(self, drafter: str, tokens: int, depth: int = 0, leaves: int = 1, sequences: int = 1) -> float:
        """Seconds for a drafter to read tokens that it has not seen yet, a prompt for instance."""
        known = self._table(_level(depth)).get(("read", drafter, leaves, sequences))
        if known is not None:
            return tokens * math.exp(known.log_s)
        if drafter in self._assumed:
            return tokens * self._assumed[drafter][1]
        return tokens * READ_SHARE * self.step(drafter, depth, leaves, sequences)

    # --- measuring: what cannot be a duration (a clock that stands still) is left out -----------------------------

    def observe_target(self, width: int, seconds: float, depth: int = 0) -> None:
        self._observe(("target", width), seconds, depth, LOAD_GAIN)
        self._curves.clear()

    def observe_step(self, drafter: str, seconds: float, depth: int = 0, leaves: int = 1, sequences: int = 1) -> None:
        self._observe(("step", drafter, leaves, sequences), seconds, depth, self._gain(seconds, depth))

    def observe_read(
        self, drafter: str, tokens: int, seconds: float, depth: int = 0, leaves: int = 1, sequences: int = 1
    ) -> None:
        if drafter in self._assumed:
            # Little is ever read: a first time that was disturbed must not be what is believed from then on.
            assumed = Estimate(math.log(self._assumed[drafter][1]), PRIOR)
            self._table(_level(depth)).setdefault(("read", drafter, leaves, sequences), assumed)
        self._observe(("read", drafter, leaves, sequences), seconds / tokens, depth, self._gain(seconds, depth))

    def _gain(self, seconds: float, depth: int) -> float:
        """What takes microseconds, whose noise is as large as itself, tells next to nothing about the load."""
        return LOAD_GAIN * min(1.0, max(0.0, seconds) * math.exp(-self.load) / self.target(1, depth))

    def _observe(self, key: Key, seconds: float, depth: int, load_gain: float) -> None:
        if not 0 < seconds < math.inf:
            return
        known = self._table(_level(depth)).setdefault(key, Estimate(math.log(seconds) - self.load, 0))
        if known.count:
            self.load += load_gain * _clipped(math.log(seconds) - self.load - known.log_s)
        known.count += 1
        known.log_s += max(LEAST_GAIN, 1 / known.count) * _clipped(math.log(seconds) - self.load - known.log_s)

    # --- the table ------------------------------------------------------------------------------------------------

    def _table(self, level: int) -> dict[Key, Estimate]:
        """The table of a level; a new one starts from its neighbour."""
        if level not in self._tables:
            nearest = min(self._tables, key=lambda other: abs(other - level), default=level)
            known = self._tables.get(nearest, {})
            self._tables[level] = {key: Estimate(estimate.log_s) for key, estimate in known.items()}
        return self._tables[level]

    def _curve(self, level: int, widest: int) -> Sequence[float]:
        """Seconds by width: as measured, or the shape, moved by how far the measured widths on both sides are off it.
        Beyond the widest of the shape a token costs as much as another."""
        known = sorted((key[1], estimate.log_s) for key, estimate in self._table(level).items() if key[0] == "target")
        width = np.log(np.maximum(1, np.arange(1 + max([63, 2 * widest, *(at for at, _ in known)]))))
        log_s = np.interp(width, *self._shape) + np.maximum(0, width - self._shape[0][-1])
        if known:
            at, measured = (list(each) for each in zip(*known, strict=True))
            log_s += np.interp(width, width[at], measured - log_s[at])
        curve: list[float] = np.exp(log_s).tolist()
        return curve

    # --- remembering ----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What was measured, as plain data."""
        return {
            str(level): [[*key, known.log_s, known.count] for key, known in table.items()]
            for level, table in self._tables.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned once. Raises ValueError, TypeError, KeyError or AttributeError for what it
        cannot have returned."""
        self._tables = {int(level): dict(map(_restored, rows)) for level, rows in state.items()}
        self._curves.clear()


def _restored(row: Sequence[Any]) -> tuple[Key, Estimate]:
    what, *rest, log_s, count = row
    numbers = [int(number) for number in (count, *(rest if what == "target" else rest[1:]))]
    if len(rest) != {"target": 1, "step": 3, "read": 3}[what] or min(numbers) < 1 or not abs(log_s) < 50:
        raise ValueError("no estimate of a cost")
    return (what, *rest), Estimate(float(log_s), min(numbers[0], REMEMBERED))


def _level(depth: int) -> int:
    """Depths up to 512 tokens, 2048, 8192 and so on: attention grows with what it looks back on."""
    return (max(0, depth - 1).bit_length() - 8) // 2 if depth > 512 else 0


def _clipped(difference: float) -> float:
    return min(SPIKE, max(-SPIKE, difference))
