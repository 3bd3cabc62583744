"""Kernels for several rows have the bits of ggml's kernels for one row."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quant_shape_to_byte_shape
from llama_cpp._ctypes_extensions import load_shared_library
from llama_cpp._ggml import libggml_base_path
from numpy.typing import NDArray
from tiny_gguf import write_model

from edgespec.llama import kernels
from edgespec.llama.context import Context
from edgespec.llama.library import build_flags
from edgespec.llama.model import Model
from edgespec.settings import Attention

TYPES = [
    "F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS",
]  # fmt: skip
SHAPES = [(1, 256, 1), (7, 512, 5), (16, 2048, 8), (33, 1536, 3), (5, 768, 11), (2, 8192, 2), (9, 1024, 16)]
CASES = [(name, shape) for name in TYPES for shape in SHAPES]
CASES += [("F16", shape) for shape in [(6, 80, 3), (5, 1312, 4), (3, 4128, 2)]]  # rows that do not fill all vectors
# On x86, columns of so many blocks are multiplied two at a time
CASES += [(name, (2, 171 * 256, 5)) for name in ("Q2_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")]

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
    kernels.use(kernels.fast_bounds([]))
    try:
        if not takes(library, "Q4_K", 256):
            pytest.skip("there are no kernels for several rows for this processor")
        yield library
    finally:
        kernels.use(kernels.STOCK)


def multiplied(cpu: Any, type: int, k: int, rows: Bytes, columns: Bytes) -> NDArray[np.float32] | None:
    """Return the products of rows of k weights with columns, float32[columns, rows], or None if edgespec's kernels do
    not take them."""
    products = np.zeros((len(columns), len(rows)), np.float32)
    is_done = cpu.edgespec_chunk(
        ctypes.c_int(type), ctypes.c_int64(k), pointer(rows), ctypes.c_size_t(rows.strides[0]),
        ctypes.c_int64(len(rows)), pointers(columns), ctypes.c_int64(len(columns)), pointers(products),
    )  # fmt: skip
    return products if is_done else None


def takes(cpu: Any, name: str, k: int) -> bool:
    """Return whether edgespec's kernels multiply rows of k weights of this type."""
    nothing = np.zeros((2, 4 * k), np.uint8)
    return multiplied(cpu, GGMLQuantizationType[name], k, nothing, nothing) is not None


def is_left_to_ggml(name: str) -> bool:
    """Return whether ggml adds up this type in the order of the processor's vectors, which is not followed."""
    flags = build_flags()
    is_long = "SVE_CNT = 64" in flags or "SVE_CNT = 128" in flags
    return "SVE = 1" in flags and (name in ("Q2_K", "F16") or (name in ("Q8_0", "Q4_0") and is_long))


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


def pointers(rows: NDArray[Any]) -> ctypes.Array[ctypes.c_void_p]:
    """Return pointers to the rows of an array."""
    return (ctypes.c_void_p * len(rows))(*(row.ctypes.data for row in rows))


@pytest.mark.parametrize(("name", "shape"), CASES, ids=str)
def test_several_rows_have_the_bits_of_single_ones(cpu: Any, name: str, shape: tuple[int, int, int]) -> None:
    n_rows, k, n_columns = shape
    random, type = np.random.default_rng(k), GGMLQuantizationType[name]
    rows = random.standard_normal((n_rows, k)).astype(np.float32) * random.choice([0.1, 1, 5], (n_rows, 1))
    weights = quantised(type, rows.astype(np.float32))
    single = np.zeros((n_columns, n_rows), np.float32)
    known = traits(cpu, type)
    columns = activations(cpu, known.vec_dot_type, 3 * random.standard_normal((n_columns, k)).astype(np.float32))
    for i in range(n_columns):
        for j in range(n_rows):
            place = single[i, j:].ctypes.data
            known.vec_dot(k, place, 0, weights[j].ctypes.data, 0, columns[i].ctypes.data, 0, 1)
    several = multiplied(cpu, type, k, weights, columns)
    assert (several is None) == is_left_to_ggml(name)
    assert several is None or (several.view(np.uint32) == single.view(np.uint32)).all()
    expected = 3 * np.abs(rows).max()
    assert 0 < np.abs(single).max() < expected * k  # they are products, not zeros


@pytest.mark.parametrize("threads", [1, 12])  # more threads than some products have chunks
@pytest.mark.parametrize(
    ("architecture", "type", "options"),
    [
        ("llama", "F16", {}),  # heads that share keys
        ("llama", "Q8_0", {"cache_type_k": "q8_0"}),
        ("llama", "Q4_1", {"sequences": 2, "streams": True}),
        ("qwen2moe", "Q8_0", {}),  # experts
        ("qwen2moe", "F16", {}),
    ],
)
def test_passes_have_the_bits_of_passes_over_single_tokens_with_ggmls_kernels(
    cpu: Any, tmp_path: Path, architecture: str, type: str, options: dict[str, Any], threads: int
) -> None:
    path, n_read, n = write_model(tmp_path / "tiny.gguf", architecture, width=256, type=type), 1100, 40
    with (
        Model(path) as model,
        Context(
            model, n_ctx=1280, max_outputs=16, threads=threads, flash_attention="off", exact=True, **options
        ) as context,
    ):
        own, sequences = context.bounds, range(context.sequences)
        tokens = np.random.default_rng(1).integers(model.n_vocab, size=n_read + n).tolist()
        for sequence in sequences:
            for start in range(0, n_read, 220):
                places = range(start, start + 220)
                context.decode(tokens[start : start + 220], places, [(sequence,)] * 220, [False] * 220)
        context.bounds = own._replace(own=0)
        single = []
        for place in range(n_read, n_read + n):
            context.decode(tokens[place : place + 1], [place], [(0,)], [True])
            single.append(context.logits(0).copy())
        context.bounds = own
        context.truncate(0, n_read)
        for width in (1, 2, 5, 8):
            for start in range(0, n, width):
                places = range(n_read + start, n_read + start + width)
                ids = [(sequence,) for sequence in sequences for _ in places]
                context.decode(
                    tokens[places[0] : places[-1] + 1] * len(sequences),
                    [*places] * len(sequences),
                    ids,
                    [True] * len(ids),
                )
                for row in range(len(ids)):
                    assert np.array_equal(context.logits(row), single[start + row % width]), (width, start, row)
            for sequence in sequences:
                context.truncate(sequence, n_read)


ON_X86 = pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="ARM has no such limit")


@pytest.mark.parametrize(
    ("name", "k"),
    [("IQ4_NL", 96), ("Q8_0", 32 * 1025), ("IQ3_S", 256), pytest.param("Q4_K", 513 * 256, marks=ON_X86)],
)
def test_what_the_kernels_do_not_do_is_left_to_ggml(cpu: Any, name: str, k: int) -> None:
    assert not takes(cpu, name, k)


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
    monkeypatch.setattr(kernels, "build_flags", lambda: f"CPU : {flags} | REPACK = 1 | ")
    monkeypatch.setattr(kernels, "interleaves", lambda: False)
    types = ("Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4")
    assert {name for name in types if kernels.repacking_helps([name], exact=True)} == alike
    assert kernels.repacking_helps(types, exact=True) == (len(alike) == len(types))
    assert kernels.repacking_helps(["F16", "Q4_1"], exact=True)


def test_weights_are_always_interleaved_where_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "interleaves", lambda: True)
    assert kernels.repacking_helps(["Q4_K", "IQ3_S"], exact=True)
    assert {"F16", "Q4_K", "MXFP4"} < kernels.repacked_types()


@pytest.mark.parametrize("options", [{}, {"sequences": 2, "streams": True}, {"threads": 3}], ids=str)
@pytest.mark.parametrize("architecture", ["llama", "qwen2moe", "lfm2"])
def test_wide_passes_use_flash_attention_and_narrow_ones_do_not(
    cpu: Any, tmp_path: Path, architecture: str, options: dict[str, Any]
) -> None:
    tokens = np.random.default_rng(2).integers(90, size=104).tolist()
    rows = dict[tuple[str, str], NDArray[np.float32]]()
    with Model(write_model(tmp_path / "tiny.gguf", architecture, width=256)) as model:
        attentions: tuple[Attention, ...] = ("on", "off", "wide")
        for attention in attentions:
            common: dict[str, Any] = {"threads": 1, "max_outputs": 4} | options
            with Context(model, n_ctx=256, flash_attention=attention, exact=True, **common) as context:
                last = context.sequences - 1
                for sequence in range(context.sequences):
                    context.decode(tokens[:100], range(100), [(sequence,)] * 100, [False] * 99 + [True])
                rows[attention, "wide"] = context.logits(99).copy()
                context.decode(tokens[100:], range(100, 104), [(last,)] * 4, [True] * 4)
                rows[attention, "narrow"] = context.logits(3).copy()
    assert (rows["wide", "wide"] == rows["on", "wide"]).all()
    assert (rows["wide", "wide"] != rows["off", "wide"]).any()
    assert (rows["wide", "narrow"] != rows["on", "narrow"]).any()
    np.testing.assert_allclose(rows["wide", "narrow"], rows["on", "narrow"], atol=0.05)
