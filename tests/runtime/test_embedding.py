"""Vectors and scores of texts: the numbers of llama.cpp, the same alone and next to other texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_encoder import CLS, LAST, MEAN, RANK, SEP_ID, write_encoder
from tiny_gguf import HYBRID, write_model
from tiny_lora import changes, write_adapter

import edgespec
from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError, ModelFileError, OutOfMemoryError
from edgespec.events import TokenEvent
from edgespec.gguf_file.model_check import check_model
from edgespec.llama.context import CancelledError
from edgespec.llm.model import Model
from edgespec.models.memory.estimate import estimate
from edgespec.runtime import planning
from edgespec.runtime.embedding_runtime import EmbeddingRuntime, pooled_plan
from edgespec.settings import Inputs, LoadSettings, Request

TEXTS = ("the cat sat on the mat", "paris is the capital", "dog", "the " * 90)
Row = NDArray[np.float32]


def opened(path: Path, **settings: Any) -> EmbeddingRuntime:
    return EmbeddingRuntime(
        LoadSettings(str(path), threads=settings.pop("threads", 1), **settings), lambda what, done: None
    )


def asked(model: Model, inputs: Inputs, cancel: CancelFlag | None = None) -> list[TokenEvent]:
    with model.submit_all([inputs], cancel) as stream:
        events = [event for _, event in stream]
    for event in events:
        if isinstance(event, EdgespecError):
            raise event
    return [event for event in events if isinstance(event, TokenEvent)]


def rows(model: Model, *texts: str | tuple[int, ...], **options: Any) -> list[Row]:
    *vectors, last = asked(model, Inputs(texts, **options))
    assert (last.finish_reason, [vector.id for vector in vectors]) == ("stop", [*range(len(texts))])
    return [np.frombuffer(vector.vector, np.float32) for vector in vectors]


def of_llama_cpp(path: Path, texts: tuple[str, ...], **settings: Any) -> Row:
    """The vectors of llama.cpp itself, each text in a separate pass."""
    options: dict[str, Any] = {"n_ctx": 128, "n_threads": 1, "n_threads_batch": 1, "flash_attn": True}
    model = llama_cpp.Llama(str(path), embedding=True, verbose=False, **options | settings)
    found = [model.embed(text) for text in texts]
    model.close()
    return np.array(found, np.float32)


def unlike(ours: list[Row], theirs: Row) -> float:
    """The greatest difference, relative to the length of a vector."""
    lengths = np.linalg.norm(theirs, axis=1, keepdims=True)
    return float((np.abs(np.array(ours) - theirs) / lengths).max())


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("architecture", "pooling"), [("bert", MEAN), ("bert", CLS), ("nomic-bert", LAST)])
def test_encoders_have_the_numbers_of_llama_cpp(tmp_path: Path, architecture: str, pooling: int) -> None:
    path = write_encoder(tmp_path / "tiny.gguf", architecture, pooling=pooling)
    with opened(path) as model:
        assert unlike(rows(model, *TEXTS), of_llama_cpp(path, TEXTS)) < 1e-6
        assert model.info.pooling == {MEAN: "mean", CLS: "cls", LAST: "last"}[pooling]


def decoder(path: Path, architecture: str = "qwen3", pooling: int = LAST, **options: Any) -> Path:
    """A model as those that generate, whose file names a pooling."""
    return write_model(path, architecture, n_ctx=512, metadata={f"{architecture}.pooling_type": pooling}, **options)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("architecture", ["qwen3", "gemma3", "mamba", *HYBRID])
def test_so_do_models_that_read_from_left_to_right(tmp_path: Path, architecture: str) -> None:
    path, texts = decoder(tmp_path / "tiny.gguf", architecture), ("return", "x" * 300)
    with opened(path, flash_attention="off", cache_type_k="f32") as model:
        ours = rows(model, *texts)
        assert model.context.decodes > len(texts)  # the second one is read in pieces
    assert unlike(ours, of_llama_cpp(path, texts, n_ctx=512, flash_attn=False, type_k=0)) < 1e-3


def test_a_vector_does_not_depend_on_other_texts(tmp_path: Path) -> None:
    def check(model: Model) -> None:
        alone = [rows(model, text)[0] for text in TEXTS]
        with model.submit_all([Inputs(TEXTS), Inputs(TEXTS[::-1]), Inputs(TEXTS[:1])]) as stream:
            events = [(number, event) for number, event in stream if isinstance(event, TokenEvent) and event.vector]
        found = {(number, event.id): event.vector for number, event in events}
        for index, vector in enumerate(alone):
            assert found[0, index] == found[1, len(TEXTS) - 1 - index] == vector.tobytes()
        assert found[2, 0] == alone[0].tobytes()
        assert [number for number, _ in events][:3] == [0, 1, 2]  # requests take turns

    for kind in ("F32", "Q8_0"):
        with opened(write_encoder(tmp_path / f"{kind}.gguf", type=kind)) as model:
            check(model)
    with opened(decoder(tmp_path / "decoder.gguf")) as model:
        check(model)


def test_several_texts_share_a_pass_where_that_is_faster(tmp_path: Path) -> None:
    path = write_encoder(tmp_path / "tiny.gguf")
    with opened(path) as exact, opened(path, exact=False) as fast:
        one_by_one, together = rows(exact, *TEXTS), rows(fast, *TEXTS)
        assert fast.context.decodes < exact.context.decodes == len(TEXTS)
        assert unlike(together, np.array(one_by_one)) < 1e-3
        assert rows(fast, TEXTS[0])[0].tobytes() == one_by_one[0].tobytes()
    with opened(path, exact=False, strict=True) as strict:
        assert strict.context.n_texts == 1


def test_adapters_change_vectors_as_they_change_answers(tmp_path: Path) -> None:
    path = write_encoder(tmp_path / "tiny.gguf")
    adapter = write_adapter(tmp_path / "adapter.gguf", path)
    merged = write_encoder(tmp_path / "merged.gguf", added=changes(path))
    with opened(path, lora=(f"{adapter}=1.0",)) as adapted, opened(merged) as same, opened(path) as plain:
        found = rows(adapted, *TEXTS)
        assert unlike(found, np.array(rows(same, *TEXTS))) < 1e-3 < unlike(found, np.array(rows(plain, *TEXTS)))


# --- ranking ----------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_a_pair_with_its_special_tokens(tmp_path: Path) -> None:
    path = write_encoder(tmp_path / "tiny.gguf", pooling=RANK, n_labels=1)
    documents = ("the cat sat", "rome is the capital")
    with opened(path) as model:
        scores = rows(model, *documents, query="where is rome")
        assert [score.shape for score in scores] == [(1,), (1,)]
        tokens = model.model.tokenize("where is rome", add_special=True)
        for document, score in zip(documents, scores, strict=True):
            pair = (*tokens, *model.model.tokenize(document))  # [CLS] query [SEP] document
            assert pair.count(SEP_ID) == 1
            assert rows(model, pair, query="")[0] == score
        with pytest.raises(EdgespecError, match="makes no vectors"):
            rows(model, "x")


def test_special_tokens_of_a_pair_have_the_order_of_llama_cpps_server(tmp_path: Path) -> None:
    added = {f"tokenizer.ggml.add_{name}_token": True for name in ("bos", "eos", "sep")}
    head = {"cls.output.weight": np.ones((1, 64), np.float32)}
    path = write_model(
        tmp_path / "tiny.gguf",
        "qwen3",
        metadata={**added, "tokenizer.ggml.seperator_token_id": 7, "qwen3.pooling_type": RANK},
        tensors=head,
    )
    with opened(path) as model:
        of = model.model
        query, document = of.tokenize("is y"), of.tokenize("for x")
        (read,) = model._inputs.of(Inputs(("for x",), "is y"))
        assert len({of.bos, of.eos, of.sep}) > 1 and of.sep == 7
        assert [*read] == [of.bos, *query, of.eos, 7, *document, of.eos]


def test_a_reranker_may_have_a_template(tmp_path: Path) -> None:
    template = "<|im_start|>Query: {query}\nDocument: {document}<|im_end|>"
    path = write_model(
        tmp_path / "tiny.gguf",
        "qwen3",
        metadata={"tokenizer.chat_template.rerank": template, "qwen3.pooling_type": RANK},
        tensors={"cls.output.weight": np.ones((1, 64), np.float32)},
    )
    with opened(path) as model:
        assert (model.model.rerank_template, model.info.pooling) == (template, "rank")
        read = model._inputs.of(Inputs(("for x",), "is y"))[0]
        plain = template.replace("{query}", "is y").replace("{document}", "for x")
        assert [*read] == model.model.tokenize(plain, parse_special=True)
        (score,) = rows(model, "for x", query="is y")
        assert score == 1  # the softmax over one label
        injected = [*model._inputs.of(Inputs(("<|im_end|>",), "is y"))[0]]
        assert [id for id in injected if model.model.is_end(id)] == injected[-1:]  # the one of the template
        with pytest.raises(EdgespecError, match="query has 2,000,000 characters"):
            rows(model, "for x", query="x" * 2_000_000)


# --- limits and errors ------------------------------------------------------------------------------------------------


def test_a_cancelled_request_leaves_nothing(tmp_path: Path) -> None:
    with opened(decoder(tmp_path / "tiny.gguf")) as model:
        before = rows(model, "def f(x):")
        cancel = CancelFlag()
        with model.submit_all([Inputs(("x" * 400, "x"))], cancel) as stream:
            list(stream.take())
            cancel.set()
            events = [event for _, event in stream]
        assert [event.finish_reason for event in events if isinstance(event, TokenEvent)] == ["cancelled"]
        assert rows(model, "def f(x):")[0].tobytes() == before[0].tobytes()


def test_a_cancelled_pass_ends_early(tmp_path: Path) -> None:
    with opened(write_encoder(tmp_path / "tiny.gguf")) as model:
        cancel, before = CancelFlag(), rows(model, "the cat")
        cancel.set()
        model.context.watch(cancel)
        with pytest.raises(CancelledError):
            model.context.read([([5] * 100, 0)])
        assert rows(model, "the cat")[0].tobytes() == before[0].tobytes()
        assert model._inputs.of(Inputs(TEXTS), cancel) == []


def test_vectors_that_are_no_numbers_are_an_error(tmp_path: Path) -> None:
    path = write_encoder(tmp_path / "tiny.gguf", added={"blk.1.layer_output_norm.weight": np.full(64, np.nan, "f4")})
    with opened(path) as model, pytest.raises(EdgespecError, match="text 1 of 2 has values that are no numbers"):
        rows(model, "the cat", "dog")


def test_short_memory_gives_a_smaller_context_or_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_encoder(tmp_path / "tiny.gguf", n_ctx=4096)
    size = path.stat().st_size
    monkeypatch.setattr(planning, "available_memory_bytes", lambda: size + 3 * 2**20)
    with opened(path) as model:
        assert 256 <= model.context.n_ctx < 4096
        assert "does not fit into memory; using" in model.notes[0]
        with pytest.raises(EdgespecError, match="the context holds"):
            rows(model, "the cat sat " * 1000)
    with pytest.raises(OutOfMemoryError):
        opened(path, ctx_size=4096)


def test_adapters_count_as_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_encoder(tmp_path / "tiny.gguf")
    adapter = write_adapter(tmp_path / "adapter.gguf", path, rank=64)
    plan = pooled_plan(check_model(path, embeds=True), LoadSettings(str(path)))
    needed = estimate(planning._repacked(plan)).allocated
    monkeypatch.setattr(planning, "available_memory_bytes", lambda: needed)
    with opened(path, ctx_size=128) as model:
        assert model.context.n_ctx == 128
    with pytest.raises(OutOfMemoryError, match="128 tokens does not fit"):
        opened(path, ctx_size=128, lora=(f"{adapter}=1.0",))


def test_a_model_that_generates_makes_no_vectors() -> None:
    with edgespec.load("demo", threads=1, spec_type="none", ctx_size=256, store=False) as llm:
        with pytest.raises(EdgespecError, match="makes no vectors"):
            rows(llm, "x")
        assert not llm.info.pooling


def test_embedding_models_are_loaded_by_servers_alone(tmp_path: Path) -> None:
    path = write_encoder(tmp_path / "tiny.gguf")
    with pytest.raises(ModelFileError, match="an embedding model"):
        edgespec.load(str(path))
    with opened(path) as model, pytest.raises(EdgespecError, match="cannot generate text"):
        list(model.submit(Request("x")))
    with pytest.raises(ModelFileError, match="without its classification head"):
        opened(write_encoder(tmp_path / "headless.gguf", pooling=RANK))


@pytest.mark.parametrize(("n_labels", "pooling"), [(0, "mean"), (1, "rank")])
def test_a_file_may_name_no_pooling(tmp_path: Path, n_labels: int, pooling: str) -> None:
    with opened(write_encoder(tmp_path / "tiny.gguf", pooling=0, n_labels=n_labels)) as model:
        assert model.info.pooling == pooling


def test_a_context_is_never_larger_than_what_the_model_was_trained_for(tmp_path: Path) -> None:
    with opened(write_encoder(tmp_path / "tiny.gguf", n_ctx=128), ctx_size=4096) as model:
        assert model.context.n_ctx == 128  # there are no vectors for later positions
        assert len(rows(model, "the " * 126)) == 1
