"""Graphs of ggml's operations on the CPU, for networks that are too small to be a model of llama.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import finalize as finalizer

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import OutOfMemoryError
from edgespec.gguf_file.writing import stored
from edgespec.llama.library import cpu_function, ggml_function
from edgespec.llama.threads import free_threads, new_threads

if TYPE_CHECKING:
    from _ctypes import CFuncPtr
    from ctypes import _CDataType

F32, F16, I32, I64 = 0, 1, 26, 27  # ggml_type
_NUMPY = {F32: np.float32, F16: np.float16, I32: np.int32, I64: np.int64}
MOST_NODES = 128  # of a graph that says nothing else
_pointer, _size = ctypes.c_void_p, ctypes.c_size_t
_KINDS: dict[str, type[_CDataType]] = {
    "p": _pointer,
    "f": ctypes.c_float,
    "i": ctypes.c_int,
    "l": ctypes.c_int64,
    "s": _size,
}
# The operations and their arguments after the context: p is a tensor, the others are numbers
_OPERATIONS = {
    "add": "pp",
    "concat": "ppi",
    "flash_attn_ext": "ppppfff",
    "get_rows": "pp",
    "mul": "pp",
    "mul_mat": "pp",
    "new_tensor_1d": "il",
    "new_tensor_2d": "ill",
    "permute": "piiii",
    "reshape_2d": "pll",
    "reshape_3d": "plll",
    "rms_norm": "pf",
    "rope_ext": "pppiiiffffff",
    "set_rows": "ppp",
    "swiglu_split": "pp",
    "view_3d": "plllsss",
}


def finalize(owner: object, function: Callable[[int], object], native: int) -> None:
    """Free something native together with its owner; at the end of the process the system does, as a thread may still
    use it."""
    finalizer(owner, function, native).atexit = False


class _Params(ctypes.Structure):
    """`ggml_init_params`."""

    _fields_ = (("mem_size", _size), ("mem_buffer", _pointer), ("no_alloc", ctypes.c_bool))


class Processor:
    """The CPU backend of ggml with a number of threads."""

    def __init__(self, threads: int) -> None:
        self._backend = ggml_function("ggml_backend_init_by_type", _pointer, ctypes.c_int, _pointer)(0, None)
        finalize(self, ggml_function("ggml_backend_free", None, _pointer), self._backend)
        cpu_function("ggml_backend_set_n_threads", None, _pointer, ctypes.c_int)(self._backend, threads)
        self._pool = new_threads(threads)
        if self._pool is not None:
            cpu_function("ggml_backend_cpu_set_threadpool", None, _pointer, _pointer)(self._backend, self._pool)
            finalize(self, free_threads, self._pool)
        self._compute = ggml_function("ggml_backend_graph_compute", ctypes.c_int, _pointer, _pointer)

    def compute(self, graph: int) -> None:
        self._compute(self._backend, graph)


class Tensors:
    """At most `most` tensors in memory that is freed together with this object."""

    def __init__(self, most: int = MOST_NODES) -> None:
        self._most = most
        overhead = most * ggml_function("ggml_tensor_overhead", _size)()
        overhead += ggml_function("ggml_graph_overhead_custom", _size, _size, ctypes.c_bool)(most, False)
        self.context = ggml_function("ggml_init", _pointer, _Params)(_Params(overhead, None, True))
        finalize(self, ggml_function("ggml_free", None, _pointer), self.context)

    def op(self, name: str, *arguments: float | None) -> int:
        """Return the tensor that an operation of ggml gives; None is an optional tensor that is left out."""
        tensor: int = _operation(name)(self.context, *arguments)
        return tensor

    def new(self, type: int, *shape: int) -> int:
        """Return a new tensor; the row length comes first."""
        return self.op(f"new_tensor_{len(shape)}d", type, *shape)

    def allocate(self, *, interleaved: bool = False) -> None:
        """Give all tensors memory. `interleaved` matrices are kept in the layout of this build's kernels, if it has
        some: `fill` them, and use them only in products. Raises OutOfMemoryError."""
        buffer = _interleaved_type() if interleaved else None
        buffer = buffer or ggml_function("ggml_backend_cpu_buffer_type", _pointer)()
        of_type = ggml_function("ggml_backend_alloc_ctx_tensors_from_buft", _pointer, _pointer, _pointer)
        allocated = of_type(self.context, buffer)
        if not allocated:
            raise OutOfMemoryError("there is no memory for a draft head's cache or work")
        finalize(self, ggml_function("ggml_backend_buffer_free", None, _pointer), allocated)

    def graph(self, *results: int) -> int:
        """Return a graph that computes these tensors, in this order."""
        make = ggml_function("ggml_new_graph_custom", _pointer, _pointer, _size, ctypes.c_bool)
        expand = ggml_function("ggml_build_forward_expand", None, _pointer, _pointer)
        graph: int = make(self.context, self._most, False)
        for result in results:
            expand(graph, result)
        return graph


def fill(tensor: int, data: NDArray[np.generic]) -> None:
    """Copy the stored bytes of a matrix into a tensor, which rearranges them if it is interleaved."""
    data = np.ascontiguousarray(data)
    ggml_function("ggml_backend_tensor_set", None, _pointer, _pointer, _size, _size)(
        tensor, data.ctypes.data, 0, data.nbytes
    )


def view(tensor: int, type: int, *shape: int) -> NDArray[Any]:
    """Return a tensor's numbers as an array, whose row length comes last."""
    address = ggml_function("ggml_get_data", _pointer, _pointer)(tensor)
    n_bytes = int(np.prod(shape)) * np.dtype(_NUMPY[type]).itemsize
    memory: Any = (ctypes.c_uint8 * n_bytes).from_address(address)
    return np.frombuffer(memory, _NUMPY[type]).reshape(shape)


@cache
def _operation(name: str) -> CFuncPtr:
    kinds = [_KINDS[kind] for kind in _OPERATIONS[name]]
    return ggml_function(f"ggml_{name}", _pointer, _pointer, *kinds)


@cache
def _interleaved_type() -> int | None:
    """Return the buffer type of interleaved weights, or None."""
    device = ggml_function("ggml_backend_dev_by_type", _pointer, ctypes.c_int)(0)
    list_types = cpu_function("ggml_backend_dev_get_extra_bufts", ctypes.POINTER(_pointer), _pointer)
    types: Sequence[int | None] = list_types(device)
    name = ggml_function("ggml_backend_buft_name", ctypes.c_char_p, _pointer)
    found = (types[place] for place in range(8)) if types else ()
    for each in found:
        if not each:
            break
        if name(each) == b"CPU_INTERLEAVED":
            return each
    return None


# --- products ---------------------------------------------------------------------------------------------------------

# Products of a matrix and a vector by ggml's kernels, for networks that are too small to be a model of llama.cpp.


class Product:
    """A matrix [M, D], stored in a type of ggml; calling it with float32[D] returns the product float32[M].

    `data` are its rows, uint8[M, bytes of a row], of D = `width` numbers in the type `kind`.
    """

    def __init__(self, data: NDArray[np.generic], kind: int, width: int, processor: Processor) -> None:
        rows = len(data)
        self._weights, self._graph, self._processor = Tensors(), Tensors(), processor
        weights = self._weights.new(kind, width, rows)
        self._weights.allocate(interleaved=True)
        fill(weights, data)
        vector = self._graph.new(F32, width)
        product = self._graph.op("mul_mat", weights, vector)
        self._graph.allocate()
        self._native = self._graph.graph(product)
        self._vector, self._product = view(vector, F32, width), view(product, F32, rows)

    @classmethod
    def of(cls, matrix: NDArray[np.float32], processor: Processor) -> Product:
        """Return the product with a matrix float32[M, D], kept as Q8_0.

        This takes a quarter of the memory, whose bandwidth limits the speed.
        """
        data, kind = stored(matrix, "Q8_0")
        return cls(data, kind, matrix.shape[1], processor)

    def __call__(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        self._vector[:] = vector
        self._processor.compute(self._native)
        return self._product.copy()
