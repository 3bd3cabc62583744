"""The cost model: the time of a target pass by its width, of a drafter's pass, and of a drafter's prefill per token.

All costs are ratios to a plain pass, a target pass over one token. Other programs, turbo clocks and heat change the
time of all passes, but hardly the ratio of two passes that follow each other. So the time of a plain pass is known from
the last few of them only, and every other time is compared with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

MEMORY, PLAIN_MEMORY = 8, 4  # measurements that an estimate remembers, and plain passes in the time of a plain pass
SPIKE = 0.5  # most that a measurement counts as off, in logarithms: the process may have been switched out
PLAIN_RUN = 2  # passes without drafts until one takes as long as in plain decoding: in the first, caches are cold
DRAFT_SHARE, READ_SHARE = 0.1, 0.125  # assumed: a draft pass in plain passes, prefill of a token in draft passes
WIDTHS = np.log(np.arange(1, 513))  # wider passes cost in proportion to their width

Shape = Mapping[int, float]
"""Assumed cost of a pass by width, in plain passes; widths between are interpolated."""

Key = tuple[Literal["target"], int] | tuple[Literal["step", "read"], str, int, int]
"""("target", width); ("step", drafter, leaves, sequences) for a pass of a drafter, whose drafts have at most this
number of leaves, for several sequences; or ("read", drafter, leaves, sequences) for the prefill of a token."""


@dataclass(slots=True)
class CostEstimate:
    """The mean of the logarithms of measured costs. It remembers `count` of them; 0: the cost is unknown."""

    log: float = 0.0
    count: int = 0

    def observe(self, log: float, memory: int, age: int = 0) -> None:
        """Count a measurement, and remember at most `memory` of them.

        The greater the `age` of the plain pass it is compared with, in passes, the less it counts.
        """
        if not self.count:
            self.log = log
        self.count = min(memory, self.count + 1)
        self.log += min(SPIKE, max(-SPIKE, log - self.log)) / self.count / (1 + age)


Place = tuple[int, int]
"""A number of threads, and a level of depth."""

Table = dict[Key, CostEstimate]
"""Costs in plain passes at one place."""


class Costs:
    """The costs of a target and its drafters. Before any measurement a plain pass takes 1 second.

    `assumed` holds, by drafter, the seconds of a pass and of the prefill of a token, from which measured costs start.
    Target passes are padded to `least_width` tokens. If a device `compiles` kernels when they are first used, which can
    take minutes, the first measurement of each kind does not count. Passes are computed by `threads` threads at first.
    """

    def __init__(
        self,
        shape: Shape,
        assumed: Mapping[str, tuple[float, float]] | None = None,
        *,
        least_width: int = 1,
        compiles: bool = False,
        threads: int = 1,
    ) -> None:
        self.least_width = least_width
        self._assumed, self._compiles = assumed or {}, compiles
        self._shape = np.interp(WIDTHS, np.log([*shape]), np.log([*shape.values()]))
        self._shape += np.maximum(0, WIDTHS - math.log(max(shape)))  # beyond the shape, in proportion to the width
        # Seconds of a plain pass now, at one level of depth; without a count they are those of some time ago.
        self._plain, self._plain_level = CostEstimate(), 0
        self._tables: dict[Place, Table] = {}
        self._curves: dict[Place, list[float]] = {}  # costs of target passes by width
        self._threads, self._all_threads = threads, threads
        self._age = 0  # passes with drafts since the last measured plain pass

    def use_threads(self, threads: int) -> None:
        """Continue with the costs of passes with this number of threads: other widths are fast for other numbers."""
        if threads != self._threads:
            self._plain = CostEstimate(self._plain.log + math.log(self._threads / threads))  # until the next plain pass
            self._threads = threads

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
        place, width = (self._threads, _level(depth)), max(self.least_width, width)
        curve = self._curves.get(place)
        if curve is None:
            curve = self._curves[place] = self._curve(self._table(depth))
        return curve[width - 1] if width <= len(curve) else curve[-1] * width / len(curve)

    def step(self, drafter: str, depth: int = 0, leaves: int = 1, sequences: int = 1) -> float:
        """Return the cost of one pass of a drafter, or of one draft if the drafter has no model."""
        table = self._table(depth)
        for key in ("step", drafter, leaves, sequences), ("step", drafter, leaves, 1):
            if (known := table.get(key)) is not None and known.count:
                return math.exp(known.log)
        return self._assumed[drafter][0] / self.plain_s if drafter in self._assumed else DRAFT_SHARE

    def read(self, drafter: str, tokens: int, depth: int = 0, leaves: int = 1, sequences: int = 1) -> float:
        """Return the cost of the tokens that a drafter has not seen yet, for example a prompt."""
        known = self._table(depth).get(("read", drafter, leaves, sequences))
        if known is not None and known.count:
            return tokens * math.exp(known.log)
        if drafter in self._assumed:
            return tokens * self._assumed[drafter][1] / self.plain_s
        return tokens * READ_SHARE * self.step(drafter, depth, leaves, sequences)

    # --- measuring: durations that are not positive (the clock was reset) are ignored -----------------------------

    def observe_plain(self, width: int, seconds: float, depth: int = 0) -> None:
        """Learn from a pass without drafts, of `width` sequences."""
        if 0 < seconds < math.inf:
            if not self.has_plain(depth):
                self._plain, self._plain_level = CostEstimate(self._plain.log), _level(depth)
            self._plain.observe(math.log(seconds / self.target(width, depth)), PLAIN_MEMORY)
            self._age = 0

    def observe_target(self, width: int, seconds: float, depth: int = 0) -> None:
        """Learn from a pass with drafts."""
        self._age += 1
        known = self._observe(("target", width), seconds, depth)
        if known is None or known.count < MEMORY or self._age % 4 == 1:
            self._curves.pop((self._threads, _level(depth)), None)  # a curve takes longer than an observation

    def observe_step(self, drafter: str, seconds: float, depth: int = 0, leaves: int = 1, sequences: int = 1) -> None:
        self._observe(("step", drafter, leaves, sequences), seconds, depth)

    def observe_read(
        self, drafter: str, tokens: int, seconds: float, depth: int = 0, leaves: int = 1, sequences: int = 1
    ) -> None:
        self._observe(("read", drafter, leaves, sequences), seconds / tokens, depth)

    def put(self, key: Key, cost: float, depth: int = 0) -> None:
        """Replace a cost by one that was measured next to plain passes."""
        if 0 < cost < math.inf:
            self._table(depth)[key] = CostEstimate(math.log(cost), MEMORY)
            self._curves.pop((self._threads, _level(depth)), None)

    def _observe(self, key: Key, seconds: float, depth: int) -> CostEstimate | None:
        if not 0 < seconds < math.inf or not self.has_plain(depth):
            return None
        table = self._table(depth)
        if key not in table:
            # One disturbed first measurement must not decide for long.
            if key[0] != "target" and key[1] in self._assumed:
                assumed_s = self._assumed[key[1]][key[0] == "read"]
                table[key] = CostEstimate(math.log(assumed_s) - self._plain.log, 2)
            else:
                table[key] = CostEstimate()
            if self._compiles:
                return None
        table[key].observe(math.log(seconds) - self._plain.log, MEMORY, self._age)
        return table[key]

    def knows(self, measured: Mapping[int, float], tolerance: float) -> bool:
        """Return whether costs by width, measured now at depth 0, are the known ones up to a share of `tolerance`."""
        return all(
            abs(math.log(cost / self.target(width))) <= math.log1p(tolerance) for width, cost in measured.items()
        )

    def forget_target(self) -> None:
        """Forget the costs of all target passes, and all that was measured after many tokens or with fewer threads."""
        drafters: Table = {key: known for key, known in self._table(0).items() if key[0] != "target"}
        self._tables = {(self._threads, 0): drafters}
        self._curves.clear()

    # --- tables ---------------------------------------------------------------------------------------------------

    def _table(self, depth: int) -> Table:
        """Return the table of a depth, with the present threads; a new table starts from the nearest one."""
        place = threads, level = self._threads, _level(depth)
        if place not in self._tables:
            nearest = min(
                self._tables, key=lambda other: (abs(other[0] - threads), abs(other[1] - level)), default=place
            )
            known = self._tables.get(nearest, {})
            self._tables[place] = {key: CostEstimate(each.log, min(1, each.count)) for key, each in known.items()}
        return self._tables[place]

    def _curve(self, table: Table) -> list[float]:
        """Return the costs of target passes by width, which never fall.

        Measured costs that fall with the width are averaged. A width that was not measured gets the cost of the shape,
        corrected by the interpolated error of the shape at the measured widths on both sides.
        """
        known = sorted(
            (key[1], each)
            for key, each in table.items()
            if key[0] == "target" and 1 < key[1] <= len(WIDTHS) and each.count
        )
        widths, logs = [1], [0.0]
        for places, log in _pooled(known):
            widths += places
            logs += [log] * len(places)
        at = np.log(widths)
        errors = logs - np.interp(at, WIDTHS, self._shape)
        curve = self._shape + np.interp(WIDTHS, at, errors)
        # Between two measured widths no cost is above that of the wider one.
        after = np.searchsorted(at, WIDTHS)
        curve = np.minimum(curve, np.append(logs, np.inf)[after])
        return [*map(float, np.exp(np.maximum.accumulate(curve)))]

    # --- saving ---------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the measurements with all threads as plain data."""
        plain_s = self.plain_s * self._threads / self._all_threads if self.is_measured else None
        rows = {
            str(level): [[*key, known.log, known.count] for key, known in table.items() if known.count]
            for (threads, level), table in self._tables.items()
            if threads == self._all_threads
        }
        return {"plain_s": plain_s, "tables": rows}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved `state`, which is that of all threads, whatever number is in use."""
        self._tables = {
            (self._all_threads, int(level)): {tuple(key): CostEstimate(log, count) for *key, log, count in rows}
            for level, rows in state["tables"].items()
        }
        if state["plain_s"] is not None:
            self._plain = CostEstimate(math.log(state["plain_s"] * self._all_threads / self._threads))
        self._curves.clear()


def _pooled(measured: Sequence[tuple[int, CostEstimate]]) -> list[tuple[list[int], float]]:
    """Return the nearest costs that do not fall with the width: pool neighbours that do (isotonic regression)."""
    pools: list[tuple[list[int], float, int]] = []  # widths, cost, weight
    for width, estimate in measured:
        widths, cost, weight = [width], max(0.0, estimate.log), estimate.count
        while pools and pools[-1][1] > cost:
            narrower, before, more = pools.pop()
            widths, cost = narrower + widths, (cost * weight + before * more) / (weight + more)
            weight += more
        pools.append((widths, cost, weight))
    return [(widths, cost) for widths, cost, _ in pools]


def _level(depth: int) -> int:
    """Return the level of a depth: 0 up to 512 tokens, 1 up to 2048, and so on, as attention costs more with depth."""
    return (max(0, depth - 1).bit_length() - 8) // 2 if depth > 512 else 0
