"""Measure how much a row of logits depends on the number of tokens in its pass.

Mathematically, the same tokens after the same prefix give the same row, for every width of the pass. Kernels add in
another order for another width, so that rows can differ in their last bits. Passes that verify drafts are wider than
those of plain decoding, and where the best two tokens are closer than the difference, the text changes. This module
measures whether the bounds of an exact context prevent that. If they do not, or if there are no bounds,
`engine/width_classes.py` looks for widths that agree.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgespec.files.cache import cache_name, read_cache, write_cache
from edgespec.llama.context import Context
from edgespec.llama.library import build_id

# A cache is attended to in steps of 256 tokens; rows on both sides of the first step are measured before an answer.
NEAR_STEP, FEW_ROWS = 250, 8
# The effect of branches on a cache shows in some rows only.
BRANCH_ROWS = 16
_WIDTHS = (2, 3, 5, 8, 16, 31)
_TEXT = (
    "The river rose in the night, and by the morning the lower road was gone. People came out to look at it.\n"
    "def mean(values):\n    if not values:\n        raise ValueError('no values')\n    return sum(values)\n"
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kept = TypeVar("Kept", bound="DataclassInstance")
Step = Callable[..., None]  # called with the number of passes that were done, usually 1


@dataclass(frozen=True, slots=True)
class Widths:
    """Which widths of a pass, up to the widest that was measured, give the same rows of logits.

    A width agrees if all rows are bit-identical, wherever the token is in the pass.
    """

    widest: int
    #: The largest difference of a logit between plain decoding and any of the widths.
    max_difference: float
    #: Passes of up to this many tokens give each token the row of a single-token pass.
    exact_to: int


def measured_widths(context: Context, widest: int, progress: Callable[[float], None] | None = None) -> Widths | None:
    """Return the result of `measure_widths` for this model, machine and context, from the cache on disk if it is there.

    None if it cannot be measured: the memory cannot be rolled back, or the context has only a few tokens.
    """
    n_past = min(NEAR_STEP, context.n_ctx - BRANCH_ROWS - widest)
    if n_past < widest or not context.model.can_roll_back:
        return None
    facts = {"widest": widest, "n_past": n_past, "branches": context.free_branches > 0}
    return kept("widths", context, facts, Widths, lambda: measure_widths(context, n_past, widest, progress))


def kept(
    kind: str,
    context: Context,
    facts: Mapping[str, object],
    restored: Callable[..., Kept],
    measure: Callable[[], Kept],
) -> Kept:
    """Return a measurement of this kind from the cache on disk, or measure and keep it there.

    It holds for this build, this context and these `facts`. `restored` makes it from the values of its fields as JSON
    has them.
    """
    name = cache_name(kind, {"build": build_id(), **facts, **context.fingerprint})
    try:
        return restored(**json.loads(read_cache(name) or ""))
    except (ValueError, TypeError):  # not measured yet, or written by another version
        pass
    found = measure()
    write_cache(name, json.dumps(asdict(found)))
    return found


def measure_widths(
    context: Context, n_past: int, widest: int, progress: Callable[[float], None] | None = None
) -> Widths:
    """Decode the same tokens at widths up to `widest`, each in two places of its pass, and compare the rows.

    Uses sequence 0, which is empty afterwards, and needs `widest` outputs. The effect of branches on later rows counts
    as a difference too. The first `n_past` tokens are read in passes of other widths than those that are compared.
    """
    widths = [width for width in _WIDTHS if width < widest] + [widest]
    n_rows = BRANCH_ROWS if context.free_branches else FEW_ROWS
    n_passes = n_rows + 2 * len(widths) + (2 * n_rows if context.free_branches else 0)
    total, done = n_past / 8 + n_passes, 0.0

    def step(passes: float = 1.0) -> None:
        nonlocal done
        done += passes
        if progress is not None:
            progress(min(1.0, done / total))

    try:
        prefix = text_of(context, n_past)
        tokens, plain = _generate(context, prefix, step, n_rows)
        text, few = prefix + tokens, plain[:FEW_ROWS]
        rows: dict[int, list[NDArray[np.float32]]] = {}
        for width in widths:
            # The few rows at the start of a pass, and at its end after as many earlier tokens as fit.
            before = max(1, width - FEW_ROWS)
            whole = _decode_once(context, text, n_past, min(width, FEW_ROWS), width, step)
            shifted = _decode_once(context, text, n_past - before, width, width, step)
            rows[width] = [whole, shifted[before:]]
        branched = 0.0
        if context.free_branches:
            for every in (n_rows, 4):
                branched = max(branched, difference(_decode_on_branches(context, tokens, n_past, every, step), plain))
    finally:
        context.forget(0)
    exact_to = 1
    for width in widths:
        if any(difference(found, few[: len(found)]) for found in rows[width]):
            break
        exact_to = width
    differences = [difference(found, few[: len(found)]) for same in rows.values() for found in same]
    return Widths(widest, max(*differences, branched), 1 if branched else exact_to)


def text_of(context: Context, length: int) -> list[int]:
    """Return the tokens of a text of this length."""
    tokens = context.model.tokenize(_TEXT, add_special=True)
    while len(tokens) < length:
        tokens += context.model.tokenize(_TEXT) or [0]
    return tokens[:length]


def _generate(context: Context, prefix: list[int], step: Step, n_rows: int) -> tuple[list[int], NDArray[np.float32]]:
    """Decode the prefix, then `n_rows` times the best token. Returns ids[n] and the rows float32[n, V] after each."""
    context.forget(0)
    for start in range(0, len(prefix), context.n_batch):
        part = prefix[start : start + context.n_batch]
        n = len(part)
        context.decode(part, range(start, start + n), [(0,)] * n, [False] * (n - 1) + [True])
        step(n / 8)  # a prompt token costs far less than a pass
    tokens = [int(context.logits(n - 1).argmax())]
    rows = np.empty((n_rows, context.model.n_vocab), np.float32)
    for index in range(n_rows):
        context.decode(tokens[-1:], [len(prefix) + index], [(0,)], [True])
        rows[index] = context.logits(0)
        tokens.append(int(rows[index].argmax()))
        step()
    return tokens[:n_rows], rows


def _decode_once(
    context: Context, text: list[int], start: int, n_rows: int, width: int, step: Step
) -> NDArray[np.float32]:
    """Return the first rows float32[n_rows, V] of one pass over `width` tokens of `text` from position `start` on."""
    part = (text[start : start + width] + text[:width])[:width]
    context.truncate(0, start)
    context.decode(part, range(start, start + width), [(0,)] * width, [row < n_rows for row in range(width)])
    step()
    return np.array([context.logits(row) for row in range(n_rows)])


def _decode_on_branches(
    context: Context, tokens: list[int], n_past: int, every: int, step: Step
) -> NDArray[np.float32]:
    """Return the rows float32[n, V] after `tokens`, of which each `every`-th and the next one are on a second branch.

    The branch becomes the text as in the engine: it is decoded again in an exact context, otherwise kept.
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
        step()
    return rows


def difference(rows: NDArray[np.float32], others: NDArray[np.float32]) -> float:
    """Return the largest difference of a logit."""
    # Equal infinities, as of banned tokens, are no difference.
    return float(np.abs(rows - others, where=rows != others, out=np.zeros_like(rows)).max())
