"""Products of a matrix and a vector by ggml's kernels, for networks that are too small to be a model of llama.cpp."""

from __future__ import annotations

import ctypes
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from edgespec.gguf_file.writing import stored
from edgespec.llama.library import cpu_function, ggml_function

LARGE = 2**24  # numbers of a matrix from which several threads pay off
_pointer, _size = ctypes.c_void_p, ctypes.c_size_t


class _Params(ctypes.Structure):
    """`ggml_init_params`."""

    _fields_ = (("mem_size", _size), ("mem_buffer", _pointer), ("no_alloc", ctypes.c_bool))


class Product:
    """A matrix float32[M, D], kept as Q8_0; calling it with float32[D] returns the product float32[M].

    Q8_0 takes a quarter of the memory of float32, and the memory bandwidth limits the speed.
    """

    def __init__(self, matrix: NDArray[np.float32], threads: int) -> None:
        data, kind = stored(matrix, "Q8_0")
        rows, width = matrix.shape
        tensors = 8 * ggml_function("ggml_tensor_overhead", _size)()
        size = data.nbytes + 4 * (rows + width) + tensors + ggml_function("ggml_graph_overhead", _size)()
        context = ggml_function("ggml_init", _pointer, _Params)(_Params(size, None, False))
        finalize(self, ggml_function("ggml_free", None, _pointer), context)
        new = ggml_function("ggml_new_tensor_2d", _pointer, _pointer, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        weights, vector = new(context, kind, width, rows), new(context, 0, width, 1)
        product = ggml_function("ggml_mul_mat", _pointer, *[_pointer] * 3)(context, weights, vector)
        self._graph = ggml_function("ggml_new_graph", _pointer, _pointer)(context)
        ggml_function("ggml_build_forward_expand", None, _pointer, _pointer)(self._graph, product)
        _array(weights, data.nbytes, np.uint8)[:] = data.ravel().view(np.uint8)
        self._vector, self._product = _array(vector, 4 * width, np.float32), _array(product, 4 * rows, np.float32)
        self._backend = ggml_function("ggml_backend_init_by_type", _pointer, ctypes.c_int, _pointer)(0, None)
        finalize(self, ggml_function("ggml_backend_free", None, _pointer), self._backend)
        set_threads = cpu_function("ggml_backend_set_n_threads", None, _pointer, ctypes.c_int)
        set_threads(self._backend, threads if matrix.size > LARGE else 1)
        self._compute = ggml_function("ggml_backend_graph_compute", ctypes.c_int, _pointer, _pointer)

    def __call__(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        self._vector[:] = vector
        self._compute(self._backend, self._graph)
        return self._product.copy()


def _array(tensor: Any, n_bytes: int, type: Any) -> NDArray[Any]:
    """Return a view of a tensor's data."""
    address = ggml_function("ggml_get_data", _pointer, _pointer)(tensor)
    memory: Any = (ctypes.c_uint8 * n_bytes).from_address(address)
    return np.frombuffer(memory, type)
