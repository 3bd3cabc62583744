"""Attention is right, and gives a query the same bits whatever else is in its pass or in the cache."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_gguf import write_model

from edgespec.llama import kernels
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.library import cpu_function, ggml_function
from edgespec.llama.model import LlamaModel

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not kernels.have_exact_kernels(), reason="this build has no such attention"),
]
N = 700
Rows = NDArray[np.float32]


def opened(model: LlamaModel, **options: Any) -> Context:
    usual: dict[str, Any] = {"n_ctx": 1024, "max_outputs": 64, "flash_attention": "on", "threads": 2}
    return Context(model, ContextParams(**usual | options))


def tokens_of(model: LlamaModel, n: int = N) -> list[int]:
    return [int(id) for id in np.random.default_rng(1).integers(90, size=n)]


def read(context: Context, tokens: list[int], widths: list[int], sequence: int = 0) -> Rows:
    """Read tokens in passes of these widths, repeatedly. Return the logits of the last 8."""
    context.truncate(sequence, 0)
    start, found = 0, list[Rows]()
    for width in [*widths] * len(tokens):
        part = tokens[start : start + width]
        if not part:
            break
        wanted = [start + i >= len(tokens) - 8 for i in range(len(part))]
        context.decode(part, range(start, start + len(part)), [(sequence,)] * len(part), wanted)
        found += [context.logits(i).copy() for i, is_wanted in enumerate(wanted) if is_wanted]
        start += len(part)
    return np.array(found)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with LlamaModel(write_model(tmp_path_factory.mktemp("x") / "tiny.gguf", "llama", width=256, type="Q8_0")) as model:
        yield model


@pytest.mark.parametrize("cache", ["f16", "q8_0", "q4_0"])
def test_bits_depend_on_neither_width_nor_threads(model: LlamaModel, cache: str) -> None:
    tokens, types = tokens_of(model), {"cache_type_k": cache, "cache_type_v": cache}
    with opened(model, **types) as context, opened(model, threads=1, **types) as other:
        one = read(context, tokens, [64, 1, 1, 1])
        for widths in ([512], [1, 2, 3, 17, 64], [63], [100]):
            assert np.array_equal(read(context, tokens, widths), one), widths
        assert np.array_equal(read(other, tokens, [350]), one)


def test_bits_do_not_depend_on_where_the_cells_are(model: LlamaModel) -> None:
    tokens = tokens_of(model)
    with opened(model) as context:
        alone = read(context, tokens, [64])
    with opened(model, sequences=2) as context:  # one cache for both
        start, found = 0, list[Rows]()
        for width in [5, 64, 31] * len(tokens):
            part = tokens[start : start + width]
            if not part:
                break
            n, end = len(part), start + len(part)
            context.decode(part[::-1], range(start, end), [(1,)] * n, [False] * n)
            wanted = [at >= len(tokens) - 8 for at in range(start, end)]
            context.decode(part, range(start, end), [(0,)] * n, wanted)
            found += [context.logits(i).copy() for i, is_wanted in enumerate(wanted) if is_wanted]
            start = end
    assert np.array_equal(np.array(found), alone)


@pytest.mark.parametrize("cache", ["f16", "q8_0"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen2moe", "lfm2"])
def test_results_are_those_of_ggml_but_for_rounding(tmp_path: Path, architecture: str, cache: str) -> None:
    with LlamaModel(write_model(tmp_path / "tiny.gguf", architecture, width=256)) as model:
        tokens = tokens_of(model, 200)
        with opened(model, cache_type_k=cache, cache_type_v=cache) as context:
            here = read(context, tokens, [64, 3])
            with kernels.kernels_of_llama_cpp():
                there = read(context, tokens, [64, 3])
    assert not np.array_equal(here, there)
    np.testing.assert_allclose(here, there, atol=0.03 * np.abs(there).max())


POINTER, SIZE, INT64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
F32, F16 = 0, 1


class Params(ctypes.Structure):
    """`ggml_init_params`."""

    _fields_ = (("mem_size", SIZE), ("mem_buffer", POINTER), ("no_alloc", ctypes.c_bool))


def attended(
    q: Rows,
    k: Rows,
    v: Rows,
    mask: Rows,
    *,
    scale: float,
    bias: float,
    cap: float,
    sinks: Rows | None,
    threads: int = 2,
) -> Rows:
    """Flash attention of the CPU backend, float32[queries, heads, values], of queries float32[heads, n, width]."""
    context = ggml_function("ggml_init", POINTER, Params)(Params(1 << 26, None, False))
    new = ggml_function("ggml_new_tensor_3d", POINTER, POINTER, ctypes.c_int, INT64, INT64, INT64)
    data = ggml_function("ggml_get_data", POINTER, POINTER)

    def tensor(array: NDArray[Any]) -> Any:
        made = new(context, F16 if array.dtype == np.float16 else F32, *array.shape[::-1])
        ctypes.memmove(data(made), array.tobytes(), array.nbytes)
        return made

    numbers = [ctypes.c_float] * 3
    make = ggml_function("ggml_flash_attn_ext", POINTER, *[POINTER] * 5, *numbers)
    op = make(context, tensor(q), *(tensor(each.astype(np.float16)) for each in (k, v, mask)), scale, bias, cap)
    if sinks is not None:
        ggml_function("ggml_flash_attn_ext_add_sinks", None, POINTER, POINTER)(op, tensor(sinks.reshape(1, 1, -1)))
    graph = ggml_function("ggml_new_graph", POINTER, POINTER)(context)
    ggml_function("ggml_build_forward_expand", None, POINTER, POINTER)(graph, op)
    backend = ggml_function("ggml_backend_init_by_type", POINTER, ctypes.c_int, POINTER)(0, None)
    cpu_function("ggml_backend_set_n_threads", None, POINTER, ctypes.c_int)(backend, threads)
    ggml_function("ggml_backend_graph_compute", ctypes.c_int, POINTER, POINTER)(backend, graph)
    shape = (q.shape[1], q.shape[0], v.shape[2])
    found = np.ctypeslib.as_array((ctypes.c_float * math.prod(shape)).from_address(data(op))).reshape(shape).copy()
    ggml_function("ggml_backend_free", None, POINTER)(backend)
    ggml_function("ggml_free", None, POINTER)(context)
    return found


def expected(
    q: Rows, k: Rows, v: Rows, mask: Rows, *, scale: float, bias: float, cap: float, sinks: Rows | None
) -> NDArray[np.float64]:
    heads, log2 = q.shape[0], 2 ** int(math.log2(q.shape[0]))
    rows = []
    for head in range(heads):
        group = head // (heads // k.shape[0])
        kh, vh = (each[group].astype(np.float16).astype(np.float64) for each in (k, v))
        scores = q[head].astype(np.float64) @ kh.T * scale
        scores = cap * np.tanh(scores / cap) if cap else scores
        base, power = (-bias / log2, head + 1) if head < log2 else (-bias / 2 / log2, 2 * (head - log2) + 1)
        scores = scores + (2.0 ** (base * power) if bias else 1) * mask[0]
        most = scores.max(axis=1, keepdims=True)
        most = np.maximum(most, sinks[head]) if sinks is not None else most
        weights = np.exp(scores - most)
        total = weights.sum(axis=1, keepdims=True) + (np.exp(sinks[head] - most) if sinks is not None else 0)
        rows.append(weights @ vh / total)
    return np.array(rows).transpose(1, 0, 2)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(
    ("width", "value", "cap", "bias"),
    [(64, 64, 0, 0), (80, 80, 30, 0), (40, 24, 0, 8), (192, 128, 0, 0), (256, 512, 5, 2)],
)
def test_values_are_right(width: int, value: int, cap: float, bias: float, sinks: bool) -> None:
    random = np.random.default_rng(width)
    heads, groups, n, cells = 6, 2, 21, 1300
    q, k, v = (
        random.standard_normal(shape).astype(np.float32)
        for shape in ((heads, n, width), (groups, cells, width), (groups, cells, value))
    )
    mask = np.where(
        random.random((1, n, cells)) < 0.4, -np.inf, np.round(random.random((1, n, cells)), 2) if bias else 0
    )
    mask[0, 0, 700:] = -np.inf
    mask[0, 1, 30:] = -np.inf
    mask[0, 2, :1000] = -np.inf
    mask[0, 3] = 0
    mask = mask.astype(np.float16).astype(np.float32)
    of_heads = random.standard_normal(heads).astype(np.float32) * 4 if sinks else None
    how: dict[str, Any] = {"scale": width**-0.5, "cap": cap, "bias": bias, "sinks": of_heads}
    found = attended(q, k, v, mask, **how)
    np.testing.assert_allclose(found, expected(q, k, v, mask, **how), atol=2e-5)
    for at in (0, 1, 2, 3, 20):
        alone = attended(q[:, at : at + 1], k, v, mask[:, at : at + 1], threads=1, **how)
        assert np.array_equal(alone[0], found[at])
        seen = np.isfinite(mask[0, at])
        packed = attended(q[:, at : at + 1], k[:, seen], v[:, seen], mask[:, at : at + 1, seen], **how)
        assert np.array_equal(packed[0], found[at])
