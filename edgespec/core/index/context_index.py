"""An index of a fixed text, which finds where the last tokens of another text occur and what followed them.

The index is a suffix array of the reversed text: all positions, sorted by the tokens before them, nearest token first.
Positions with the same preceding tokens are neighbours, so the longest match is found by bisection. (He et al., REST,
arXiv 2311.08252, index forwards and try one length after the other.) Prefix doubling (Manber and Myers 1993) sorts by
at most `DEPTH` tokens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.core.index.continuation import BETWEEN, Trie
from edgespec.core.prefix import common_prefix

LARGEST = 1 << 24  # larger numbers are marks, not tokens, and compare as equal
MATCHES, BEHIND = 32, 12  # most matches to look at, and tokens to read after each
DEPTH = 16  # tokens by which positions are sorted, a power of two

Tokens = NDArray[np.uint32]


def order_of(tokens: Tokens, progress: Callable[[float], None] = lambda done: None) -> Tokens:
    """Return positions after each of the uint32[n] `tokens`, sorted by up to `DEPTH` tokens before them, uint32[n]."""
    n = len(tokens)
    if not n:
        return np.zeros(0, np.uint32)
    rank = np.minimum(tokens, LARGEST).astype(np.int64) + 1  # 0 is before the text
    length, order = 1, np.arange(n)
    while length < DEPTH:
        key = rank * (int(rank.max()) + 1)
        key[length:] += rank[:-length]
        order = np.argsort(key, kind="stable")
        key = key[order]
        rank[order] = np.cumsum(np.concatenate([[True], key[1:] != key[:-1]]))
        length *= 2
        progress(np.log2(length) / np.log2(DEPTH))
    return (order + 1).astype(np.uint32)


class ContextIndex:
    """The index. `tokens` and `order` may be on disk (`numpy.memmap`), since a search reads a few dozen positions."""

    def __init__(self, tokens: Tokens, order: Tokens) -> None:
        self.tokens, self.order = np.asarray(tokens), np.asarray(order)  # a memmap's own indexing is slow

    def search(self, text: Sequence[int]) -> tuple[int, range]:
        """Find the longest match of the last tokens of `text`, up to `DEPTH` tokens.

        Returns its length and the range of matching positions in `order`, for `behind`.
        """
        wanted = list(text[: -DEPTH - 1 : -1])
        at = bisect_left(self.order, wanted, key=self._before)
        near = [self._before(self.order[place]) for place in (at - 1, at) if 0 <= place < len(self.order)]
        length = max((common_prefix(wanted, before) for before in near), default=0)
        if not length:
            return 0, range(0)
        run = wanted[:length]

        def cut(place: int) -> list[int]:
            return self._before(place)[:length]

        first = bisect_left(self.order, run, hi=min(at + 1, len(self.order)), key=cut)
        return length, range(first, bisect_right(self.order, run, lo=max(first, at - 1), key=cut))

    def places(self, text: Sequence[int]) -> Iterator[Trie]:
        """Yield the place after the last tokens of `text`, if they occur."""
        length, found = self.search(text)
        if length:
            runs = self.behind(found, BEHIND, MATCHES)
            yield Trie(length, (run[: run.index(BETWEEN)] if BETWEEN in run else run for run in runs))

    def behind(self, found: range, length: int, most: int) -> list[list[int]]:
        """Return `length` tokens after each position of `search`, or after `most` evenly spaced positions."""
        step = max(1, len(found) // most)
        places = [int(place) for place in self.order[found.start : found.stop : step]]
        return [self.tokens[place : place + length].tolist() for place in places[:most]]

    def _before(self, place: int) -> list[int]:
        """Return the tokens before a position, nearest first."""
        place = int(place)
        before: list[int] = self.tokens[max(0, place - DEPTH) : place][::-1].tolist()
        return before
