"""The tokens that are likely after two tokens, or after one, as a model found them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgespec.core.sampling import FloatRow, largest

MOST = 8  # successors kept for each context
UNLIKELY = 4.0  # nats: tokens that are less likely than the best one by more than this are not kept
MANY = 256  # from this many tokens on, selecting the best is faster than sorting
MOST_CONTEXTS = 1 << 15  # in a table; the context that was learned longest ago leaves first
NONE = -1  # in place of a token

Context = tuple[int, int]
"""The last two tokens of a text, or `NONE` and the last token."""

Row = tuple[NDArray[np.int32], FloatRow]
"""The likely successors of a context, likeliest first, and their logits."""


class SuccessorTable:
    """Rows of successors by context, in the order in which they were learned."""

    def __init__(self) -> None:
        # Restored rows are places in two long arrays, because it takes long to make as many short arrays.
        self._rows: dict[Context, Row | slice] = {}
        self._ids, self._logits = np.empty(0, np.int32), np.empty(0, np.float32)

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, context: Context, row: Row | slice) -> None:
        """Store the successors of a context in place of those it had."""
        self.remove(context)
        if len(self._rows) == MOST_CONTEXTS:
            del self._rows[next(iter(self._rows))]
        self._rows[context] = row

    def remove(self, context: Context) -> None:
        """Remove the successors of a context, if it has any."""
        self._rows.pop(context, None)

    def update(self, newer: SuccessorTable) -> None:
        """Put all rows of another table."""
        for context in newer._rows:
            if (row := newer.get(*context)) is not None:
                self.put(context, row)

    def get(self, before: int, token: int) -> Row | None:
        row = self._rows.get((before, token))
        return (self._ids[row], self._logits[row]) if isinstance(row, slice) else row

    def state(self) -> dict[str, NDArray[np.generic]]:
        """Return the table as arrays."""
        rows = [row for context in self._rows if (row := self.get(*context)) is not None]
        return {
            "contexts": np.array([*self._rows], np.int32).reshape(-1, 2),
            "lengths": np.array([len(ids) for ids, _ in rows], np.uint8),
            "ids": np.concatenate([np.empty(0, np.int32), *(ids for ids, _ in rows)]),
            "logits": np.concatenate([np.empty(0, np.float16), *(logits for _, logits in rows)], dtype=np.float16),
        }

    def restore(self, state: Mapping[str, NDArray[np.generic]], n_vocab: int) -> None:
        """Put all rows of a table that `state` returned. Raises ValueError, TypeError or KeyError for other data."""
        contexts, ids, logits = state["contexts"], state["ids"], state["logits"].astype(np.float32)
        lengths = state["lengths"]
        if lengths.dtype != np.uint8 or lengths.ndim != 1 or lengths.min(initial=1) < 1:
            raise ValueError("a table of successors has other lengths")
        ends = np.cumsum([0, *lengths.tolist()])
        if contexts.shape != (len(lengths), 2) or not ids.shape == logits.shape == (ends[-1],):
            raise ValueError("a table of successors has another shape")
        for tokens, least in ((contexts, NONE), (ids, 0)):
            if tokens.dtype != np.int32 or tokens.min(initial=0) < least or tokens.max(initial=0) >= n_vocab:
                raise ValueError("a table of successors has tokens that are not in the vocabulary")
        if not np.isfinite(logits).all():
            raise ValueError("a table of successors has values that are not numbers")
        if not (np.delete(np.diff(logits), ends[1:-1] - 1) <= 0).all():
            raise ValueError("a table of successors has rows in another order")
        ends = (len(self._ids) + ends).tolist()
        self._ids, self._logits = np.concatenate([self._ids, ids]), np.concatenate([self._logits, logits])
        rows = zip(zip(*contexts.T.tolist(), strict=True), map(slice, ends, ends[1:]), strict=True)
        if not self._rows and len(lengths) <= MOST_CONTEXTS:  # at each start: much faster than to put each row
            self._rows = dict(rows)
            return
        for context, place in rows:
            self.put(context, place)


def successors_in(row: FloatRow) -> Row:
    """Return the successors in a row of logits."""
    best = (row >= row[row.argmax()] - UNLIKELY).nonzero()[0]  # max takes half as long again on cold caches
    if len(best) > MANY:
        best = largest(row, MOST)
    logits = row[best]
    order = (-logits).argsort(kind="stable")[:MOST]
    return best[order].astype(np.int32), logits[order]
