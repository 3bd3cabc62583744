"""The inputs of a model's layers, for drafters that use the target's features.

llama.cpp provides them for some architectures; its C++ header `llama-ext.h` names the functions, which llama-cpp-python
does not bind. For other architectures it ends the process.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import UsageError
from edgespec.llama.library import api

ARCHITECTURES = {"llama", "qwen3"}  # tried with test_context.py; more of llama.cpp's have it


def _function(name: str, result: Any, *arguments: Any) -> Any:
    """A function of llama.cpp by its mangled name; None if it is not there, or mangled otherwise (MSVC)."""
    found = getattr(api._lib, name, None)
    if found is not None:
        found.restype, found.argtypes = result, [ctypes.c_void_p, *arguments]
    return found


_SET = _function("_Z30llama_set_embeddings_layer_inpP13llama_contextjb", None, ctypes.c_uint32, ctypes.c_bool)
_GET = _function("_Z30llama_get_embeddings_layer_inpP13llama_contextj", ctypes.c_void_p, ctypes.c_uint32)


def check_layers(architecture: str, n_layers: int, layers: list[int]) -> None:
    """Raises UsageError where the inputs of these layers are not available."""
    if _SET is None or _GET is None or architecture not in ARCHITECTURES:
        raise UsageError(f"the inputs of layers of a {architecture} model cannot be read with this build")
    if any(not 0 <= layer < n_layers for layer in layers):
        raise UsageError(f"this model has the layers 0 to {n_layers - 1}")


def switch(context: Any, layer: int, *, on: bool) -> None:
    _SET(context, layer, on)


def inputs(context: Any, layer: int, n_tokens: int, n_embd: int) -> NDArray[np.float32]:
    """float32[n_tokens, n_embd], a view of the last pass."""
    rows: Any = (ctypes.c_float * (n_tokens * n_embd)).from_address(_GET(context, layer))
    flat: NDArray[np.float32] = np.frombuffer(rows, np.float32)
    return flat.reshape(n_tokens, n_embd)
