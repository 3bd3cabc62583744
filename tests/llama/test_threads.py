"""The threads of a context: how they wait, how many there are, and who keeps them between passes."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.llama import kernels, library, threads
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.kernels import have_exact_kernels
from edgespec.llama.library import ggml_function
from edgespec.llama.model import LlamaModel
from edgespec.llama.threads import ThreadChoice
from edgespec.models.names.spec import resolve


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(resolve("demo:draft").path) as model:
        yield model


def logits(model: LlamaModel, n_threads: int) -> np.ndarray:
    with Context(model, ContextParams(n_ctx=64, threads=n_threads)) as context:
        rows = list[np.ndarray]()
        for position, token in enumerate(model.tokenize("def f(xs): return")):
            context.decode([token], [position], [(0,)], [True])
            rows.append(context.logits(0).copy())
    return np.stack(rows)


def test_kept_threads_give_the_same_logits(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_one_thread_needs_no_pool(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "build_flags", lambda: "")
    assert threads.attach_threads(0, 1) is None


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


class InTurn(ThreadChoice):
    """Chooses another number of threads for each pass."""

    def __init__(self, most: int) -> None:
        super().__init__(most, lambda: 0.0)
        self.used = list[int]()

    def begin_wide(self, now_s: float) -> int:
        return self.threads

    @property
    def threads(self) -> int:
        return 1 + len(self.used) % self._most

    def record(self, width: int, seconds: float, cpu_s: float, now_s: float) -> None:
        self.used.append(self.threads)


@pytest.mark.skipif(not have_exact_kernels(), reason="llama.cpp's own kernels share out the cells among the threads")
def test_the_number_of_threads_changes_no_bit(model: LlamaModel) -> None:
    text = (model.tokenize("def f(xs): return") * 200)[:700]

    def rows(choice: ThreadChoice | None) -> np.ndarray:
        with Context(model, ContextParams(n_ctx=1024, threads=3, max_outputs=16, exact=True)) as context:
            context._choice = choice
            at, found = 0, list[np.ndarray]()
            for width in (512, 1, 1, 100, 1, 2, 2, 3, 8, 16, 7, 1, 1, 1):
                wanted = [width <= 16] * width
                context.decode(text[at : at + width], range(at, at + width), [(0,)] * width, wanted)
                found += [context.logits(index).copy() for index in range(width) if wanted[index]]
                at += width
        return np.stack(found)

    np.testing.assert_array_equal(rows(None), rows(choice := InTurn(3)))
    assert choice.used == [1, 2, 3] * 4


def test_only_exact_contexts_without_a_given_number_choose_one(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec.llama.context.default_threads", lambda: 2)
    given: list[dict[str, Any]] = [{"exact": True, "threads": 2}, {"exact": True, "threads_batch": 2}, {"exact": False}]
    for arguments in given:
        with Context(model, ContextParams(n_ctx=64, **arguments)) as context:
            assert context._choice is None
    with Context(model, ContextParams(n_ctx=64, exact=True)) as context:
        assert (context._choice is not None) == have_exact_kernels()


def test_all_threads_compute_the_passes_that_are_compared(model: LlamaModel) -> None:
    with Context(model, ContextParams(n_ctx=64, threads=2, exact=True)) as context:
        numbers = list[int]()
        context._choice, context.on_threads = InTurn(2), numbers.append
        for _ in range(2):
            context.decode_filler(context.length(0), [True])
        with context.all_threads():
            context.decode_filler(2, [True])
            context.decode_filler(3, [True])
        context.decode_filler(4, [True])
        context.decode_filler(5, [True])
        assert numbers == [1, 2, 1, 2]


def test_a_thread_that_waits_for_long_sleeps_until_it_is_woken() -> None:
    if not have_exact_kernels():
        pytest.skip("this build waits as llama.cpp does")
    library, word = kernels.cpu_library(), ctypes.c_int32(7)
    assert library is not None
    address, began = ctypes.c_void_p(ctypes.addressof(word)), threading.Event()
    library.edgespec_await_change(address, 6)  # it has another value already

    def wait_for_change() -> None:
        began.set()
        library.edgespec_await_change(address, 7)

    waiting = [threading.Thread(target=wait_for_change, daemon=True) for _ in range(2)]
    for thread in waiting:
        thread.start()
        began.wait()
    if sys.platform == "linux":
        for thread in waiting:
            state = Path(f"/proc/self/task/{thread.native_id}/stat")
            while state.read_text("ascii").rpartition(")")[2].split()[0] != "S":
                pass  # it still spins
    word.value = 8
    library.edgespec_wake(address)
    for thread in waiting:
        thread.join(60)
        assert not thread.is_alive()
