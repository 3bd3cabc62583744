"""Products with interleaved weights are right, and a column has the same bits alone and among others."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from llama_cpp._ctypes_extensions import load_shared_library
from llama_cpp._ggml import libggml_base_path
from numpy.typing import NDArray

from edgespec.gguf_file.header import GGML_TYPES
from edgespec.llama import kernels

pytestmark = pytest.mark.native
TYPES = {name: (type, block, size) for type, (name, block, size) in GGML_TYPES.items() if name in kernels.INTERLEAVED}
# Rows and columns that fill groups and tiles, and that do not
SHAPES = [(1, 256, 1), (16, 512, 8), (33, 768, 3), (7, 1536, 21), (40, 256, 64), (5, 2048, 9)]

Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def cpu() -> Any:
    if not kernels.have_exact_kernels():
        pytest.skip("this build interleaves no weights")
    return kernels.cpu_library()


class Traits(ctypes.Structure):
    """What ggml knows of a type, up to its function that turns n weights into floats."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("name", "block", "interleaved", "size", "is_quantized")),
        ("to_floats", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    ]


@pytest.fixture(scope="module")
def base() -> Any:
    library = load_shared_library("ggml-base", libggml_base_path)
    library.ggml_get_type_traits.restype = ctypes.POINTER(Traits)
    return library


def quantised(base: Any, name: str, rows: Floats) -> NDArray[np.uint8]:
    """Rows of weights in this type, as llama.cpp's quantiser makes them."""
    type, block, size = TYPES[name]
    packed = np.zeros((len(rows), rows.shape[1] // block * size), np.uint8)
    importance = np.ones(rows.shape[1], np.float32)  # some types need one
    where = map(ctypes.c_int64, (0, *rows.shape))
    base.ggml_quantize_chunk(ctypes.c_int(type), pointer(rows), pointer(packed), *where, pointer(importance))
    return packed


def dequantised(base: Any, name: str, packed: NDArray[np.uint8]) -> Floats:
    type, block, size = TYPES[name]
    rows = np.zeros((len(packed), packed.shape[1] // size * block), np.float32)
    if name == "F32":
        return packed.view(np.float32)
    base.ggml_get_type_traits(ctypes.c_int(type)).contents.to_floats(
        packed.ctypes.data, rows.ctypes.data, ctypes.c_int64(rows.size)
    )
    return rows


def pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def multiplied(cpu: Any, type: int, packed: NDArray[np.uint8], columns: Floats) -> Floats:
    """The products float32[columns, rows] of rows of weights with columns."""
    products = np.zeros((len(columns), len(packed)), np.float32)
    k, n_rows, n_columns = (ctypes.c_int64(n) for n in (columns.shape[1], *products.shape[::-1]))
    cpu.edgespec_multiply(
        ctypes.c_int(type), k, n_rows, pointer(packed), n_columns, pointer(columns), pointer(products)
    )
    return products


def rounded(columns: Floats) -> NDArray[np.float64]:
    """Columns whose blocks of 32 numbers are whole multiples of a scale."""
    blocks = columns.reshape(len(columns), -1, 32)
    most = np.abs(blocks).max(axis=2, keepdims=True)
    whole = np.rint(blocks * np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0))
    return np.reshape(whole.astype(np.float64) * (most / np.float32(127)), columns.shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", TYPES)
def test_products_are_right_and_columns_independent(
    cpu: Any, base: Any, name: str, shape: tuple[int, int, int]
) -> None:
    n_rows, k, n_columns = shape
    random, type = np.random.default_rng(k), TYPES[name][0]
    rows = random.standard_normal((n_rows, k)).astype(np.float32) * random.choice([0.1, 1, 5], (n_rows, 1))
    columns = random.standard_normal((n_columns, k)).astype(np.float32) * random.choice([0.1, 1, 9], (n_columns, 1))
    packed, columns = quantised(base, name, rows.astype(np.float32)), columns.astype(np.float32)
    columns[-1, :32] = 0
    products = multiplied(cpu, type, packed, columns)
    weights = dequantised(base, name, packed).astype(np.float64)
    expected = (columns.astype(np.float64) if name in ("F32", "F16", "BF16") else rounded(columns)) @ weights.T
    sizes = np.abs(columns).astype(np.float64) @ np.abs(weights.T)
    assert (np.abs(products - expected) <= 2e-6 * sizes).all()
    for first in range(0, n_columns, 5):
        alone = multiplied(cpu, type, packed, columns[first : first + 1])
        assert np.array_equal(alone[0], products[first])
    assert np.array_equal(multiplied(cpu, type, packed[-1:], columns)[:, 0], products[:, -1])
