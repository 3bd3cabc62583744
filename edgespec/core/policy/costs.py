"""The cost model: seconds of a target pass by its width, of a drafter's pass, and of a drafter's prefill per token.

t(n), the time of a pass over n tokens, is not a smooth curve: it jumps where the tiles of kernels are full. So the
costs are a table, which starts from an assumed shape and is corrected by every measurement. A machine load that slows
down all passes alike is estimated separately and divided out, because decisions depend on ratios only.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Shape = Mapping[int, float]
"""Assumed cost of a pass by width, in passes over one token; widths between are interpolated."""

Work = tuple[str, int, int]
"""A drafter, the number of leaves its drafts may have, and the number of sequences that share its passes."""

Key = tuple[str, *tuple[Any, ...]]
"""("target", width), ("step", *Work) for a pass of the drafter, or ("read", *Work) for the prefill of a token."""

Point = tuple[float, float]
"""The logarithms of a width and of a cost."""

LOAD_GAIN = 1 / 4  # share of a deviation attributed to the load, which changes within a few target passes
LEAST_GAIN = 1 / 64  # least weight of a measurement in the table, which changes slowly
SPIKE = 0.5  # most that one measurement can move an estimate, in logarithms: the process may have been switched out
REMEMBERED = 8  # weight of a saved estimate, in measurements
PRIOR = 2  # weight of the assumed prefill time of a token, in measurements
DRAFT_SHARE, READ_SHARE = 0.1, 0.125  # assumed: a draft pass in target passes, prefill of a token in draft passes


@dataclass(slots=True)
class Estimate:
    """The logarithm of a cost in seconds: a mean of `count` measurements, in which later ones have more weight."""

    log_s: float
    count: int = 1


class Costs:
    """The table of costs, in seconds on an idle machine. Before any measurement a pass over one token costs 1.

    `assumed` holds, by drafter, the seconds of a pass and of the prefill of a token. They are used until measured. If a
    device `compiles` kernels when they are first used, which can take minutes, the first measurement of each kind does
    not count unless it is `warm`. Passes are computed by `threads` threads at first.
    """

    def __init__(
        self,
        shape: Shape,
        assumed: Mapping[str, tuple[float, float]] | None = None,
        *,
        compiles: bool = False,
        threads: int = 1,
    ) -> None:
        self._assumed, self._compiles = assumed or {}, compiles
        self._compiled: set[Key] = set()
        self._shape = [(math.log(width), math.log(shape[width])) for width in sorted(shape)]
        self._tables: dict[int, dict[Key, Estimate]] = {}  # by depth
        self._curves: dict[int, _Curve] = {}  # of target passes, by depth
        self.load = 0.0
        self._threads, self._all_threads = threads, threads
        self._others: dict[int, tuple[dict[int, dict[Key, Estimate]], float]] = {}  # tables and loads, by threads

    def use_threads(self, threads: int) -> None:
        """Continue with the costs of passes with this number of threads: other widths are fast for other numbers.

        Costs that are not known yet are those of the present number, and the load is as if all threads were needed.
        """
        if threads == self._threads:
            return
        self._others[self._threads] = self._tables, self.load
        if threads in self._others:
            self._tables, self.load = self._others[threads]
        else:
            self._tables = {
                level: {key: Estimate(known.log_s, min(known.count, REMEMBERED)) for key, known in table.items()}
                for level, table in self._tables.items()
            }
            self.load += math.log(self._threads / threads)
        self._threads = threads
        self._curves.clear()

    @property
    def is_measured(self) -> bool:
        """True if a pass of the target was ever measured."""
        return any(what == "target" for table in self._tables.values() for what, *_ in table)

    # --- asking ---------------------------------------------------------------------------------------------------

    def target(self, width: int, depth: int = 0) -> float:
        """Return the seconds of a target pass over `width` tokens after `depth` cached ones."""
        level = _level(depth)
        if level not in self._curves:
            known = ((key[1], estimate.log_s) for key, estimate in self._table(level).items() if key[0] == "target")
            self._curves[level] = _Curve(self._shape, sorted(known))
        return self._curves[level][width]

    def step(self, drafter: str, depth: int = 0, leaves: int = 1, sequences: int = 1) -> float:
        """Return the seconds of one pass of a drafter, or of one draft if the drafter has no model."""
        table = self._table(_level(depth))
        known = table.get(("step", drafter, leaves, sequences)) or table.get(("step", drafter, leaves, 1))
        if known is None:
            return self._assumed[drafter][0] if drafter in self._assumed else DRAFT_SHARE * self.target(1, depth)
        return math.exp(known.log_s)

    def read(self, drafter: str, tokens: int, depth: int = 0, leaves: int = 1, sequences: int = 1) -> float:
        """Return the seconds a drafter needs to process tokens that it has not seen yet, for example a prompt."""
        known = self._table(_level(depth)).get(("read", drafter, leaves, sequences))
        if known is not None:
            return tokens * math.exp(known.log_s)
        if drafter in self._assumed:
            return tokens * self._assumed[drafter][1]
        return tokens * READ_SHARE * self.step(drafter, depth, leaves, sequences)

    # --- measuring: durations that are not positive (the clock was reset) are ignored -----------------------------

    def observe_target(self, width: int, seconds: float, depth: int = 0, *, warm: bool = False) -> None:
        self._observe(("target", width), seconds, depth, LOAD_GAIN, warm=warm)
        self._curves.clear()

    def lower_target(self, width: int, seconds: float, depth: int = 0) -> None:
        """Replace the cost of a pass, in seconds on an idle machine, if the known cost is larger.

        Answers seldom correct a cost that is too large, since drafts that seem not to pay off are seldom verified. They
        correct a cost that is too small at the next drafts.
        """
        if 0 < seconds < self.target(width, depth):
            self._table(_level(depth))["target", width] = Estimate(math.log(seconds))
            self._curves.clear()

    def observe_step(
        self,
        drafter: str,
        seconds: float,
        depth: int = 0,
        leaves: int = 1,
        sequences: int = 1,
        *,
        warm: bool = False,
    ) -> None:
        self._observe(("step", drafter, leaves, sequences), seconds, depth, self._gain(seconds, depth), warm=warm)

    def observe_read(
        self, drafter: str, tokens: int, seconds: float, depth: int = 0, leaves: int = 1, sequences: int = 1
    ) -> None:
        key = ("read", drafter, leaves, sequences)
        if drafter in self._assumed and not self._compiled_in(key, depth):
            # Such a drafter seldom reads: without the prior, one disturbed first measurement would decide for long.
            assumed = Estimate(math.log(self._assumed[drafter][1]), PRIOR)
            self._table(_level(depth)).setdefault(key, assumed)
        self._observe(key, seconds / tokens, depth, self._gain(seconds, depth))

    def _gain(self, seconds: float, depth: int) -> float:
        """Return the weight of a drafter's time in the estimate of the load.

        The weight is small for passes of microseconds: their noise is as large as their duration.
        """
        return LOAD_GAIN * min(1.0, max(0.0, seconds) * math.exp(-self.load) / self.target(1, depth))

    def _observe(self, key: Key, seconds: float, depth: int, load_gain: float, *, warm: bool = False) -> None:
        if not 0 < seconds < math.inf:
            return
        if not warm and self._compiled_in(key, depth):
            self._compiled.add(key)
            return
        known = self._table(_level(depth)).setdefault(key, Estimate(math.log(seconds) - self.load, 0))
        if known.count:
            self.load += load_gain * _clipped(math.log(seconds) - self.load - known.log_s)
        known.count += 1
        known.log_s += max(LEAST_GAIN, 1 / known.count) * _clipped(math.log(seconds) - self.load - known.log_s)

    def _compiled_in(self, key: Key, depth: int) -> bool:
        """Return whether kernels may be compiled in this pass: it is the first of its kind."""
        return self._compiles and key not in self._compiled and key not in self._table(_level(depth))

    # --- the table ------------------------------------------------------------------------------------------------

    def _table(self, level: int) -> dict[Key, Estimate]:
        """Return the table of a level of depth; a new table starts from the nearest one."""
        if level not in self._tables:
            nearest = min(self._tables, key=lambda other: abs(other - level), default=level)
            known = self._tables.get(nearest, {})
            self._tables[level] = {key: Estimate(estimate.log_s) for key, estimate in known.items()}
        return self._tables[level]

    # --- remembering ----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the measurements with all threads as plain data."""
        is_whole = self._threads == self._all_threads
        tables = self._tables if is_whole else self._others[self._all_threads][0]
        return {
            str(level): [[*key, known.log_s, known.count] for key, known in table.items()]
            for level, table in tables.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved `state`, which is that of all threads, whatever number is in use.

        Raises ValueError, TypeError, KeyError or AttributeError if it is invalid.
        """
        restored = {int(level): dict(map(_restored, rows)) for level, rows in state.items()}
        threads = self._threads
        self.use_threads(self._all_threads)
        self._tables = restored
        self._others.clear()  # those of other numbers of threads are derived from the state
        self._curves.clear()
        self.use_threads(threads)


class _Curve(dict[int, float]):
    """The seconds of a pass by width, computed when they are first asked for.

    A width that was not measured gets the cost of the shape, corrected by the interpolated error of the shape at the
    measured widths on both sides. Beyond the widest pass of the shape, costs grow in proportion to the width.
    """

    def __init__(self, shape: Sequence[Point], measured: Sequence[tuple[int, float]]) -> None:
        super().__init__()
        self._shape = shape
        places = [(math.log(width), log_s) for width, log_s in measured]
        self._errors = [(at, log_s - self._by_shape(at)) for at, log_s in places]

    def __missing__(self, width: int) -> float:
        at = math.log(max(1, width))
        seconds = self[width] = math.exp(self._by_shape(at) + _interpolated(self._errors, at))
        return seconds

    def _by_shape(self, at: float) -> float:
        return _interpolated(self._shape, at) + max(0.0, at - self._shape[-1][0])


def _interpolated(points: Sequence[Point], at: float) -> float:
    """Interpolate linearly between points. Before the first point and after the last one, their values apply; without
    points, the value is 0."""
    i = bisect_right(points, (at, math.inf))
    if not 0 < i < len(points):
        return points[min(i, len(points) - 1)][1] if points else 0.0
    (left, low), (right, high) = points[i - 1 : i + 1]
    return low + (high - low) * (at - left) / (right - left)


def _restored(row: Sequence[Any]) -> tuple[Key, Estimate]:
    what, *rest, log_s, count = row
    numbers = [int(number) for number in (count, *(rest if what == "target" else rest[1:]))]
    if len(rest) != {"target": 1, "step": 3, "read": 3}[what] or min(numbers) < 1 or not abs(log_s) < 50:
        raise ValueError("invalid estimate of a cost")
    return (what, *rest), Estimate(float(log_s), min(numbers[0], REMEMBERED))


def _level(depth: int) -> int:
    """Return the level of a depth: 0 up to 512 tokens, 1 up to 2048, and so on, as attention costs more with depth."""
    return (max(0, depth - 1).bit_length() - 8) // 2 if depth > 512 else 0


def _clipped(difference: float) -> float:
    return min(SPIKE, max(-SPIKE, difference))
