"""Kernels for several rows have the bits of ggml's kernels for one row."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quant_shape_to_byte_shape
from llama_cpp._ctypes_extensions import load_shared_library
from llama_cpp._ggml import libggml_base_path
from numpy.typing import NDArray

from edgespec.llama import kernels
from edgespec.llama.library import build_flags

TYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"]
SHAPES = [(1, 256, 1), (7, 512, 5), (16, 2048, 8), (33, 1536, 3), (5, 768, 11), (2, 8192, 2), (9, 1024, 16)]

Bytes = NDArray[np.uint8]


class Traits(ctypes.Structure):
    """ggml_type_traits_cpu"""

    _fields_ = [
        ("from_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        (
            "vec_dot",
            ctypes.CFUNCTYPE(
                None, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
                ctypes.c_size_t, ctypes.c_int,
            ),
        ),
        ("vec_dot_type", ctypes.c_int),
        ("nrows", ctypes.c_int64),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def cpu() -> Iterator[Any]:
    """Return the CPU backend, with its own kernels switched on."""
    if not kernels.have_bounds():
        pytest.skip("this build has no kernels for several rows")
    library = kernels.cpu_library()
    library.ggml_get_type_traits_cpu.restype = ctypes.POINTER(Traits)
    library.edgespec_chunk.restype = ctypes.c_bool
    kernels.use(kernels.FAST)
    try:
        if not takes(library, "Q4_K", 256, n_columns=2):
            pytest.skip("there are no kernels for several rows for this processor")
        yield library
    finally:
        kernels.use(kernels.STOCK)


def takes(cpu: Any, name: str, k: int, n_columns: int) -> bool:
    """Return whether edgespec's kernels multiply a row of k weights of this type with so many columns."""
    zeros = np.zeros(1 << 20, np.uint8)
    nothing, distance, row = pointer(zeros), ctypes.c_size_t(2176), ctypes.c_int64(1)
    weights = nothing, distance, row
    columns = nothing, distance, ctypes.c_int64(n_columns)
    type = ctypes.c_int(GGMLQuantizationType[name])
    return bool(cpu.edgespec_chunk(type, ctypes.c_int64(k), *weights, *columns, nothing, distance))


def is_left_to_ggml(name: str, n_columns: int) -> bool:
    """Return whether ggml computes this type as fast, or in an order that edgespec's kernels do not follow."""
    if "NEON = 1" in build_flags():
        return n_columns == 1 or (name == "Q2_K" and "SVE = 1" in build_flags())
    return n_columns == 1 and name == "Q4_K"


def traits(cpu: Any, type: int) -> Traits:
    return cpu.ggml_get_type_traits_cpu(type).contents  # type: ignore[no-any-return]


def quantised(type: GGMLQuantizationType, rows: NDArray[np.float32]) -> Bytes:
    """Return rows of weights in this type, as llama.cpp's quantiser makes them."""
    base = load_shared_library("ggml-base", libggml_base_path)
    packed = np.zeros(quant_shape_to_byte_shape(rows.shape, type), np.uint8)
    base.ggml_quantize_chunk(
        ctypes.c_int(type), pointer(rows), pointer(packed), *map(ctypes.c_int64, (0, *rows.shape)), None
    )
    return packed


def activations(cpu: Any, type: int, columns: NDArray[np.float32]) -> Bytes:
    """Return columns in the type with which weights of this type are multiplied."""
    packed = np.zeros(quant_shape_to_byte_shape(columns.shape, GGMLQuantizationType(type)), np.uint8)
    for column, out in zip(columns, packed, strict=True):
        traits(cpu, type).from_float(column.ctypes.data, out.ctypes.data, column.size)
    return packed


def pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", TYPES)
def test_several_rows_have_the_bits_of_single_ones(cpu: Any, name: str, shape: tuple[int, int, int]) -> None:
    n_rows, k, n_columns = shape
    random, type = np.random.default_rng(k), GGMLQuantizationType[name]
    rows = random.standard_normal((n_rows, k)).astype(np.float32) * random.choice([0.1, 1, 5], (n_rows, 1))
    weights = quantised(type, rows.astype(np.float32))
    single, several = np.zeros((n_columns, n_rows), np.float32), np.zeros((n_columns, n_rows), np.float32)
    known = traits(cpu, type)
    columns = activations(cpu, known.vec_dot_type, 3 * random.standard_normal((n_columns, k)).astype(np.float32))
    for i in range(n_columns):
        for j in range(n_rows):
            place = single[i, j:].ctypes.data
            known.vec_dot(k, place, 0, weights[j].ctypes.data, 0, columns[i].ctypes.data, 0, 1)
    is_done = cpu.edgespec_chunk(
        ctypes.c_int(type), ctypes.c_int64(k),
        pointer(weights), ctypes.c_size_t(weights.shape[1]), ctypes.c_int64(n_rows),
        pointer(columns), ctypes.c_size_t(columns.shape[1]), ctypes.c_int64(n_columns),
        pointer(several), ctypes.c_size_t(several.strides[0]),
    )  # fmt: skip
    assert is_done != is_left_to_ggml(name, n_columns)
    assert not is_done or (several.view(np.uint32) == single.view(np.uint32)).all()
    expected = 3 * np.abs(rows).max()
    assert 0 < np.abs(single).max() < expected * k  # they are products, not zeros


@pytest.mark.parametrize(
    ("name", "k", "n_columns"),
    [
        ("IQ4_NL", 96, 1),
        ("IQ4_NL", 96, 2),
        ("Q8_0", 32 * 1025, 2),
        ("F16", 256, 2),
        ("IQ3_S", 256, 2),
        ("Q8_0", 2048, 1),
    ],
)
def test_what_the_kernels_do_not_do_is_left_to_ggml(cpu: Any, name: str, k: int, n_columns: int) -> None:
    assert not takes(cpu, name, k, n_columns)


@pytest.mark.parametrize(
    ("flags", "alike"),
    [
        ("SSE3 = 1 | AVX = 1", {"Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"}),  # nothing is repacked
        ("AVX2 = 1 | FMA = 1", {"Q4_0", "Q8_0", "Q5_K", "Q6_K"}),
        ("NEON = 1 | ARM_FMA = 1", {"Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4"}),
        ("NEON = 1 | ARM_FMA = 1 | FP16_VA = 1 | DOTPROD = 1", {"Q4_0", "Q4_K", "Q5_K", "IQ4_NL", "MXFP4"}),
        ("NEON = 1 | MATMUL_INT8 = 1 | DOTPROD = 1", {"Q4_0", "Q8_0", "IQ4_NL", "MXFP4"}),
        ("NEON = 1 | MATMUL_INT8 = 1 | SVE = 1 | DOTPROD = 1 | SVE_CNT = 16", {"Q4_0", "Q8_0", "IQ4_NL", "MXFP4"}),
    ],
)
def test_weights_are_repacked_only_where_several_rows_get_the_bits_of_single_ones(
    monkeypatch: pytest.MonkeyPatch, flags: str, alike: set[str]
) -> None:
    for module in ("kernels", "library"):
        monkeypatch.setattr(f"edgespec.llama.{module}.build_flags", lambda: f"CPU : {flags} | REPACK = 1 | ")
    types = ("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4")
    assert {name for name in types if not kernels.repacking_differs([name])} == alike
    assert kernels.repacking_differs(types) == (len(alike) < len(types))
    assert not kernels.repacking_differs(["F16", "Q4_1"])
