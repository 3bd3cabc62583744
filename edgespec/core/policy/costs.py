"""The cost model: the time of a target pass by its width, of a drafter's pass, and of a drafter's prefill per token.

All costs are ratios to a plain pass, a target pass over one token. Other programs, turbo clocks and heat change the
time of all passes, but hardly the ratio of two passes that follow each other. So the time of a plain pass is known from
the last few of them only, and every other time is compared with it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Shape = Mapping[int, float]
"""Assumed cost of a pass by width, in plain passes; widths between are interpolated."""

Work = tuple[str, int, int]
"""A drafter, the number of leaves its drafts may have, and the number of sequences that share its passes."""

Key = tuple[str, *tuple[Any, ...]]
"""("target", width), ("step", *Work) for a pass of the drafter, or ("read", *Work) for the prefill of a token."""

Point = tuple[float, float]
"""The logarithms of a width and of a cost."""

PLAIN_WEIGHT = 1 / 4  # least weight of a plain pass in the present time of plain passes
LEAST_WEIGHT = 1 / 8  # least weight of any other measurement; half of it in the first pass after a plain one
SPIKE = 0.5  # most that a measurement counts as off, in logarithms: the process may have been switched out
REMEMBERED = 8  # most measurements as which a saved estimate counts
DRAFT_SHARE, READ_SHARE = 0.1, 0.125  # assumed: a draft pass in plain passes, prefill of a token in draft passes


@dataclass(slots=True)
class Estimate:
    """The mean of the logarithms of `count` measured costs, in which later ones have more weight."""

    log: float = 0.0
    count: int = 0

    def observe(self, log: float, least_weight: float, age: int = 0) -> None:
        """Count a measurement. The greater the `age` of the plain pass it is compared with, in passes, the less it
        counts."""
        if not self.count:
            self.log = log
        self.count += 1
        off = min(SPIKE, max(-SPIKE, log - self.log))
        self.log += max(least_weight, 1 / self.count) / (1 + age) * off

    def remembered(self, most: int = REMEMBERED) -> Estimate:
        """Return a copy that counts as `most` measurements at most."""
        return Estimate(self.log, min(self.count, most))


Table = dict[Key, Estimate]
"""Costs in plain passes, at one level of depth."""


class Costs:
    """The costs of a target and its drafters. Before any measurement a plain pass takes 1 second.

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
        # Seconds of a plain pass now, at one level of depth; without a count they are those of some time ago.
        self._plain, self._plain_level = Estimate(), 0
        self._tables: dict[int, Table] = {}  # by level of depth
        self._curves: dict[int, _Curve] = {}  # of target passes, by level of depth
        self._threads, self._all_threads = threads, threads
        self._others: dict[int, dict[int, Table]] = {}  # tables by threads
        self._since_plain = 0  # measured passes with drafts since the last one without

    def use_threads(self, threads: int) -> None:
        """Continue with the costs of passes with this number of threads: other widths are fast for other numbers.

        Costs that are not known yet are those of the present number.
        """
        if threads == self._threads:
            return
        self._others[self._threads] = self._tables
        self._tables = self._others.get(threads) or _copied(self._tables)
        self._plain = Estimate(self._plain.log + math.log(self._threads / threads))  # until the next plain pass
        self._threads = threads
        self._curves.clear()

    @property
    def is_measured(self) -> bool:
        """True if a pass of the target was ever measured."""
        return self._plain.count > 0 or any(self._tables.values())

    def has_plain(self, depth: int) -> bool:
        """Return whether the time of a plain pass at this depth is known now."""
        return self._plain.count > 0 and self._plain_level == _level(depth)

    # --- asking ---------------------------------------------------------------------------------------------------

    @property
    def plain_s(self) -> float:
        """The seconds of a pass over one token now."""
        return math.exp(self._plain.log)

    def target(self, width: int, depth: int = 0) -> float:
        """Return the cost of a target pass over `width` tokens after `depth` cached ones; a wider pass never costs
        less."""
        level = _level(depth)
        if level not in self._curves:
            known = [(key[1], estimate) for key, estimate in self._table(level).items() if key[0] == "target"]
            self._curves[level] = _Curve(self._shape, sorted(known, key=lambda each: each[0]))
        return self._curves[level][width]

    def step(self, drafter: str, depth: int = 0, leaves: int = 1, sequences: int = 1) -> float:
        """Return the cost of one pass of a drafter, or of one draft if the drafter has no model."""
        table = self._table(_level(depth))
        known = table.get(("step", drafter, leaves, sequences)) or table.get(("step", drafter, leaves, 1))
        if known is None:
            return self._assumed[drafter][0] / self.plain_s if drafter in self._assumed else DRAFT_SHARE
        return math.exp(known.log)

    def read(self, drafter: str, tokens: int, depth: int = 0, leaves: int = 1, sequences: int = 1) -> float:
        """Return the cost of the tokens that a drafter has not seen yet, for example a prompt."""
        known = self._table(_level(depth)).get(("read", drafter, leaves, sequences))
        if known is not None:
            return tokens * math.exp(known.log)
        if drafter in self._assumed:
            return tokens * self._assumed[drafter][1] / self.plain_s
        return tokens * READ_SHARE * self.step(drafter, depth, leaves, sequences)

    # --- measuring: durations that are not positive (the clock was reset) are ignored -----------------------------

    def observe_plain(self, width: int, seconds: float, depth: int = 0, *, warm: bool = False) -> None:
        """Learn from a pass without drafts, of `width` sequences."""
        key = ("plain", width)
        if not 0 < seconds < math.inf:
            return
        if self._compiles and not warm and key not in self._compiled:
            self._compiled.add(key)
            return
        if not self.has_plain(depth):
            self._plain, self._plain_level = Estimate(self._plain.log), _level(depth)
        self._plain.observe(math.log(seconds / self.target(width, depth)), PLAIN_WEIGHT)
        self._since_plain = 0

    def observe_target(self, width: int, seconds: float, depth: int = 0) -> None:
        """Learn from a pass with drafts."""
        self._since_plain += 1
        key, level = ("target", width), _level(depth)
        self._observe(key, seconds, depth)
        known, curve = self._table(level).get(key), self._curves.get(level)
        if known is not None and curve is not None and abs(known.log - curve.measured.get(width, math.inf)) > 0.01:
            del self._curves[level]  # a curve takes longer than an observation: small changes wait

    def set_target(self, width: int, cost: float, depth: int = 0) -> None:
        """Replace the cost of a pass by one that was measured beside plain passes."""
        if 0 < cost < math.inf:
            self._table(_level(depth))["target", width] = Estimate(math.log(cost), REMEMBERED)
            self._curves.pop(_level(depth), None)

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
        self._observe(("step", drafter, leaves, sequences), seconds, depth, warm=warm)

    def observe_read(
        self, drafter: str, tokens: int, seconds: float, depth: int = 0, leaves: int = 1, sequences: int = 1
    ) -> None:
        key = ("read", drafter, leaves, sequences)
        if self.has_plain(depth) and drafter in self._assumed and not self._compiled_in(key, depth):
            # Such a drafter seldom reads: without the prior, one disturbed first measurement would decide for long.
            prior = Estimate(math.log(self._assumed[drafter][1] / self.plain_s), count=2)
            self._table(_level(depth)).setdefault(key, prior)
        self._observe(key, seconds / tokens, depth)

    def _observe(self, key: Key, seconds: float, depth: int, *, warm: bool = False) -> None:
        if not 0 < seconds < math.inf or not self.has_plain(depth):
            return
        if not warm and self._compiled_in(key, depth):
            self._compiled.add(key)
            return
        self._table(_level(depth)).setdefault(key, Estimate()).observe(
            math.log(seconds) - self._plain.log, LEAST_WEIGHT, self._since_plain
        )

    def _compiled_in(self, key: Key, depth: int) -> bool:
        """Return whether kernels may be compiled in this pass: it is the first of its kind."""
        return self._compiles and key not in self._compiled and key not in self._table(_level(depth))

    def knows(self, measured: Mapping[int, float], tolerance: float) -> bool:
        """Return whether costs by width, measured now at depth 0, are the known ones up to a share of `tolerance`."""
        return all(
            abs(math.log(cost / self.target(width))) <= math.log1p(tolerance) for width, cost in measured.items()
        )

    def forget_target(self) -> None:
        """Forget the costs of all target passes, and all that was measured after many tokens or with fewer threads."""
        self._tables = {0: {key: known for key, known in self._table(0).items() if key[0] != "target"}}
        self._others.clear()
        self._curves.clear()

    # --- the table ------------------------------------------------------------------------------------------------

    def _table(self, level: int) -> Table:
        """Return the table of a level of depth; a new table starts from the nearest one."""
        if level not in self._tables:
            nearest = min(self._tables, key=lambda other: abs(other - level), default=level)
            known = self._tables.get(nearest, {})
            self._tables[level] = {key: estimate.remembered(1) for key, estimate in known.items()}
        return self._tables[level]

    # --- remembering ----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the measurements with all threads as plain data."""
        is_whole = self._threads == self._all_threads
        tables = self._tables if is_whole else self._others[self._all_threads]
        plain_s = self.plain_s * self._threads / self._all_threads if self.is_measured else None
        rows = {
            str(level): [[*key, known.log, known.count] for key, known in table.items()]
            for level, table in tables.items()
        }
        return {"plain_s": plain_s, "tables": rows}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved `state`, which is that of all threads, whatever number is in use.

        Raises ValueError, TypeError, KeyError or AttributeError if it is invalid.
        """
        restored = {int(level): dict(map(_restored, rows)) for level, rows in state["tables"].items()}
        plain = Estimate()
        if state["plain_s"] is not None:
            plain = Estimate(_checked(math.log(state["plain_s"])))
        threads = self._threads
        self.use_threads(self._all_threads)
        self._tables, self._plain = restored, plain
        self._others.clear()  # those of other numbers of threads are derived from the state
        self._curves.clear()
        self.use_threads(threads)


class _Curve(dict[int, float]):
    """The cost of a pass by width, which never falls, computed when it is first asked for.

    Measured costs that fall with the width are pooled. A width that was not measured gets the cost of the shape,
    corrected by the interpolated error of the shape at the measured widths on both sides, and no less than the narrower
    and no more than the wider of these. Beyond the widest pass of the shape, costs grow in proportion to the width.
    """

    def __init__(self, shape: Sequence[Point], measured: Sequence[tuple[int, Estimate]]) -> None:
        super().__init__()
        self._shape, self.measured = shape, {width: known.log for width, known in measured}
        self._known = [(0.0, 0.0), *_pooled([each for each in measured if each[0] > 1])]
        self._errors = [(at, cost - self._by_shape(at)) for at, cost in self._known]

    def __missing__(self, width: int) -> float:
        at = math.log(max(1, width))
        cost, place = self._by_shape(at) + _interpolated(self._errors, at), bisect_right(self._known, (at, math.inf))
        most = self._known[place][1] if place < len(self._known) else math.inf
        cost = self[width] = math.exp(min(most, max(self._known[place - 1][1], cost)))
        return cost

    def _by_shape(self, at: float) -> float:
        return _interpolated(self._shape, at) + max(0.0, at - self._shape[-1][0])


def _pooled(measured: Sequence[tuple[int, Estimate]]) -> list[Point]:
    """Return the nearest costs that do not fall with the width: pool neighbours that do (isotonic regression)."""
    pools: list[tuple[float, int, list[int]]] = []  # cost, weight, widths
    for width, estimate in measured:
        cost, weight, widths = max(0.0, estimate.log), estimate.count, [width]
        while pools and pools[-1][0] > cost:
            before, more, narrower = pools.pop()
            cost = (cost * weight + before * more) / (weight + more)
            weight, widths = weight + more, narrower + widths
        pools.append((cost, weight, widths))
    return [(math.log(width), cost) for cost, _, widths in pools for width in widths]


def _interpolated(points: Sequence[Point], at: float) -> float:
    """Interpolate linearly between points. Before the first point and after the last one, their values apply; without
    points, the value is 0."""
    i = bisect_right(points, (at, math.inf))
    if not 0 < i < len(points):
        return points[min(i, len(points) - 1)][1] if points else 0.0
    (left, low), (right, high) = points[i - 1 : i + 1]
    return low + (high - low) * (at - left) / (right - left)


def _copied(tables: Mapping[int, Table]) -> dict[int, Table]:
    return {level: {key: estimate.remembered() for key, estimate in table.items()} for level, table in tables.items()}


def _restored(row: Sequence[Any]) -> tuple[Key, Estimate]:
    what, *rest, log, count = row
    numbers = [int(number) for number in (count, *(rest if what == "target" else rest[1:]))]
    if len(rest) != {"target": 1, "step": 3, "read": 3}[what] or min(numbers) < 1:
        raise ValueError("invalid estimate of a cost")
    return (what, *rest), Estimate(_checked(log), numbers[0]).remembered()


def _checked(log: Any) -> float:
    if not abs(log) < 50:
        raise ValueError("invalid estimate of a cost")
    return float(log)


def _level(depth: int) -> int:
    """Return the level of a depth: 0 up to 512 tokens, 1 up to 2048, and so on, as attention costs more with depth."""
    return (max(0, depth - 1).bit_length() - 8) // 2 if depth > 512 else 0
