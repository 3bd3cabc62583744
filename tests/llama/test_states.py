"""Saved states of sequences: what follows a restored one has the bits of what follows one that stayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_gguf import HYBRID, write_model

from edgespec.cancel import CancelFlag
from edgespec.llama.context import CancelledError, Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.model import LlamaModel

N = 400
TEXT = np.random.default_rng(1).integers(0, 250, 1000).tolist()
OTHER = TEXT[::-1]
ATTENTION = ("llama", "qwen2", "gemma3", "qwen2moe")


class Cache:
    """A context of three sequences, of which the last is used."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.model = LlamaModel(path)
        self.context = Context(
            self.model, ContextParams(n_ctx=1024, max_outputs=8, sequences=3, threads=1, rollback=3, **settings)
        )

    def rows(self, start: int, *ends: int, sequence: int = 2, text: list[int] = TEXT) -> NDArray[np.float32]:
        """The last row of each pass up to one of `ends`."""
        found = []
        for end in ends:
            n = end - start
            self.context.decode(text[start:end], range(start, end), [(sequence,)] * n, [False] * (n - 1) + [True])
            found.append(self.context.logits(n - 1).copy())
            start = end
        return np.stack(found)

    def follow(self, start: int, sequence: int = 2) -> NDArray[np.float32]:
        """Rows of narrow and of wide passes."""
        return self.rows(start, *(start + n for n in (1, 2, 40, 150, 151)), sequence=sequence)


@pytest.fixture
def cache(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cache]:
    architecture, settings = request.param
    made = Cache(write_model(tmp_path / "m.gguf", architecture, width=128), **settings)
    yield made
    made.context.close()
    made.model.close()


EXACT: dict[str, Any] = {"exact": True, "streams": True}
QUANTISED: dict[str, Any] = EXACT | {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
WITHOUT_FLASH: dict[str, Any] = EXACT | {"flash_attention": "off"}
EVERY = [
    *((name, EXACT) for name in (*ATTENTION, *HYBRID)),
    *((name, QUANTISED) for name in ("llama", "gemma3", "qwen35")),
    *((name, WITHOUT_FLASH) for name in ("llama", "lfm2")),
    *((name, {}) for name in ("llama", "mamba", "lfm2")),
]


@pytest.mark.long(but=5)
@pytest.mark.parametrize("cache", EVERY, indirect=True)
def test_a_restored_state_goes_on_as_the_one_that_stayed(cache: Cache) -> None:
    context = cache.context
    cache.rows(0, 100, sequence=0, text=OTHER)
    cache.rows(0, 300, N)
    state = context.save(2)
    assert abs(context.saved_bytes(2) - state.size) <= 0.1 * state.size
    expected = cache.follow(N)
    for sequence in (2, 1):
        context.forget(sequence)
        cache.rows(0, 250, sequence=sequence, text=OTHER)
        assert context.restore(sequence, state) and context.length(sequence) == N
        got = cache.follow(N, sequence)
        # In a cache that sequences share cells lie elsewhere now.
        assert np.array_equal(got, expected) if context.exact else np.allclose(got, expected, atol=0.01)


@pytest.mark.parametrize("cache", [(name, EXACT) for name in ATTENTION], indirect=True)
def test_a_restored_state_can_be_cut_anywhere(cache: Cache) -> None:
    """Also behind what a sliding window reaches from its end, of which llama.cpp saves nothing."""
    context = cache.context
    cache.rows(0, 300, N)
    state = context.save(2)
    assert context.length(2) == N
    assert context.truncate(2, 130)
    expected = cache.follow(130)
    assert context.restore(2, state) and context.truncate(2, 130)
    assert np.array_equal(cache.follow(130), expected)


@pytest.mark.parametrize("cache", [(name, EXACT) for name in (*HYBRID, "mamba")], indirect=True)
def test_a_partial_state_takes_a_memory_back_that_cannot_be_cut(cache: Cache) -> None:
    context = cache.context
    cache.rows(0, 300)
    state = context.save(2, partial=True)
    expected = cache.follow(300)
    assert not context.truncate(2, 300)
    assert context.restore(2, state, partial=True) and context.truncate(2, 300)
    assert context.length(2) == 300
    assert np.array_equal(cache.follow(300), expected)


@pytest.mark.parametrize("cache", [(name, {}) for name in HYBRID], indirect=True)
def test_what_was_rolled_back_is_saved_as_it_is_now(cache: Cache) -> None:
    context = cache.context
    cache.rows(0, 299)
    context.decode(TEXT[299:303], range(299, 303), [(2,)] * 4, [True] * 4)
    assert context.truncate(2, 301)
    whole, partial = context.save(2), context.save(2, partial=True)
    expected = cache.follow(301)
    assert context.restore(1, whole)
    assert np.allclose(cache.rows(301, 302, sequence=1), expected[0], atol=1e-4)
    assert context.restore(2, partial, partial=True) and context.truncate(2, 301)
    assert np.allclose(cache.follow(301), expected, atol=1e-4)


@pytest.mark.parametrize("cache", [("lfm2", {}), ("mamba", {})], indirect=True)
def test_of_a_memory_that_is_unknown_nothing_is_saved_and_what_was_saved_makes_it_known(cache: Cache) -> None:
    context, cancel = cache.context, CancelFlag()
    cache.rows(0, 300)
    state = context.save(2, partial=True)
    expected = cache.rows(300, 301)
    context.watch(cancel)
    cancel.set()
    with pytest.raises(CancelledError):
        cache.rows(301, 400)
    context.watch(None)
    assert not context.saved_bytes(2) and not context.save(2).size
    assert context.restore(2, state, partial=True) and context.truncate(2, 300)
    assert np.allclose(cache.rows(300, 301), expected, atol=1e-4)


@pytest.mark.parametrize("cache", [("llama", EXACT)], indirect=True)
def test_a_state_that_has_no_room_or_is_damaged_leaves_the_sequence_empty(cache: Cache) -> None:
    cache.rows(0, 300)
    state = cache.context.save(2)
    assert not cache.context.restore(2, state[: state.size // 2])
    assert cache.context.length(2) == 0


@pytest.mark.parametrize("cache", [("gemma3", EXACT | {"flash_attention": "off"})], indirect=True)
def test_windows_that_cannot_be_joined_are_not_saved_twice(cache: Cache) -> None:
    """Values are transposed without flash attention."""
    cache.rows(0, 300)
    assert not cache.context.save(2).size and cache.context.length(2) == 0
    assert not cache.context.can_save and not cache.context.saved_bytes(2)
