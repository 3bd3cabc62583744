"""The output of an MTP block for some tokens only: those that the model writes often.

All rows of a vocabulary of 250,000 tokens cost three times as much as the block itself. The tokens that a text has are
added, since texts repeat their words.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from edgespec.core.features import TRIMMED_ROWS
from edgespec.core.sampling import FloatRow
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.weights import stored_rows
from edgespec.llama.graph import Processor
from edgespec.llama.product import Product

MOST_ADDED = 2**12  # tokens that are kept in a matrix of their own, which is made again for each new text


class TrimmedOutput:
    """Computes the logits of some tokens from a block's state; all others are minus infinity.

    `name` is the output matrix in the model's file, and `counts` says how often the model wrote each token, int64[V]:
    the most frequent ones are kept, and among equals those with the lowest ids, which were merged first.
    """

    def __init__(self, header: Header, name: str, counts: NDArray[np.int64], processor: Processor) -> None:
        import gguf

        self._rows, self._processor = stored_rows(header, name), processor
        info = header.tensors[name]
        self._kind, self._width = gguf.GGMLQuantizationType[info.type], info.shape[0]
        order = np.lexsort((np.arange(len(counts)), -counts))
        frequent = np.sort(order[:TRIMMED_ROWS])
        self._is_frequent = np.zeros(len(counts), bool)
        self._is_frequent[frequent] = True
        self._parts = [self._part(frequent)]
        self._added: NDArray[np.int64] = np.empty(0, np.int64)  # those of the last text first

    def cover(self, tokens: Iterable[int]) -> None:
        """Have these tokens too, in place of those of the oldest texts."""
        found = np.unique(np.fromiter(tokens, np.int64))
        found = found[(found >= 0) & (found < len(self._is_frequent))]
        rare = found[~self._is_frequent[found]]
        if not np.isin(rare, self._added).all():
            others = self._added[~np.isin(self._added, rare)]
            self._added = np.concatenate([rare, others])[:MOST_ADDED]
            self._parts[1:] = [self._part(self._added)]

    def __call__(self, state: FloatRow) -> FloatRow:
        """Return float32[V] after a state, float32[D]."""
        logits: FloatRow = np.full(len(self._is_frequent), -np.inf, np.float32)
        for ids, product in self._parts:
            logits[ids] = product(state)
        return logits

    def _part(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], Product]:
        return ids, Product(self._rows[ids], self._kind, self._width, self._processor)
