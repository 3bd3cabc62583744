"""The assistants of Gemma 4 models: what they draft, that texts stay what they are, and which files are refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_assistant import write_assistant, write_gemma4
from tiny_gguf import write_model
from tiny_projector import picture, write_projector

import edgespec
from edgespec.core.batch import Batch
from edgespec.core.features import LAST_OUTPUT
from edgespec.core.sampling import SamplingSettings
from edgespec.drafters.assistant import AssistantDrafter
from edgespec.errors import ModelFileError, PairError
from edgespec.gguf_file.head_check import check_draft_file, head_mismatch, kind_of_head
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.head_context import HeadContext
from edgespec.llama.model import LlamaModel
from edgespec.settings import Image, Message, Request

PROMPT = "def the class for x in the list: return the one, or print it"
PROMPTS = [PROMPT * times for times in (1, 3, 12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold a Gemma 4 that knows bigrams, one that is random, and an assistant for each of them."""
    folder = tmp_path_factory.mktemp("gemma4")
    for name, knows_bigrams in (("bigram", True), ("random", False)):
        write_gemma4(folder / f"{name}.gguf", knows_bigrams=knows_bigrams)
        write_assistant(folder / f"{name}-assistant.gguf", knows_bigrams=knows_bigrams)
    return folder


def load(folder: Path, name: str, **settings: Any) -> edgespec.LLM:
    drafting: dict[str, Any] = {
        "draft_model": str(folder / f"{name}-assistant.gguf"),
        "spec_type": "assistant",
        "pace": "fixed:4",
    }
    return edgespec.load(str(folder / f"{name}.gguf"), **{"ctx_size": 1024, "store": False, **drafting, **settings})


def plain(folder: Path, name: str, **settings: Any) -> edgespec.LLM:
    return load(folder, name, draft_model=None, spec_type="none", **settings)


def texts(llm: edgespec.LLM, temperature: float = 0.0) -> list[list[int]]:
    sampling = SamplingSettings(temperature=temperature)
    requests = (
        Request(prompt=prompt, max_tokens=40, sampling=sampling, seed=seed, ignore_eos=True)
        for seed, prompt in enumerate(PROMPTS)
    )
    return [[event.id for event in llm.submit(request)] for request in requests]


@pytest.mark.parametrize("tree", [1, 4])
def test_one_that_predicts_as_the_target_is_accepted(folder: Path, tree: int) -> None:
    with plain(folder, "bigram") as alone, load(folder, "bigram", spec_tree=tree) as llm:
        assert llm.info.drafters == ("assistant",)
        assert texts(llm) == texts(alone)
        assert llm.stats.acceptance_rate > 0.9 and llm.stats.tokens_per_round > 4


def chain(target: Context, assistant: HeadContext, tokens: list[int], n: int) -> list[int]:
    """Return the likeliest tokens after a text, step by step, from new caches."""
    target.forget(0)
    for at in range(0, len(tokens) - 1, 64):
        part = tokens[at : min(at + 64, len(tokens) - 1)]
        target.decode(part, range(at, at + len(part)), [(0,)] * len(part), [False] * len(part))
    state, drafted = target.layer_inputs(LAST_OUTPUT)[-1], [tokens[-1]]
    while len(drafted) <= n:
        assistant.decode_pairs(Batch([drafted[-1]], [len(tokens) - 1], [(0,)], [True]), state[None])
        logits = assistant.logits(0).copy()
        logits[[token for token in range(len(logits)) if target.model.is_end(token)]] = -np.inf
        state = assistant.state(0)
        drafted.append(int(logits.argmax()))
    return drafted[1:]


def test_it_drafts_what_its_graph_computes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the state before the last token, its position and the cells of this text, also if another text was read."""
    drafts: list[tuple[list[int], list[int]]] = []
    propose = AssistantDrafter.propose

    def noted(self: AssistantDrafter, sequences: Any, budgets: Any) -> Any:
        made = propose(self, sequences, budgets)
        drafts.extend(([*each.tokens], [*draft.tokens]) for each, draft in zip(sequences, made, strict=True))
        return made

    monkeypatch.setattr(AssistantDrafter, "propose", noted)
    with load(folder, "random", sequences=2) as llm:
        sampling = SamplingSettings(temperature=0, repeat_penalty=1)
        requests = [Request(prompt=prompt, max_tokens=12, sampling=sampling, ignore_eos=True) for prompt in PROMPTS]
        assert len([*llm.stream(iter(requests))]) >= 36
    settings: dict[str, Any] = {"n_ctx": 1024, "n_batch": 64, "threads": 1, "exact": True}
    with (
        LlamaModel(check_draft_file(folder / "random.gguf")) as model,
        LlamaModel(check_draft_file(folder / "random-assistant.gguf")) as head,
        Context(model, ContextParams(**settings)) as target,
        HeadContext(head, target, ContextParams(**settings)) as assistant,
    ):
        target.watch_layers([LAST_OUTPUT])
        assert len(drafts) > 25 and len({tuple(draft) for _, draft in drafts}) > 20
        for tokens, draft in drafts:
            assert draft == chain(target, assistant, tokens, len(draft))


@pytest.mark.long(but=2)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("tree", [1, 4])
@pytest.mark.parametrize("spec_type", ["assistant", "suffix,recycling,assistant"])
@pytest.mark.parametrize("cache", ["f16", "q8_0"])
def test_texts_stay_what_they_are(folder: Path, spec_type: str, tree: int, temperature: float, cache: str) -> None:
    caches = {"cache_type_k": cache, "cache_type_v": cache}
    with (
        plain(folder, "random", **caches) as alone,
        load(folder, "random", spec_type=spec_type, spec_tree=tree, **caches) as llm,
    ):
        assert texts(llm, temperature) == texts(alone, temperature)
        assert llm.stats.proposed > 0


@pytest.mark.parametrize("name", ["bigram", "random"])
def test_several_sequences_share_its_passes(folder: Path, name: str) -> None:
    requests = [Request(prompt=prompt, max_tokens=30, ignore_eos=True) for prompt in [*PROMPTS, PROMPT * 5, "so"]]
    answers: dict[int, list[int]] = {}
    with load(folder, name, sequences=3) as llm:
        for index, event in llm.stream(iter(requests)):
            assert isinstance(event, edgespec.TokenEvent)
            answers.setdefault(index, []).append(event.id)
        assert llm.stats.proposed > 0
        assert name == "random" or llm.stats.acceptance_rate > 0.8
    with plain(folder, name) as alone:
        for index, request in enumerate(requests):
            assert [event.id for event in alone.submit(request)] == answers[index]


def test_it_follows_a_chat_whose_beginning_is_cached(folder: Path) -> None:
    messages = [Message("user", PROMPT)]
    with load(folder, "bigram", ctx_size=2048) as llm:
        for turn in range(3):
            answer = llm.complete(messages, max_tokens=30, temperature=0, ignore_eos=True)
            assert answer.stats.acceptance_rate > 0.9
            assert (answer.stats.cached_tokens > 0) == (turn > 0)
            messages += [Message("assistant", answer.text, tuple(answer.tokens)), Message("user", "and then?")]


def test_it_drafts_after_images(tmp_path: Path) -> None:
    """It reads the target's cache, in which images are cells as all others are."""
    target = write_gemma4(tmp_path / "target.gguf", knows_bigrams=True)
    write_assistant(tmp_path / "mtp-target.gguf", knows_bigrams=True)
    projector = write_projector(tmp_path / "mmproj-F32.gguf", "mlp")
    message = Message("user", "what is this?", images=(Image(picture(), 0),))
    with edgespec.load(str(target), ctx_size=1024, store=False, pace="fixed:4", mmproj=str(projector)) as llm:
        answer = llm.complete([message], max_tokens=30, temperature=0, ignore_eos=True)
        assert answer.stats.acceptance_rate > 0.9


def test_it_stops_where_the_context_ends(folder: Path) -> None:
    request = Request(prompt=PROMPT * 8, max_tokens=2000, ignore_eos=True)
    with plain(folder, "bigram", ctx_size=512) as alone, load(folder, "bigram", ctx_size=512) as llm:
        assert [event.id for event in llm.submit(request)] == [event.id for event in alone.submit(request)]
        assert llm.stats.acceptance_rate > 0.9


def test_its_cost_is_measured(folder: Path) -> None:
    with load(folder, "random") as llm:
        before = texts(llm)
        assert llm.measure_costs([1, 2], repeat=1)["step"]["assistant"] > 0
        assert texts(llm) == before


def test_one_that_fails_is_off_and_the_answer_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("broken")

    with plain(folder, "bigram") as alone, load(folder, "bigram") as llm:
        monkeypatch.setattr(HeadContext, "decode_pairs", fail)
        assert texts(llm) == texts(alone)
        assert any("assistant failed" in note for note in llm.notes)


@pytest.mark.parametrize(
    ("metadata", "tensors", "why"),
    [
        ({"embedding_length_out": None}, {}, "its target's width is 0"),
        ({"embedding_length_out": 96}, {}, "its target's width is 96"),
        ({"nextn_predict_layers": 1}, {}, "1 to 16 layers with attention"),
        ({"attention.sliding_window_pattern": [True, False]}, {}, "1 to 16 layers with attention"),
        ({"attention.value_length": 16}, {}, "cannot share"),
        ({"attention.head_count_kv": 3}, {}, "cannot share"),
        ({"feed_forward_length": [128]}, {}, "does not describe all of its layers"),
        ({}, {"nextn.post_projection.weight": None}, "'nextn.post_projection.weight' is missing"),
        ({}, {"blk.1.attn_q.weight": np.zeros((64, 96), np.float32)}, "where (96, 256) is needed"),
        ({}, {"output_norm.weight": np.full(96, np.nan, np.float32)}, "not numbers"),
    ],
)
def test_a_broken_one_is_refused(tmp_path: Path, metadata: dict, tensors: dict, why: str) -> None:  # type: ignore[type-arg]
    named = {f"gemma4-assistant.{key}": value for key, value in metadata.items()}
    path = write_assistant(tmp_path / "assistant.gguf", metadata=named, tensors=tensors)
    with pytest.raises(ModelFileError, match=re.escape(why)):
        check_draft_file(path)


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"attention.sliding_window": 32}, "keys and values of other sizes"),
        ({"attention.key_length_swa": 16, "attention.value_length_swa": 16}, "keys and values of other sizes"),
        ({"attention.head_count_kv": 4}, "keys and values of other sizes"),
        ({"attention.sliding_window_pattern": [False, True] * 2}, "the last two layers"),
        ({"embedding_length": 80}, "it is a head for models of width 64"),
    ],
)
def test_one_of_another_target_is_refused(folder: Path, metadata: dict, why: str) -> None:  # type: ignore[type-arg]
    target = check_draft_file(folder / "random.gguf")
    changed = {f"gemma4.{key}": value for key, value in metadata.items()}
    other = replace(target, metadata=target.metadata | changed)
    assert why in head_mismatch(other, check_draft_file(folder / "random-assistant.gguf"))


def test_other_architectures_have_none(folder: Path, tmp_path: Path) -> None:
    target = write_model(tmp_path / "target.gguf", "llama")
    assistant = folder / "random-assistant.gguf"
    assert kind_of_head(check_draft_file(assistant)) == "assistant"
    with pytest.raises(PairError, match="an assistant of a gemma4 model, and this is a llama model"):
        edgespec.load(str(target), draft_model=str(assistant), spec_type="assistant")
