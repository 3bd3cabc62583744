"""What a step costs: seconds of a target pass by its width, of a drafter's pass, and of reading a token it missed.

t(n), a pass over n tokens, is no smooth curve: kernels jump where their tiles are full. So it is a table, which starts
from an assumed shape and is corrected by every measurement. A load that slows down all passes alike is estimated beside
the table and taken out of the measurements, so that the table keeps what matters for decisions, the ratios.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Shape = Mapping[int, float]
"""Assumed cost of a pass by width, in passes over one token; widths between are interpolated."""

Work = tuple[str, int, int]
"""A drafter, the leaves its drafts may have, and how many sequences share its passes: each has less of one then."""

What = Literal["target", "step", "read"]

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

    def update(self, log_s: float) -> None:
        self.count += 1
        self.log_s += max(LEAST_GAIN, 1 / self.count) * _clipped(log_s - self.log_s)


Table = dict[What, dict[Any, Estimate]]
"""The estimates at one depth of the context: target passes by width, passes ("step") and reading by `Work`."""


class Costs:
    """The table, in seconds of an idle machine. Before anything was measured a pass over one token takes 1.

    `assumed` are the seconds of a draft's pass and of reading a token, by drafter, until they are measured.
    """

    def __init__(self, shape: Shape, assumed: Mapping[str, tuple[float, float]] | None = None) -> None:
        self._assumed = assumed or {}
        self._shape = np.log(sorted(shape)), np.log([shape[width] for width in sorted(shape)])
        self._tables: dict[int, Table] = {}
        self._curves: dict[int, Sequence[float]] = {}  # seconds of target passes by width, at each depth
        self.load = 0.0

    @property
    def is_measured(self) -> bool:
        """Whether a pass of the target was ever measured."""
        return any(table["target"] for table in self._tables.values())

    def measured(self) -> tuple[dict[int, float], dict[Work, float]]:
        """Seconds of target passes by width, and of drafters' passes, as far as they were measured, where the context
        was least deep."""
        table = self._table(min(self._tables, default=0))
        target, step = ({key: math.exp(known.log_s) for key, known in table[what].items()} for what in WHAT[:2])
        return target, step

    # --- asking ---------------------------------------------------------------------------------------------------

    def target(self, width: int, depth: int = 0) -> float:
        """Seconds of a target pass over `width` tokens behind `depth` others."""
        curve = self._curves.get(_level(depth), ())
        if width >= len(curve):
            curve = self._curves[_level(depth)] = self._curve(_level(depth), width)
        return curve[width]

    def step(self, drafter: str, depth: int = 0, leaves: int = 1, sequences: int = 1) -> float:
        """Seconds of one pass of a drafter, or of one draft where it makes no passes."""
        steps = self._table(_level(depth))["step"]
        known = steps.get((drafter, leaves, sequences)) or steps.get((drafter, leaves, 1))
        if known is None:
            return self._assumed[drafter][0] if drafter in self._assumed else DRAFT_SHARE * self.target(1, depth)
        return math.exp(known.log_s)

    def read(self, drafter: str, tokens: int, depth: int = 0, leaves: int = 1, sequences: int = 1) -> float:
        """Seconds for a drafter to read tokens that it has not seen yet, a prompt for instance."""
        known = self._table(_level(depth))["read"].get((drafter, leaves, sequences))
        if known is not None:
            return tokens * math.exp(known.log_s)
        if drafter in self._assumed:
            return tokens * self._assumed[drafter][1]
        return tokens * READ_SHARE * self.step(drafter, depth, leaves, sequences)

    # --- measuring: what cannot be a duration (a clock that stands still) is left out -----------------------------

    def observe_target(self, width: int, seconds: float, depth: int = 0) -> None:
        self._observe("target", width, seconds, depth, LOAD_GAIN)
        self._curves.clear()

    def observe_step(self, drafter: str, seconds: float, depth: int = 0, leaves: int = 1, sequences: int = 1) -> None:
        self._observe("step", (drafter, leaves, sequences), seconds, depth, self._gain(seconds, depth))

    def observe_read(
        self, drafter: str, tokens: int, seconds: float, depth: int = 0, leaves: int = 1, sequences: int = 1
    ) -> None:
        work, known = (drafter, leaves, sequences), self._table(_level(depth))["read"]
        if drafter in self._assumed and work not in known:
            # Little is ever read: a first time that was disturbed must not be what is believed from then on.
            known[work] = Estimate(math.log(self._assumed[drafter][1]), PRIOR)
        self._observe("read", work, seconds / tokens, depth, self._gain(seconds, depth))

    def _gain(self, seconds: float, depth: int) -> float:
        """What takes microseconds, whose noise is as large as itself, tells next to nothing about the load."""
        return LOAD_GAIN * min(1.0, max(0.0, seconds) * math.exp(-self.load) / self.target(1, depth))

    def _observe(self, what: What, key: Any, seconds: float, depth: int, load_gain: float) -> None:
        if not 0 < seconds < math.inf:
            return
        estimates, log_s = self._table(_level(depth))[what], math.log(seconds)
        known = estimates.get(key)
        if known is None:
            estimates[key] = Estimate(log_s - self.load)
        else:
            self.load += load_gain * _clipped(log_s - self.load - known.log_s)
            known.update(log_s - self.load)

    # --- the table ------------------------------------------------------------------------------------------------

    def _table(self, level: int) -> Table:
        """The table of a level; a new one starts from its neighbour."""
        if level not in self._tables:
            nearest = min(self._tables, key=lambda other: abs(other - level), default=None)
            known: Table = {what: {} for what in WHAT} if nearest is None else self._tables[nearest]
            self._tables[level] = {
                what: {key: Estimate(estimate.log_s) for key, estimate in known[what].items()} for what in WHAT
            }
        return self._tables[level]

    def _curve(self, level: int, widest: int) -> Sequence[float]:
        """Seconds by width: as measured, or the shape, moved by how far the measured widths on both sides are off it.
        Beyond the widest of the shape a token costs as much as another."""
        known = sorted(self._table(level)["target"].items())
        width = np.log(np.maximum(1, np.arange(1 + max([63, 2 * widest, *(at for at, _ in known)]))))
        log_s = np.interp(width, *self._shape) + np.maximum(0, width - self._shape[0][-1])
        if known:
            at = [at for at, _ in known]
            log_s += np.interp(width, width[at], [estimate.log_s for _, estimate in known] - log_s[at])
        curve: list[float] = np.exp(log_s).tolist()
        return curve

    # --- remembering ----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What was measured, as plain data."""
        return {
            str(level): {
                what: [[*(key if what != "target" else [key]), known.log_s, known.count] for key, known in kept.items()]
                for what, kept in table.items()
            }
            for level, table in self._tables.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned once. Raises ValueError, TypeError, KeyError or AttributeError for what it
        cannot have returned."""
        self._tables = {
            int(level): {what: dict(_restored(what, row) for row in stored[what]) for what in WHAT}
            for level, stored in state.items()
        }
        self._curves.clear()


WHAT: tuple[What, ...] = ("target", "step", "read")


def _restored(what: What, row: Sequence[Any]) -> tuple[int | Work, Estimate]:
    *key, log_s, count = row
    if not (abs(log_s) < 50 and count >= 1):
        raise ValueError("no estimate of a cost")
    estimate = Estimate(float(log_s), min(int(count), REMEMBERED))
    if what == "target":
        [width] = map(int, key)
        if width < 1:
            raise ValueError("a pass has at least one token")
        return width, estimate
    drafter, leaves, sequences = key
    return (str(drafter), int(leaves), int(sequences)), estimate


def _level(depth: int) -> int:
    """Depths up to 512 tokens, 2048, 8192 and so on: attention grows with what it looks back on."""
    return (max(0, depth - 1).bit_length() - 8) // 2 if depth > 512 else 0


def _clipped(difference: float) -> float:
    return min(SPIKE, max(-SPIKE, difference))
