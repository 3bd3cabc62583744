"""The tokens of a forward pass as llama.cpp reads them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.llama.library import api


class NativeBatch:
    """The native batch over numpy arrays, so that filling it takes no loop over ctypes elements."""

    def __init__(self, capacity: int, sequences: int) -> None:
        self.capacity = capacity
        self.all_outputs = False
        self.tokens = np.zeros(capacity, np.int32)
        self.positions = np.zeros(capacity, np.int32)
        self.n_sequences = np.ones(capacity, np.int32)
        self.sequences = np.zeros((capacity, sequences), np.int32)
        self.outputs = np.zeros(capacity, np.int8)
        rows = self.sequences.ctypes.data + np.arange(capacity, dtype=np.uintp) * self.sequences.strides[0]
        self._row_pointers = np.ascontiguousarray(rows)
        self.native = api.llama_batch(
            n_tokens=0,
            token=pointer(self.tokens, api.llama_token),
            embd=None,
            pos=pointer(self.positions, api.llama_pos),
            n_seq_id=pointer(self.n_sequences, ctypes.c_int32),
            seq_id=pointer(self._row_pointers, ctypes.POINTER(api.llama_seq_id)),
            logits=pointer(self.outputs, ctypes.c_int8),
        )

    def fill(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequence_ids: Sequence[tuple[int, ...]],
        wanted: Sequence[bool],
    ) -> int:
        """Write one batch and return how many rows it asks for."""
        n = len(tokens)
        if not 0 < n <= self.capacity:
            raise ValueError(f"a batch holds 1 to {self.capacity} tokens, not {n}")
        self.native.n_tokens = n
        self.tokens[:n] = tokens
        self.positions[:n] = positions
        self.outputs[:n] = wanted
        for index, ids in enumerate(sequence_ids):
            self.n_sequences[index] = len(ids)
            self.sequences[index, : len(ids)] = ids
        return n if self.all_outputs else int(self.outputs[:n].sum())


def pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
