"""A context keeps its threads between passes in builds without OpenMP."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

from edgespec.llama import library, threads
from edgespec.llama.context import Context
from edgespec.llama.library import ggml_function
from edgespec.llama.model import Model
from edgespec.models.names.spec import resolve


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model(resolve("demo:draft").path) as model:
        yield model


def logits(model: Model, n_threads: int) -> np.ndarray:
    with Context(model, n_ctx=64, threads=n_threads) as context:
        rows = list[np.ndarray]()
        for position, token in enumerate(model.tokenize("def f(xs): return")):
            context.decode([token], [position], [(0,)], [True])
            rows.append(context.logits(0).copy())
    return np.stack(rows)


def test_kept_threads_give_the_same_logits(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    freed, free = list[int | None](), threads.free_threads
    monkeypatch.setattr(threads, "build_flags", lambda: "AVX2 = 1")

    def free_and_note(pool: int | None) -> None:
        free(pool)
        freed.append(pool)

    monkeypatch.setattr("edgespec.llama.context.free_threads", free_and_note)
    kept = logits(model, 2)
    monkeypatch.setattr(threads, "build_flags", lambda: "OPENMP = 1")
    np.testing.assert_array_equal(kept, logits(model, 2))
    assert freed[0]
    assert freed[1] is None  # OpenMP has threads of its own


def test_one_thread_needs_no_pool(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "build_flags", lambda: "")
    assert threads.attach_threads(None, 1) is None


def test_the_parameters_are_laid_out_as_in_the_library() -> None:
    params = threads._Params()
    init = ggml_function("ggml_threadpool_params_init", None, ctypes.c_void_p, ctypes.c_int)
    init(ctypes.byref(params), 7)
    assert (params.n_threads, params.prio, params.poll, params.paused) == (7, 0, 50, False)


def test_functions_that_are_in_the_second_library_only_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows a lookup in the first library does not find them."""
    monkeypatch.setattr(library, "libggml", object())
    name = library.ggml_function("ggml_type_name", ctypes.c_char_p, ctypes.c_int)
    assert name(1) == b"f16"
