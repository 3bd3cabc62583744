"""The log probabilities of prompts: those of the model, whatever was cached, drafted or read at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_gguf
from numpy.typing import NDArray

import edgespec
from edgespec.cancel import CancelFlag
from edgespec.errors import GenerationError, UsageError
from edgespec.events import Completion, TokenEvent
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llm.options import request_of
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Image, Message, Request

LONG = "def f(x):\n    return x + 1\n\nfor i in range(10):\n    print(i, f(i))\n"
LENGTHS = [1, 2, 63, 64, 65, 127, 128, 300]
OPTIONS: dict[str, Any] = {"max_tokens": 6, "logprobs": 2, "temperature": 0.8, "seed": 3, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm() -> Iterator[Runtime]:
    with edgespec.load("demo", threads=1, store=False, ctx_size=512) as llm:
        yield llm


def ids_of(llm: Runtime, n: int) -> tuple[int, ...]:
    ids = llm.token_ids(LONG * 40, add_special=True, parse_special=False)
    return tuple(ids[:n])


def request(ids: tuple[int, ...], **options: Any) -> Request:
    return request_of(options, prompt_tokens=ids)  # type: ignore[arg-type]


def asked(llm: Runtime, ids: tuple[int, ...], **options: Any) -> Completion:
    return Completion.of(llm.submit(request(ids, **options)))


def scores(answer: Completion) -> tuple[Any, ...]:
    return answer.prompt_tokens, answer.prompt_logprobs, answer.prompt_top_logprobs


def predicted(llm: Runtime, ids: tuple[int, ...]) -> NDArray[np.float64]:
    """What the model predicts for each token of a text but the first, in one pass over all of them."""
    attention: Any = llm.context.fingerprint["flash_attention"]
    settings: dict[str, Any] = {"n_ctx": 512, "threads": 1, "exact": True, "flash_attention": attention}
    with Context(llm.model, ContextParams(max_outputs=len(ids), **settings)) as context:
        context.decode(ids, range(len(ids)), [(0,)] * len(ids), [True] * len(ids))
        rows = np.stack([context.logits(index) for index in range(len(ids))]).astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return rows[:-1]


@pytest.mark.parametrize("n", LENGTHS)
def test_they_are_what_the_model_predicts(llm: Runtime, n: int) -> None:
    ids = ids_of(llm, n)
    answer = asked(llm, ids, max_tokens=0, prompt_logprobs=3)
    assert answer.prompt_tokens == ids
    assert (answer.prompt_logprobs[0], answer.prompt_top_logprobs[0]) == (None, ())
    rows = predicted(llm, ids)
    wanted = rows[np.arange(n - 1), ids[1:]]
    np.testing.assert_allclose(np.array(answer.prompt_logprobs[1:], float), wanted, atol=1e-5)
    for row, top in zip(rows, answer.prompt_top_logprobs[1:], strict=True):
        assert [id for id, _ in top] == (-row).argsort(kind="stable")[:3].tolist()


@pytest.mark.parametrize("n", LENGTHS)
def test_neither_the_cache_nor_drafts_nor_other_settings_change_them(llm: Runtime, n: int) -> None:
    ids = ids_of(llm, n)
    llm.forget()
    first = asked(llm, ids, prompt_logprobs=2, **OPTIONS)
    asked(llm, ids, max_tokens=20, ignore_eos=True)  # now it is cached, and its continuation known
    again = asked(llm, ids, prompt_logprobs=2, **OPTIONS)
    plain = asked(llm, ids, prompt_logprobs=2, spec_type="none", **OPTIONS)
    alone = asked(llm, ids, prompt_logprobs=2, max_tokens=0, repeat_penalty=2.0, logit_bias={ids[-1]: 5.0})
    assert scores(first) == scores(again) == scores(plain) == scores(alone)
    assert first.stats.cached_tokens == again.stats.cached_tokens == 0


@pytest.mark.parametrize("n", LENGTHS)
def test_the_answer_is_the_one_without_them(llm: Runtime, n: int) -> None:
    ids = ids_of(llm, n)
    usual, answer = asked(llm, ids, **OPTIONS), asked(llm, ids, prompt_logprobs=0, **OPTIONS)
    assert (answer.tokens, answer.text) == (usual.tokens, usual.text)
    assert (answer.logprobs, answer.top_logprobs) == (usual.logprobs, usual.top_logprobs)
    following = asked(llm, (*ids, *answer.tokens), **OPTIONS)
    llm.forget()
    assert asked(llm, (*ids, *answer.tokens), **OPTIONS).logprobs == following.logprobs


@pytest.mark.parametrize("n", LENGTHS)
def test_they_are_bit_for_bit_those_of_generating_the_text(llm: Runtime, n: int) -> None:
    ids = ids_of(llm, n)
    answer = asked(llm, ids, temperature=0.0, max_tokens=30, logprobs=0)
    scored = asked(llm, (*ids, *answer.tokens), max_tokens=0, prompt_logprobs=0)
    assert scored.prompt_logprobs[n:] == answer.logprobs


def test_answers_at_the_same_time_do_not_change_them() -> None:
    with edgespec.load("demo", threads=1, store=False, ctx_size=512, sequences=3) as llm:
        requests = [request(ids_of(llm, n), prompt_logprobs=1, **OPTIONS) for n in (200, 70, 130)]
        alone = [Completion.of(llm.submit(each)) for each in requests]
        llm.forget()
        found: list[list[TokenEvent]] = [[], [], []]
        for number, event in llm.stream(requests):
            assert isinstance(event, TokenEvent)
            found[number].append(event)
        together = [Completion.of(events) for events in found]
    assert [scores(each) for each in together] == [scores(each) for each in alone]
    assert [each.tokens for each in together] == [each.tokens for each in alone]


@pytest.mark.parametrize("architecture", ["mamba", "gemma3", "qwen35"])
def test_memories_that_cannot_be_cut_and_windows(tmp_path: Path, architecture: str) -> None:
    path = tiny_gguf.write_model(tmp_path / "tiny.gguf", architecture)
    with edgespec.load(str(path), threads=1, store=False, ctx_size=512) as llm:
        for n in (40, 150):
            ids = ids_of(llm, n)
            usual, first = asked(llm, ids, **OPTIONS), asked(llm, ids, prompt_logprobs=1, **OPTIONS)
            assert scores(asked(llm, ids, prompt_logprobs=1, max_tokens=0)) == scores(first)
            assert (first.tokens, first.logprobs) == (usual.tokens, usual.logprobs)


def test_the_end_token_is_reported_and_is_no_part_of_the_answer(llm: Runtime) -> None:
    end = llm.model.eos
    assert end is not None
    *made, last = llm.generate("def", prompt_logprobs=1, logprobs=1, logit_bias={end: 50.0})
    assert [(event.id, event.part, event.text) for event in made if event.part != "prompt"] == [(end, "end", "")]
    assert last.finish_reason == "stop"
    assert Completion.of([*made, last]).tokens == ()


def test_a_cancelled_answer_ends_while_its_prompt_is_read(llm: Runtime) -> None:
    cancel = CancelFlag()
    events = []
    for event in llm.submit(request(ids_of(llm, 400), prompt_logprobs=0), cancel):
        cancel.set()
        events.append(event)
    assert events[-1].finish_reason == "cancelled"
    assert 0 < len(events) - 1 < 400
    assert len(asked(llm, ids_of(llm, 400), prompt_logprobs=0, max_tokens=0).prompt_tokens) == 400


def test_weights_that_are_not_numbers_are_an_error(tmp_path: Path) -> None:
    broken = {"output_norm.weight": np.full(64, np.nan, np.float32)}
    path = tiny_gguf.write_model(tmp_path / "tiny.gguf", "llama", tensors=broken)
    with edgespec.load(str(path), threads=1, store=False) as llm, pytest.raises(GenerationError, match="no finite"):
        llm.complete("def f(x):", prompt_logprobs=1, max_tokens=0)


def test_images_have_none(llm: Runtime) -> None:
    message = Message("user", "", images=(Image(b""),))
    with pytest.raises(UsageError, match="prompt_logprobs and images cannot be combined"):
        llm.submit(Request(messages=(message,), prompt_logprobs=1))
