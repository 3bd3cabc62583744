"""The tokens of a forward pass as llama.cpp reads them, and what it returns in addition to logits.

Some drafters read the inputs of layers and the final states. llama.cpp's C++ header `llama-ext.h` declares the
functions for them; llama-cpp-python binds some. If asked about an architecture that does not provide the inputs of its
layers, llama.cpp ends the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import UsageError
from edgespec.gguf_file.head_check import GIVE_LAYERS
from edgespec.llama.library import api

if TYPE_CHECKING:
    from ctypes import _CDataType


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
        self.native: ctypes.Structure = api.llama_batch(
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
        return n if self.all_outputs else sum(wanted)

    def of_rows(
        self, rows: NDArray[np.float32], positions: NDArray[np.int32], sequence: int, *, wanted: bool
    ) -> ctypes.Structure:
        """Return a native batch of rows, float32[n, D], in place of tokens, valid until the next one; `wanted` asks for
        the logits after the last one. `positions` are int32[4, n] with M-RoPE, else int32[1, n]."""
        n = len(rows)
        self._rows, self._places = np.ascontiguousarray(rows), np.ascontiguousarray(positions)
        self.n_sequences[:n], self.sequences[:n, 0], self.outputs[:n] = 1, sequence, False
        self.outputs[n - 1] = wanted
        batch: ctypes.Structure = api.llama_batch(
            n_tokens=n,
            token=None,
            embd=pointer(self._rows, ctypes.c_float),
            pos=pointer(self._places, api.llama_pos),
            n_seq_id=self.native.n_seq_id,
            seq_id=self.native.seq_id,
            logits=self.native.logits,
        )
        return batch


def pointer(array: NDArray[np.generic], kind: type[_CDataType]) -> ctypes._Pointer[_CDataType]:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


# --- layer inputs and states ------------------------------------------------------------------------------------------


def _function(name: str, itanium: str, msvc: str, result: type[_CDataType] | None, *arguments: type[_CDataType]) -> Any:
    """Return a function of llama.cpp that takes a context first; None if this build does not have it. C++ compilers
    add the types to a name: `itanium` is the end of the name, and `msvc` has the types of result and arguments."""
    returns, _, takes = msvc.partition(" ")
    names = f"_Z{len(name)}{name}P13llama_context{itanium}", f"?{name}@@YA{returns}PEAUllama_context@@{takes}@Z"
    found = next((function for each in names if (function := getattr(api._lib, each, None)) is not None), None)
    if found is not None:
        found.restype, found.argtypes = result, [ctypes.c_void_p, *arguments]
    return found


_bool, _int, _uint32, _pointer = ctypes.c_bool, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p
_SET_LAYER = _function("llama_set_embeddings_layer_inp", "jb", "X I_N", None, _uint32, _bool)
_GET_LAYER = _function("llama_get_embeddings_layer_inp", "j", "PEAM I", _pointer, _uint32)
_SET_NEXTN = _function("llama_set_embeddings_nextn", "bb", "X _N1", None, _bool, _bool)
_GET_NEXTN = _function("llama_get_embeddings_nextn", "", "PEAM", _pointer)
_SET_BLOCK = _function("llama_set_nextn_layer_offset", "i", "X H", None, _int)


def check_layers(architecture: str, n_layers: int, layers: list[int]) -> None:
    """Raise UsageError if the inputs of these layers are not available."""
    if _SET_LAYER is None or _GET_LAYER is None or architecture not in GIVE_LAYERS:
        raise UsageError(f"the inputs of layers of a {architecture} model cannot be read with this build")
    if any(not 0 <= layer < n_layers for layer in layers):
        raise UsageError(f"this model has the layers 0 to {n_layers - 1}")


def switch(context: int, layer: int, *, on: bool) -> None:
    _SET_LAYER(context, layer, on)


def inputs(context: int, layer: int, n_tokens: int, n_embd: int) -> NDArray[np.float32]:
    """Return float32[n_tokens, n_embd], a view of the last pass."""
    return _rows(_GET_LAYER(context, layer), n_tokens, n_embd)


def switch_states(context: int, *, on: bool = True, wanted_only: bool) -> None:
    """Let a context keep the states from which logits are computed: of all tokens, or of those whose row is wanted.
    Raises UsageError if this build cannot."""
    if _SET_NEXTN is None or _GET_NEXTN is None:
        raise UsageError("draft heads do not work with this build of llama.cpp")
    _SET_NEXTN(context, on, wanted_only)


def can_choose_block() -> bool:
    """Return whether this build can run other MTP blocks than the first one."""
    return _SET_BLOCK is not None


def use_block(context: int, block: int) -> None:
    """Choose the MTP block that a context runs."""
    _SET_BLOCK(context, block)


def states(context: int, n_rows: int, n_embd: int) -> NDArray[np.float32]:
    """Return float32[n_rows, n_embd], a view of the last pass or encoding."""
    return _rows(_GET_NEXTN(context), n_rows, n_embd)


def _rows(address: int, n_rows: int, n_embd: int) -> NDArray[np.float32]:
    rows: Any = (ctypes.c_float * (n_rows * n_embd)).from_address(address)
    flat: NDArray[np.float32] = np.frombuffer(rows, np.float32)
    return flat.reshape(n_rows, n_embd)


def row(pointer: ctypes._Pointer[ctypes.c_float], array_type: Any) -> NDArray[np.float32]:
    """Return the row of floats at a native pointer. Raises ValueError if there is none."""
    if not pointer:
        raise ValueError("no logits were requested for this batch index")
    # Five times as fast as numpy.ctypeslib.as_array; this runs for every token.
    return np.frombuffer(array_type.from_address(ctypes.addressof(pointer.contents)), np.float32)
