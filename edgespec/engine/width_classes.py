"""Classes of widths: passes of these numbers of tokens give each token the same bits.

Kernels without bounds, such as those of GPUs, choose an algorithm by the number of tokens in a pass. On most GPUs some
neighbouring widths share it: their rows of logits are bit-identical, wherever the token is in the pass. If every pass
of an answer has a width of one class, plain ones too, drafts cannot change the text. `core/exactness.py` says which
further rules such a context keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.core.exactness import CELLS
from edgespec.engine.calibrate import measure_passes
from edgespec.llama.context import Context
from edgespec.llama.rounding import difference, kept, text_of

WIDEST = 16
"""The widest pass that is measured."""
ROWS = 16  # tokens that are decoded at every width
# Kernels of attention may depend on the number of cells, so rows are compared at small depths and at a large one. No
# row crosses a step of the cache. CPUs read slowly, and have no kernels that begin at a large depth.
SMALL_DEPTHS, LARGE_DEPTHS = (192, 448), (960, 1984, 3840)
TURNS = 5  # timed passes of each width
# The share of draft tokens that is assumed to be accepted, to compare the classes.
ACCEPTED = 0.7


@dataclass(frozen=True, slots=True)
class WidthClasses:
    """Which widths, of 1 to `WIDEST` tokens, give the same rows of logits."""

    #: First and last width of each class.
    ranges: tuple[tuple[int, int], ...]
    #: Seconds of a pass of 1, 2, ... tokens.
    seconds: tuple[float, ...]
    #: Tokens before the rows that were compared, at most.
    depth: int
    #: The largest difference of a logit between a pass over one token and any other.
    max_difference: float

    def cost(self, first: int) -> float:
        """Return the time of the narrowest pass of a class, in passes over one token."""
        return self.seconds[first - 1] / self.seconds[0]

    def best(self, most_cost: float = float("inf")) -> tuple[int, int] | None:
        """Return the class that generates fastest, of those whose `cost` is at most this; None if there is none.

        Neighbouring widths have a token at different places of a pass. A width that agrees with no other one is not
        used, because its rows may depend on the place.
        """
        usable = [each for each in self.ranges if each[1] > each[0] and self.cost(each[0]) <= most_cost]
        return max(usable, key=lambda each: max(map(self._speed, range(each[0], each[1] + 1))), default=None)

    def _speed(self, width: int) -> float:
        """Return the expected tokens per second of passes of this width."""
        return sum(ACCEPTED**position for position in range(width)) / self.seconds[width - 1]


def measured_classes(context: Context, progress: Callable[[float], None] | None = None) -> WidthClasses | None:
    """Return the result of `measure_classes` for this model, machine and context, from the cache on disk if possible.

    None if it cannot be measured: the memory cannot be rolled back, or the context has only a few tokens.
    """
    large = LARGE_DEPTHS if context.model.is_offloaded else ()
    fits = [depth for depth in large if depth + ROWS + WIDEST <= context.n_ctx]
    depths = tuple(depth for depth in (*SMALL_DEPTHS, *fits[-1:]) if depth + ROWS + WIDEST <= context.n_ctx)
    if not depths or not context.model.can_roll_back:
        return None
    measure = partial(measure_classes, context, depths, progress)
    return kept("classes", context, {"depths": depths}, _restored, measure)


def _restored(ranges: Sequence[Sequence[int]], seconds: Sequence[float], **others: Any) -> WidthClasses:
    return WidthClasses(tuple((first, last) for first, last in ranges), tuple(seconds), **others)


def measure_classes(
    context: Context, depths: tuple[int, ...], progress: Callable[[float], None] | None = None
) -> WidthClasses:
    """Decode the same tokens in passes of every width after each number of tokens in `depths`, and compare the rows.

    Uses sequence 0, which is empty afterwards, and needs `WIDEST` outputs.
    """
    text = text_of(context, depths[-1] + ROWS + WIDEST)
    widths = range(1, WIDEST + 1)
    same, most = [True] * (WIDEST - 1), 0.0  # same[n]: widths n + 1 and n + 2 agree
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done / (len(depths) * len(widths)))

    try:
        context.forget(0)
        for depth in depths:
            _read(context, text, depth)
            single = before = _rows(context, text, depth, 1)
            step()
            for width in widths[1:]:
                rows = _rows(context, text, depth, width)
                same[width - 2] &= not difference(rows, before)
                most = max(most, difference(rows, single))
                before = rows
                step()
    finally:
        context.forget(0)
    seconds = measure_passes(context, widths, depth=depths[0], repeat=TURNS)
    ends = [width for width in widths if width == WIDEST or not same[width - 1]]
    ranges = tuple(zip([1, *(end + 1 for end in ends[:-1])], ends, strict=True))
    return WidthClasses(ranges, tuple(seconds.get(width, math.inf) for width in widths), depths[-1], most)


def _read(context: Context, text: list[int], depth: int) -> None:
    """Let the cache hold the first `depth` tokens."""
    context.truncate(0, depth)
    most = min(CELLS, context.n_batch)
    for start in range(context.length(0), depth, most):
        n = min(most, depth - start)
        context.decode(text[start : start + n], range(start, start + n), [(0,)] * n, [False] * n)


def _rows(context: Context, text: list[int], depth: int, width: int) -> NDArray[np.float32]:
    """Return the rows float32[ROWS, V] of the tokens after `depth` others, decoded `width` at a time."""
    context.truncate(0, depth)
    rows = np.empty((ROWS, context.model.n_vocab), np.float32)
    for start in range(0, ROWS, width):
        _decode(context, text, depth + start, width)
        for row in range(start, min(start + width, ROWS)):
            rows[row] = context.logits(row - start)
    return rows


def _decode(context: Context, text: list[int], start: int, width: int) -> None:
    context.decode(text[start : start + width], range(start, start + width), [(0,)] * width, [True] * width)
