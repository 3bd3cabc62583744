"""How much a row of logits depends on the number of tokens in its batch: the rounding of kernels, measured.

Mathematically, the same tokens after the same prefix give the same row, whatever the width of the batch. Kernels sum in
another order for another width, so rows can differ in their last bits. Verifying drafts decodes wider batches than
plain decoding, and where the best two tokens are closer than the difference, the text changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from edgespec.core.exactness import NARROW
from edgespec.files.paths import read_cache, write_cache
from edgespec.llama.context import Context
from edgespec.llama.library import build_id
from edgespec.settings import MAX_STRICT_DRAFT

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
ROWS = 32
# A cache is attended to in steps of 256 tokens; rows on both sides of the first step are measured before an answer.
NEAR_STEP, FEW_ROWS = 250, 1 + MAX_STRICT_DRAFT
# The effect of branches on a cache shows in some rows only.
BRANCH_ROWS = 48
# Within bounds nothing else depends on the width; other kernels may treat each number of leftover rows differently.
_BOUNDED_WIDTHS = (*range(2, 9), 12, 15, 16, 24, 31, 32, 48)
_OTHER_WIDTHS = (*range(2, 17), 24, 31, 32, 48)
# Large weights take half a minute of that on two cores. Decided by their size, since the result decides about texts: a
# row in each kind of tile and of what is left over, and fewer of them.
LARGE_BYTES = 2_000_000_000
_FEWER_WIDTHS, _FEWER_ROWS, _FEWER_BRANCH_ROWS = (2, 3, 5, 8, 16, 31), 8, 16
_TEXT = (
    "The river rose in the night, and by the morning the lower road was gone. People came out to look at it.\n"
    "def mean(values):\n    if not values:\n        raise ValueError('no values')\n    return sum(values)\n"
)


@dataclass(frozen=True, slots=True)
class Rounding:
    """The effect of decoding the same `n_rows` tokens after `n_past` others `widths[i]` at a time.

    Differences are the largest of any logit in any row, 0.0 when all are bit-identical. `changed_choices` counts the
    rows whose best token differs from that at width 1, `gaps` holds the lead of the best token over the second best in
    each row at width 1, smallest first.
    """

    n_past: int
    widths: tuple[int, ...]
    from_width_1: tuple[float, ...]
    from_width_2: tuple[float, ...]
    changed_choices: tuple[int, ...]
    gaps: tuple[float, ...]

    @property
    def n_rows(self) -> int:
        return len(self.gaps)

    @property
    def max_difference(self) -> float:
        """The largest difference from plain decoding, at any width."""
        return max(self.from_width_1)

    @property
    def n_close(self) -> int:
        """Rows in which a difference of that size could change the best token."""
        return sum(gap < 2 * self.max_difference for gap in self.gaps)

    def summary(self) -> str:
        """One sentence: which widths are bit-identical, and by how much the others differ."""
        last = self.widths[-1]
        differing = _first_differing(self.from_width_1)
        if differing is None:
            return f"rows are bit-identical for widths 1 to {last}"
        if self.widths[differing] > 2:
            narrow = _span(self.widths[:differing])
            return (
                f"rows are bit-identical for {narrow}, "
                f"from width {self.widths[differing]} on they differ by up to {self.max_difference:.2g} logits"
            )
        first = f"rows of width 1 differ from wider ones by up to {self.max_difference:.2g} logits"
        again = _first_differing(self.from_width_2[1:])
        if again is None:
            return f"{first}, {_span(self.widths[1:])} are bit-identical" if last > 2 else first
        wide, difference = self.widths[1:], max(self.from_width_2[1:])
        equal = f"{_span(wide[:again])} are bit-identical, " if again > 1 else ""
        return (
            f"{first}, {equal}from width {wide[again]} on rows differ from those of width 2 by up to {difference:.2g}"
        )


def measure_rounding(
    context: Context,
    n_past: int,
    *,
    widest: int = WIDTHS[-1],
    progress: Callable[[float], None] | None = None,
) -> Rounding:
    """Generate greedily after `n_past` tokens, then decode the same tokens again in wider batches.

    Takes about a hundred passes. Uses sequence 0 of `context`, which is empty afterwards, and needs `widest` outputs.
    `progress` is called with 0..1. Raises ValueError when the context is too small or its memory cannot be rolled back.
    """
    widths = tuple(width for width in WIDTHS if width <= widest)
    if n_past < 1 or n_past + ROWS > context.n_ctx:
        raise ValueError(f"{n_past} tokens and {ROWS} after them do not fit into a context of {context.n_ctx}")
    if widest < 2 or widths[-1] > min(context.max_outputs, context.n_batch):
        raise ValueError(f"widths up to {widest} need as many outputs, the context allows {context.max_outputs}")
    if not context.model.can_roll_back:
        raise ValueError("the state of this model cannot be rolled back, so nothing can be decoded twice")
    steps = _Steps(n_past, sum(-(-ROWS // width) for width in widths), progress)
    try:
        tokens, plain = _go_on(context, _prefix(context, n_past), steps, ROWS)
        narrowest = plain
        from_1, from_2, changed = [0.0], [0.0], [0]
        for width in widths[1:]:
            rows = _decode_again(context, tokens, n_past, width, steps)
            if width == 2:
                narrowest = rows
                from_2[0] = _difference(rows, plain)
            from_1.append(_difference(rows, plain))
            from_2.append(_difference(rows, narrowest))
            changed.append(int((rows.argmax(axis=1) != plain.argmax(axis=1)).sum()))
    finally:
        context.forget(0)
    best = np.partition(plain, -2, axis=1)[:, -2:]
    gaps = sorted(float(gap) for gap in best[:, 1] - best[:, 0])
    return Rounding(n_past, widths, tuple(from_1), tuple(from_2), tuple(changed), tuple(gaps))


@dataclass(frozen=True, slots=True)
class Widths:
    """Which widths of a pass, up to a widest one, give the same rows.

    `max_difference` is the largest of any logit between plain decoding and any of the widths. From `exact_from` on a
    row depends neither on the width nor on the token's place in the batch; None if it always does. Passes of up to
    `exact_to` tokens give each token the row of a single-token pass. `exact_from` is at least 2 where kernels have no
    bounds: single tokens use other kernels there, and a short measurement can miss differences of a long text.
    """

    widest: int
    max_difference: float
    exact_from: int | None
    exact_to: int


def measured_widths(context: Context, widest: int, progress: Callable[[float], None] | None = None) -> Widths | None:
    """The result of `measure_widths` for this model, machine and context, cached on disk.

    None where it cannot be measured: a memory that cannot be rolled back, or a context of a few tokens.
    """
    n_past = min(NEAR_STEP, context.n_ctx - BRANCH_ROWS - widest)
    if n_past < widest or not context.model.can_roll_back:
        return None
    facts = {"build": build_id(), "widest": widest, "n_past": n_past, "branches": context.free_branches > 0}
    key = json.dumps(facts | context.fingerprint, sort_keys=True)
    name = f"widths/{sha256(key.encode()).hexdigest()[:24]}.json"
    try:
        return Widths(**json.loads(read_cache(name) or ""))
    except (ValueError, TypeError):  # not measured yet, or written by another version
        pass
    widths = measure_widths(context, n_past, widest, progress)
    write_cache(name, json.dumps(asdict(widths)))
    return widths


def measure_widths(
    context: Context, n_past: int, widest: int, progress: Callable[[float], None] | None = None
) -> Widths:
    """Decode the same tokens at widths up to `widest`, each in two places of its batch.

    Uses sequence 0, which is empty afterwards, and needs `widest` outputs. The effect of branches on later rows counts
    among the differences. For a model of `LARGE_BYTES`, fewer widths are measured within the bounds.
    """
    looked_at, n_few, n_rows = _OTHER_WIDTHS, FEW_ROWS, BRANCH_ROWS
    if context.exact:
        looked_at = _BOUNDED_WIDTHS
        if context.model.size_bytes >= LARGE_BYTES:
            looked_at, n_few, n_rows = _FEWER_WIDTHS, _FEWER_ROWS, _FEWER_BRANCH_ROWS
    widths = [width for width in looked_at if width < widest] + [widest]
    n_rows = n_rows if context.free_branches else n_few
    n_passes = n_rows + 2 * len(widths) + (2 * n_rows if context.free_branches else 0)
    steps = _Steps(n_past, n_passes, progress)
    try:
        prefix = _prefix(context, n_past)
        tokens, plain = _go_on(context, prefix, steps, n_rows)
        text, few = prefix + tokens, plain[:n_few]
        rows: dict[int, list[NDArray[np.float32]]] = {}
        for width in widths:
            # The few rows at the start of a batch, and at its end, behind as much of what comes before as fits.
            before = max(1, width - n_few)
            whole = _decode_once(context, text, n_past, min(width, n_few), width, steps)
            shifted = _decode_once(context, text, n_past - before, width, width, steps)
            rows[width] = [whole, shifted[before:]]
        branched = 0.0
        if context.free_branches:
            for every in (n_rows, 4):
                branched = max(branched, _difference(_decode_on_branches(context, tokens, n_past, every, steps), plain))
    finally:
        context.forget(0)
    exact_to = 1
    for width in widths:
        if any(_difference(found, few[: len(found)]) for found in rows[width]):
            break
        exact_to = width
    exact_from, reference = None, rows[widest][0]
    for width in reversed(widths):
        if any(_difference(found[: len(reference)], reference[: len(found)]) for found in rows[width]):
            break
        exact_from = width
    differences = [_difference(found, few[: len(found)]) for same in rows.values() for found in same]
    if context.exact and exact_to == widest and not branched:
        exact_from = 1
    return Widths(widest, max(*differences, branched), exact_from, 1 if branched else exact_to)


class _Steps:
    """Converts decoded tokens into a fraction of the work; a prompt token costs far less than a pass."""

    def __init__(self, n_past: int, n_passes: int, progress: Callable[[float], None] | None) -> None:
        self._done, self._progress = 0.0, progress
        self._total = n_past / 8 + n_passes

    def add(self, passes: float) -> None:
        self._done += passes
        if self._progress is not None:
            self._progress(min(1.0, self._done / self._total))


def _prefix(context: Context, length: int) -> list[int]:
    tokens = context.model.tokenize(_TEXT, add_special=True)
    while len(tokens) < length:
        tokens += context.model.tokenize(_TEXT) or [0]
    return tokens[:length]


def _go_on(context: Context, prefix: list[int], steps: _Steps, n_rows: int) -> tuple[list[int], NDArray[np.float32]]:
    """Decode the prefix, then the best token each time: ids[n] and the rows float32[n, V] after each of them."""
    context.forget(0)
    # The end of the prefix is decoded again with what follows it, so that it has to come from a narrow pass.
    wide = max(0, len(prefix) - NARROW)
    chunk = min(context.n_batch, 64)
    starts = [*range(0, wide, chunk), wide]
    for start, end in zip(starts, [*starts[1:], len(prefix)], strict=True):
        part = prefix[start:end]
        n = len(part)
        context.decode(part, range(start, start + n), [(0,)] * n, [False] * (n - 1) + [True])
        steps.add(n / 8)
    tokens = [int(context.logits(n - 1).argmax())]
    rows = np.empty((n_rows, context.model.n_vocab), np.float32)
    for index in range(n_rows):
        context.decode(tokens[-1:], [len(prefix) + index], [(0,)], [True])
        rows[index] = context.logits(0)
        tokens.append(int(rows[index].argmax()))
        steps.add(1)
    return tokens[:n_rows], rows


def _decode_again(context: Context, tokens: list[int], n_past: int, width: int, steps: _Steps) -> NDArray[np.float32]:
    """The rows float32[ROWS, V] after `tokens`, decoded `width` at a time; the last batch overlaps the one before."""
    rows = np.empty((len(tokens), context.model.n_vocab), np.float32)
    for start in range(0, len(tokens), width):
        start = min(start, len(tokens) - width)
        context.truncate(0, n_past + start)
        first = n_past + start
        part = tokens[start : start + width]
        context.decode(part, range(first, first + width), [(0,)] * width, [True] * width)
        for index in range(width):
            rows[start + index] = context.logits(index)
        steps.add(1)
    return rows


def _decode_once(
    context: Context, text: list[int], start: int, n_rows: int, width: int, steps: _Steps
) -> NDArray[np.float32]:
    """The first rows float32[n_rows, V] of one batch of `width` tokens of `text` from position `start` on."""
    part = (text[start : start + width] + text[:width])[:width]
    context.truncate(0, start)
    context.decode(part, range(start, start + width), [(0,)] * width, [row < n_rows for row in range(width)])
    steps.add(1)
    return np.array([context.logits(row) for row in range(n_rows)])


def _decode_on_branches(
    context: Context, tokens: list[int], n_past: int, every: int, steps: _Steps
) -> NDArray[np.float32]:
    """The rows float32[n, V] after `tokens`, of which each `every`-th and the one after it are on a second branch.

    The branch is taken over as the engine does: decoded again in an exact context, else kept.
    """
    rows = np.empty((len(tokens), context.model.n_vocab), np.float32)
    context.truncate(0, n_past)
    index = 0
    while index < len(tokens):
        part = tokens[index : index + (2 if index % every == 0 else 1)]
        n, at = len(part), n_past + index
        if index % every:
            context.decode(part, [at], [(0,)], [True])
        else:
            branch = context.fork(0, at)
            try:
                wrong = [(token + 1) % context.model.n_vocab for token in part]
                positions = [*range(at, at + n)] * 2
                context.decode(wrong + part, positions, [(0,)] * n + [(branch,)] * n, [False] * n + [True] * n)
                for row in range(n):
                    rows[index + row] = context.logits(n + row)
                if not context.exact:
                    context.adopt(0, branch, at, at + n)
            finally:
                context.release([branch])
            if context.exact:
                context.truncate(0, at)
                context.decode(part, range(at, at + n), [(0,)] * n, [False] * (n - 1) + [True])
        if index % every:
            rows[index] = context.logits(0)
        index += n
        steps.add(1)
    return rows


def _difference(rows: NDArray[np.float32], others: NDArray[np.float32]) -> float:
    # Equal infinities, as of banned tokens, do not differ.
    return float(np.abs(rows - others, where=rows != others, out=np.zeros_like(rows)).max())


def _first_differing(differences: tuple[float, ...]) -> int | None:
    return next((index for index, difference in enumerate(differences) if difference > 0), None)


def _span(widths: tuple[int, ...]) -> str:
    return f"width {widths[0]}" if len(widths) == 1 else f"widths {widths[0]} to {widths[-1]}"
