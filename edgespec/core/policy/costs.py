"""What a round costs: seconds of a target pass by its width, of a drafter's pass, and of reading a token it missed.

t(n), a pass over n tokens, is no smooth curve: kernels jump where their tiles are full. So it is a table, which starts
from an assumed shape and is corrected by every measurement. Measurements come from a machine that does other things as
well: a load that slows down all passes alike is estimated beside the table and taken out of them, so that the table
keeps what matters for decisions, the ratios.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Shape = Mapping[int, float]
"""Assumed cost of a pass by width, in passes over one token; widths between are interpolated."""

Work = tuple[str, int, int]
"""A drafter, the leaves its drafts may have, and how many sequences share its passes: each has less of one then."""

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

    def state(self) -> tuple[float, int]:
        return self.log_s, self.count

    def update(self, log_s: float) -> None:
        self.count += 1
        self.log_s += max(LEAST_GAIN, 1 / self.count) * _clipped(log_s - self.log_s)


@dataclass(slots=True)
class _Table:
    """The estimates at one depth of the context: target passes by width, passes and reading by drafter."""

    target: dict[int, Estimate] = field(default_factory=dict)
    step: dict[Work, Estimate] = field(default_factory=dict)
    read: dict[Work, Estimate] = field(default_factory=dict)
    curve: dict[int, float] = field(default_factory=dict)  # seconds by width, as far as they were asked for


class Costs:
    """The table, in seconds of an idle machine. Before anything was measured a pass over one token takes 1.

    `assumed` are the seconds of a guess and of reading a token, by drafter, until they are measured.
    """

    def __init__(self, shape: Shape, assumed: Mapping[str, tuple[float, float]] | None = None) -> None:
        self._assumed = assumed or {}
        self._widths = sorted(shape)
        self._shape = [math.log(shape[width]) for width in self._widths]
        self._tables: dict[int, _Table] = {}
        self.load = 0.0

    @property
    def is_measured(self) -> bool:
        """Whether a pass of the target was ever measured."""
        return any(table.target for table in self._tables.values())

    def measured(self) -> tuple[dict[int, float], dict[Work, float]]:
        """Seconds of target passes by width, and of drafters' passes, as far as they were measured, where the context
        was least deep."""
        table = self._tables[min(self._tables)] if self._tables else _Table()
        target = {width: math.exp(known.log_s) for width, known in table.target.items()}
        return target, {work: math.exp(known.log_s) for work, known in table.step.items()}

    # --- asking ---------------------------------------------------------------------------------------------------

    def target(self, width: int, depth: int = 0) -> float:
        """Seconds of a target pass over `width` tokens behind `depth` others."""
        table = self._table(depth)
        seconds = table.curve.get(width)
        if seconds is None:
            seconds = table.curve[width] = math.exp(self._log_target(table, width))
        return seconds

    def step(self, drafter: str, depth: int = 0, *, leaves: int = 1, sequences: int = 1) -> float:
        """Seconds of one pass of a drafter, or of one guess where it makes no passes."""
        steps, assumed = self._table(depth).step, self._assumed.get(drafter)
        known = steps.get((drafter, leaves, sequences)) or steps.get((drafter, leaves, 1))
        if known is None:
            return assumed[0] if assumed else DRAFT_SHARE * self.target(1, depth)
        return math.exp(known.log_s)

    def read(self, drafter: str, tokens: int, depth: int = 0, *, leaves: int = 1, sequences: int = 1) -> float:
        """Seconds for a drafter to read tokens that it has not seen yet, a prompt for instance."""
        known, assumed = self._table(depth).read.get((drafter, leaves, sequences)), self._assumed.get(drafter)
        if known is not None:
            return tokens * math.exp(known.log_s)
        return tokens * (
            assumed[1] if assumed else READ_SHARE * self.step(drafter, depth, leaves=leaves, sequences=sequences)
        )

    # --- measuring ------------------------------------------------------------------------------------------------

    def observe_target(self, width: int, seconds: float, depth: int = 0) -> None:
        """Take in what a pass took. What cannot be a duration (a clock that stands still) is left out."""
        table = self._table(depth)
        if self._observe(table.target, width, seconds, LOAD_GAIN):
            table.curve.clear()

    def observe_step(
        self, drafter: str, seconds: float, depth: int = 0, *, leaves: int = 1, sequences: int = 1
    ) -> None:
        work = drafter, leaves, sequences
        self._observe(self._table(depth).step, work, seconds, self._gain(seconds, depth))

    def observe_read(
        self, drafter: str, tokens: int, seconds: float, depth: int = 0, *, leaves: int = 1, sequences: int = 1
    ) -> None:
        work, estimates, assumed = (drafter, leaves, sequences), self._table(depth).read, self._assumed.get(drafter)
        if assumed and work not in estimates:
            # Little is ever read: a first time that was disturbed must not be what is believed from then on.
            estimates[work] = Estimate(math.log(assumed[1]), PRIOR)
        self._observe(estimates, work, seconds / tokens, self._gain(seconds, depth))

    def _gain(self, seconds: float, depth: int) -> float:
        """What takes microseconds, whose noise is as large as itself, tells next to nothing about the load."""
        return LOAD_GAIN * min(1.0, max(0.0, seconds) * math.exp(-self.load) / self.target(1, depth))

    def _observe(self, estimates: dict[Any, Estimate], key: Any, seconds: float, load_gain: float) -> bool:
        if not 0 < seconds < math.inf:
            return False
        log_s = math.log(seconds) - self.load
        known = estimates.get(key)
        if known is None:
            estimates[key] = Estimate(log_s)
        else:
            self.load += load_gain * _clipped(log_s - known.log_s)
            known.update(math.log(seconds) - self.load)
        return True

    # --- the table ------------------------------------------------------------------------------------------------

    def _table(self, depth: int) -> _Table:
        """The table for about this depth; a new one starts from its neighbour."""
        level = _level(depth)
        table = self._tables.get(level)
        if table is None:
            table = self._tables[level] = _Table()
            if len(self._tables) > 1:
                nearest = min((other for other in self._tables if other != level), key=lambda other: abs(other - level))
                for name in ("target", "step", "read"):
                    known = getattr(self._tables[nearest], name)
                    setattr(table, name, {key: Estimate(estimate.log_s) for key, estimate in known.items()})
        return table

    def _log_target(self, table: _Table, width: int) -> float:
        """As measured, or the shape, moved by how far the measured widths on both sides are off it."""
        if width in table.target:
            return table.target[width].log_s
        widths = sorted(table.target)
        offs = [table.target[known].log_s - self._log_shape(known) for known in widths]
        return self._log_shape(width) + (_interpolated(widths, offs, width) if widths else 0.0)

    def _log_shape(self, width: int) -> float:
        """Beyond the widest a token costs as much as another."""
        beyond = max(0.0, math.log(width / self._widths[-1]))
        return _interpolated(self._widths, self._shape, width) + beyond

    # --- remembering ----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What was measured, as plain data."""
        return {
            str(level): {
                "target": [[width, *estimate.state()] for width, estimate in table.target.items()],
                "step": [[*work, *estimate.state()] for work, estimate in table.step.items()],
                "read": [[*work, *estimate.state()] for work, estimate in table.read.items()],
            }
            for level, table in self._tables.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned once. Raises ValueError, TypeError, KeyError or AttributeError for what it
        cannot have returned."""
        tables = {}
        for level, stored in state.items():
            target = {int(width): _estimate(known) for width, *known in stored["target"]}
            if any(width < 1 for width in target):
                raise ValueError("a pass has at least one token")
            step, read = (
                {
                    (str(drafter), int(leaves), int(sequences)): _estimate(known)
                    for drafter, leaves, sequences, *known in stored[name]
                }
                for name in ("step", "read")
            )
            tables[int(level)] = _Table(target, step, read)
        self._tables = tables


def _estimate(stored: Sequence[float]) -> Estimate:
    log_s, count = stored
    if not (abs(log_s) < 50 and count >= 1):
        raise ValueError("no estimate of a cost")
    return Estimate(float(log_s), min(int(count), REMEMBERED))


def _level(depth: int) -> int:
    """Depths up to 512 tokens, 2048, 8192 and so on: attention grows with what it looks back on."""
    return (max(0, depth - 1).bit_length() - 8) // 2 if depth > 512 else 0


def _interpolated(widths: Sequence[int], values: Sequence[float], width: int) -> float:
    """The value at a width, in between along the logarithm of the width, beyond the ends as at the ends."""
    right = bisect_left(widths, width)
    if right == len(widths):
        return values[-1]
    if right == 0 or widths[right] == width:
        return values[right]
    low, high = widths[right - 1], widths[right]
    share = math.log(width / low) / math.log(high / low)
    return values[right - 1] + share * (values[right] - values[right - 1])


def _clipped(difference: float) -> float:
    return min(SPIKE, max(-SPIKE, difference))
