"""Answers that repeat themselves end where the user says so, at the same token with any drafts, and no others do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import edgespec
from edgespec.core.sampling import SamplingSettings
from edgespec.events import Completion, TokenEvent
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Request
from edgespec.text.repetition import SURE, RepetitionDetector

pytestmark = pytest.mark.native
PROMPTS = ("def f(", "import os\nimport", "class A:\n", "for x in")
LIMIT, N = 120, 300
SMOLLM2 = 512  # its limit in the catalogue
MEANT = {
    "array": f"[{', '.join(['0'] * 150)}]",
    "floats": f"[{', '.join(['0.0'] * 100)}]",
    "matrix": "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0],\n" * 15,
    "table": "| a | b | c |\n|---|---|---|\n" + "| 0 | 0 | 0 |\n" * 45,
    "code": '    print("hello, world")\n' * 50,
    "markup": "<tr><td></td><td></td></tr>\n" * 40,
    "art": ("#" + " " * 38 + "#\n") * 20 + "=" * 400,
    "lyrics": "na na na na hey hey goodbye\n" * 12 + "na " * 80,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[Runtime]:
    with edgespec.load("demo", spec_type="draft,suffix", spec_tree=3, sequences=4, store=False, threads=1) as runtime:
        yield runtime


def looping(llm: Runtime, prompt: str = PROMPTS[0], **asked: Any) -> Request:
    """A request for an answer that never ends by itself, so that the small model soon repeats itself."""
    bans = tuple((token, -math.inf) for token in llm.model.end_tokens)
    return replace(Request(prompt, max_tokens=N, sampling=SamplingSettings(temperature=0, logit_bias=bans)), **asked)


def end_of(tokens: tuple[int, ...], limit: int) -> int:
    """The number of tokens after which an answer first repeats itself for `limit` tokens."""
    detector = RepetitionDetector()
    for n, token in enumerate(tokens, 1):
        detector.add(token)
        if detector.exceeds(limit):
            return n
    return len(tokens)


@pytest.mark.parametrize("limit", [LIMIT, LIMIT + 1, LIMIT + 37])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_end_is_the_same_token_with_any_drafts(llm: Runtime, prompt: str, limit: int) -> None:
    whole = Completion.of(llm.submit(looping(llm, prompt, spec_type="none")))
    ended = [
        Completion.of(llm.submit(looping(llm, prompt, repeat_limit=limit, **drafts)))
        for drafts in ({"spec_type": "none"}, {"pace": "fixed:3"}, {"pace": "fixed:7"}, {"pace": "auto"})
    ]
    n = end_of(whole.tokens, limit)
    assert limit <= n < N
    assert {(each.tokens, each.finish_reason) for each in ended} == {(whole.tokens[:n], "repetition")}
    assert len({each.text for each in ended}) == 1 and whole.text.startswith(ended[0].text)
    assert whole.finish_reason == "length" and whole.stats.repeated_tokens >= limit == ended[0].stats.repeated_tokens


def test_answers_together_end_each_where_they_do_alone(llm: Runtime) -> None:
    requests = [looping(llm, prompt, repeat_limit=LIMIT, pace="fixed:5") for prompt in PROMPTS]
    made: dict[int, list[TokenEvent]] = {}
    for number, event in llm.stream([*requests, *requests]):
        assert isinstance(event, TokenEvent)
        made.setdefault(number, []).append(event)
    for number, request in enumerate([*requests, *requests]):
        assert Completion.of(made[number]).tokens == Completion.of(llm.submit(request)).tokens


def test_a_loop_that_was_asked_for_is_not_cut_off(llm: Runtime) -> None:
    asked = Request("x", regex="(ab ){150}", repeat_limit=96, sampling=SamplingSettings(temperature=0))
    answer = Completion.of(llm.submit(asked))
    assert (answer.text, answer.finish_reason) == ("ab " * 150, "stop")
    for own in ({"ignore_eos": True}, {"min_tokens": N - 1}):
        assert len(Completion.of(llm.submit(looping(llm, repeat_limit=LIMIT, **own))).tokens) == N
    given = tuple([7, 8, 9] * 80)
    assert Completion.of(llm.submit(looping(llm, repeat_limit=LIMIT, reference=given))).tokens == given


def test_an_answer_that_repeats_itself_has_no_speed_up(llm: Runtime) -> None:
    answer = Completion.of(llm.submit(looping(llm, pace="fixed:7")))
    assert answer.stats.proposed and answer.stats.speedup is None
    assert "speed-up" not in str(answer.stats)


@pytest.mark.parametrize("kind", MEANT)
def test_what_people_ask_for_is_no_endless_loop(llm: Runtime, kind: str) -> None:
    tokens = tuple(llm.model.tokenize(MEANT[kind]))
    assert end_of(tokens, SMOLLM2) == len(tokens)
    part = tokens[:100] * 20  # but a part of it over and over is one
    assert end_of(part, SMOLLM2) < len(part)


def test_a_few_times_are_not_enough_whatever_the_limit() -> None:
    long = [*range(100)]
    assert end_of(tuple(long * SURE), 1) == 100 * SURE
    assert end_of(tuple(long * (SURE - 1)), 1) == 100 * (SURE - 1)
    detector = RepetitionDetector()
    for token in long * (SURE - 1):
        detector.add(token)
    assert detector.found and not detector.exceeds(1)
