"""A pass gives each token the bits of a pass of its own, for all architectures, types of weights and layouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_gguf import ARCHITECTURES, HYBRID, write_model

from edgespec.llama import kernels
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not kernels.have_exact_kernels(), reason="this build of llama.cpp was made elsewhere"),
]
N = 200
WAYS = {"one at a time": [1], "all": [N], "pieces": [1, 63, 77, 2, 57], "drafts": [9, 4]}

Rows = NDArray[np.float32]


def tokens_of(model: LlamaModel) -> list[int]:
    return [int(token) for token in np.random.default_rng(1).integers(3, model.n_vocab - 5, size=N)]


def rows(context: Context, tokens: Sequence[int], widths: Sequence[int]) -> Rows:
    """The logits float32[n, V] after each token, decoded in passes of these widths, over and over."""
    context.forget(0)
    found, start, turn = list[Rows](), 0, 0
    while start < len(tokens):
        part = tokens[start : start + widths[turn % len(widths)]]
        n, turn = len(part), turn + 1
        context.decode(part, range(start, start + n), [(0,)] * n, [True] * n)
        found += [context.logits(index).copy() for index in range(n)]
        start += n
    return np.array(found)


@pytest.mark.long(but=4)
@pytest.mark.parametrize("type", ["F32", "F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *HYBRID])
def test_the_bits_of_a_token_do_not_depend_on_its_pass(tmp_path: Path, architecture: str, type: str) -> None:
    path = write_model(tmp_path / "tiny.gguf", architecture, type=type, width=256)
    alone = dict[str, Rows]()
    options: dict[str, Any] = {"n_ctx": 256, "max_outputs": N, "exact": True, "threads": 2}
    for interleaved in (True, False):
        with LlamaModel(path, use_extra_bufts=interleaved, copied=interleaved) as model:
            tokens = tokens_of(model)
            for attention in ("on", "off"):
                with Context(model, ContextParams(flash_attention=attention, **options)) as context:
                    for way, widths in WAYS.items():
                        found = rows(context, tokens, widths)
                        expected = alone.setdefault(attention, found)
                        assert np.array_equal(found, expected), (interleaved, attention, way)


@pytest.mark.parametrize("threads", [1, 3, 12])  # more threads than some products have chunks
@pytest.mark.parametrize("architecture", ["llama", "qwen2moe"])
def test_the_bits_do_not_depend_on_threads_and_on_other_sequences(
    tmp_path: Path, architecture: str, threads: int
) -> None:
    path = write_model(tmp_path / "tiny.gguf", architecture, type="Q8_0", width=256)
    with LlamaModel(path) as model:
        tokens = tokens_of(model)
        with Context(
            model, ContextParams(n_ctx=256, max_outputs=N, exact=True, flash_attention="on", threads=2)
        ) as context:
            alone = rows(context, tokens, [1])
        shared = ContextParams(
            n_ctx=256, sequences=3, streams=True, max_outputs=90, exact=True, flash_attention="on", threads=threads
        )
        with Context(model, shared) as context:
            for start, width in ((0, 30), (30, 1), (31, 8), (39, 30)):
                part, places = tokens[start : start + width], range(start, start + width)
                ids = [(sequence,) for sequence in range(3) for _ in places]
                context.decode(part * 3, [*places] * 3, ids, [True] * 3 * width)
                for index in range(3 * width):
                    assert np.array_equal(context.logits(index), alone[start + index % width])


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "gemma3", "qwen2moe", "lfm2"])
def test_logits_are_those_of_llama_cpp_but_for_rounding(tmp_path: Path, architecture: str, interleaved: bool) -> None:
    path = write_model(tmp_path / "tiny.gguf", architecture, type="F16", width=256)
    options: dict[str, Any] = {"n_ctx": 256, "max_outputs": N, "flash_attention": "off", "threads": 2}
    with LlamaModel(path, use_extra_bufts=interleaved) as model, Context(model, ContextParams(**options)) as context:
        here = rows(context, tokens_of(model), [64, 3])
    with (
        kernels.kernels_of_llama_cpp(),
        LlamaModel(path, use_extra_bufts=False) as model,
        Context(model, ContextParams(**options)) as context,
    ):
        there = rows(context, tokens_of(model), [64, 3])
    assert not np.array_equal(here, there)
    np.testing.assert_allclose(here, there, atol=0.05 * np.abs(there).max())
