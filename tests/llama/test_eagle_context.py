"""The graph of an EAGLE head: the same numbers as llama.cpp's, in chains, trees and several sequences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import write_model
from tiny_head import write_head

from edgespec.cancel import CancelFlag
from edgespec.core.batch import Batch
from edgespec.errors import UsageError
from edgespec.llama import eagle_context, eagle_graph
from edgespec.llama.context import CacheFullError, CancelledError, Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.eagle_context import EagleContext
from edgespec.llama.head_context import HeadContext
from edgespec.llama.model import LlamaModel
from edgespec.runtime.drafting import head_context

HOW: dict[str, Any] = {"n_ctx": 512, "n_batch": 64, "max_outputs": 64, "threads": 1, "sequences": 2, "branches": 3}
N = 40


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    path = write_model(tmp_path_factory.mktemp("eagle") / "target.gguf", "llama", n_layers=4)
    with LlamaModel(path) as model, Context(model, ContextParams(n_ctx=64, threads=1)) as context:
        yield context


@pytest.fixture
def both(target: Context, tmp_path: Path) -> Iterator[tuple[EagleContext, HeadContext]]:
    with (
        LlamaModel(write_head(tmp_path / "head.gguf", draft_tokens=[*range(7, 250, 3)])) as model,
        EagleContext(model, target, ContextParams(**HOW)) as own,
        HeadContext(model, target, ContextParams(**HOW)) as native,
    ):
        yield own, native


def features(n: int, width: int = 192) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(n).standard_normal((n, width)).astype(np.float32)


def test_it_computes_what_llama_cpp_computes(both: tuple[EagleContext, HeadContext]) -> None:
    rows = []
    for context in both:
        batch = Batch.empty()
        batch.add(range(N), 0, (0,), wanted=True)
        batch.add(range(9, 15), 0, (1,), wanted=True)
        states = context.encode(features(batch.size))
        context.decode_pairs(batch, states)
        branch = context.fork(0, N - 5)
        context.truncate(0, N - 1)
        found = [states, context.logits(N - 1).copy(), context.logits(batch.size - 1).copy(), context.state(N - 1)]
        tree = Batch([3, 4, 5], [N - 1, N - 5, 6], [(0,), (branch,), (1,)], [True] * 3)
        context.decode_pairs(tree, states[:3])
        found += [context.logits(index).copy() for index in range(3)]
        context.adopt(0, branch, N - 5, N - 4)
        context.release([branch])
        context.decode_pairs(Batch([8], [N - 4], [(0,)], [True]), states[:1])
        rows.append([*found, context.logits(0).copy(), context.state(0)])
        assert [context.length(each) for each in (0, 1)] == [N - 3, 7]
    for own, native in zip(*rows, strict=True):
        assert np.isfinite(native).any()
        assert np.allclose(own, native, rtol=1e-4, atol=1e-4)


def test_an_eagle_1_head_is_decoded_too(target: Context, tmp_path: Path) -> None:
    path = write_head(tmp_path / "head.gguf", reads_state=True, n_vocab=target.model.n_vocab)
    with (
        LlamaModel(path) as model,
        EagleContext(model, target, ContextParams(**HOW)) as own,
        HeadContext(model, target, ContextParams(**HOW)) as native,
    ):
        assert own.reads == native.reads
        assert np.allclose(own.encode(features(3, 64)), native.encode(features(3, 64)), rtol=1e-4, atol=1e-4)


def test_a_position_of_a_text_that_begins_later_is_the_first_one(both: tuple[EagleContext, HeadContext]) -> None:
    own, native = both
    for context in both:
        for start in (100, 20):
            context.forget(0)
            context.decode_pairs(Batch([1, 2], [start, start + 1], [(0,)] * 2, [True] * 2), features(2, 64))
        assert context.length(0) == 22
    assert np.allclose(own.logits(1), native.logits(1), rtol=1e-4, atol=1e-4)


def test_a_full_cache_keeps_what_it_has(target: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eagle_context, "CELLS_STEP", 8)
    with (
        LlamaModel(write_head(tmp_path / "head.gguf")) as model,
        EagleContext(model, target, ContextParams(**HOW | {"n_ctx": 16, "sequences": 1})) as context,
    ):
        context.decode_filler(0, [False] * 16)
        with pytest.raises(CacheFullError):
            context.decode_filler(16, [True])
        assert context.length(0) == 16
        context.truncate(0, 15)
        context.decode_filler(15, [True])
        assert np.isfinite(context.logits(0)).any()


def test_it_stops_when_the_answer_is_cancelled(both: tuple[EagleContext, HeadContext]) -> None:
    flag = CancelFlag()
    both[0].watch(flag)
    both[0].decode_filler(0, [True])
    flag.set()
    with pytest.raises(CancelledError):
        both[0].decode_filler(1, [True])
    both[0].watch(None)
    both[0].decode_filler(1, [True])


def test_graphs_are_kept_and_the_oldest_leave(
    both: tuple[EagleContext, HeadContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eagle_graph, "MOST_GRAPHS", 3)
    context, built = both[0], list[int]()
    decoder = context._decoder

    def counted(n: int, *sizes: int) -> Any:
        built.append(n)
        return decoder(n, *sizes)

    monkeypatch.setattr(context, "_decoder", eagle_graph.Kept(counted))
    for width in (1, 2, 1, 3, 4, 1, 2):
        context.forget(0)
        context.decode_filler(0, [True] * width)
    assert built == [1, 2, 3, 4, 2]
    for width in (40, 50, 40):  # of these, one is kept
        context.decode_filler(context.length(0), [False] * width)
    assert built[5:] == [40, 50, 40]


def test_a_row_does_not_keep_what_was_mixed_into_the_last_one(both: tuple[EagleContext, HeadContext]) -> None:
    context = both[0]
    context.decode_filler(0, [True, True])
    outside = np.isneginf(context.logits(0)).nonzero()[0]
    context.logits(0)[outside] = 1
    assert np.isneginf(context.logits(1)[outside]).all()


def test_a_closed_context_decodes_nothing(both: tuple[EagleContext, HeadContext]) -> None:
    both[0].decode_filler(0, [True])
    both[0].close()
    with pytest.raises(UsageError, match="closed"):
        both[0].decode_filler(1, [True])


def test_shared_embeddings_in_another_layout_are_left_to_llama_cpp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tied = write_model(tmp_path / "tied.gguf", "llama", n_layers=4, tensors={"output.weight": None})
    with (
        LlamaModel(tied) as target,
        Context(target, ContextParams(n_ctx=64, threads=1)) as context,
        LlamaModel(write_head(tmp_path / "head.gguf")) as model,
    ):
        EagleContext(model, context, ContextParams(**HOW)).close()
        monkeypatch.setattr(eagle_context, "have_exact_kernels", lambda: False)
        with pytest.raises(UsageError, match="layout"):
            EagleContext(model, context, ContextParams(**HOW))


@pytest.mark.parametrize(
    ("settings", "metadata"),
    [
        ({"cache_type_k": "q8_0"}, {}),
        ({}, {"eagle3.rope.scaling.type": "linear", "eagle3.rope.scaling.factor": 2.0}),
        ({}, {"eagle3.rope.scaling.factor": 2.0}),
    ],
    ids=["a quantised cache", "scaled positions", "scaled, as llama.cpp assumes"],
)
def test_llama_cpp_decodes_what_this_graph_cannot(
    target: Context, tmp_path: Path, settings: dict[str, Any], metadata: dict[str, Any]
) -> None:
    with LlamaModel(write_head(tmp_path / "head.gguf", metadata=metadata)) as model:
        with pytest.raises(UsageError):
            EagleContext(model, target, ContextParams(**HOW | settings))
        with head_context(model, target, ContextParams(**HOW | settings)) as context:
            assert isinstance(context, HeadContext)
