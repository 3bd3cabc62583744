"""A context that reads texts and gives one vector or score for each."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.core.batch import Batch
from edgespec.gguf_file.pooling import RANK
from edgespec.llama.adapters import Adapters
from edgespec.llama.batch import row
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.library import api
from edgespec.llama.model import Model

Part = tuple[Sequence[int], int]
"""Tokens of a text, and the position of the first of them."""


class PooledContext(Context):
    """A context whose parameters have a pooling (`gguf_file/pooling.py`). Each sequence and each branch can read a
    text."""

    def __init__(self, model: Model, params: ContextParams, *, adapters: Adapters | None = None) -> None:
        super().__init__(model, params, adapters=adapters)
        self.n_texts = self.sequences + len(self._branches)
        n_values = api.llama_model_n_cls_out(model.handle) if params.pooling == RANK else model.n_embd_out
        self._pooled_type = ctypes.c_float * n_values

    def read(self, parts: Sequence[Part], ends: bool = True) -> list[NDArray[np.float32]]:
        """Read parts of different texts in one pass. If the texts end with them, return the row of each, and forget
        the texts. Raises as `decode`."""
        batch = Batch.empty()
        for sequence, (tokens, position) in enumerate(parts):
            batch.add(tokens, position, (sequence,), wanted=True)
        # Every token must be an output. Switching that off before the end would save time, but llama.cpp's graph for
        # LFM2 then has more operations than its buffers were made for.
        self.decode(batch.tokens, batch.positions, batch.sequence_ids, [True] * batch.size)
        if not ends:
            return []
        rows = [self._pooled(sequence) for sequence in range(len(parts))]
        self.clear()
        return rows

    def clear(self) -> None:
        """Forget all texts."""
        for sequence in range(self.n_texts):
            self.forget(sequence)

    def _pooled(self, sequence: int) -> NDArray[np.float32]:
        return row(api.llama_get_embeddings_seq(self._handle, sequence), self._pooled_type).copy()
