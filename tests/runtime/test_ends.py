"""Least lengths, tokens that end an answer, and words that it must not contain, with and without drafts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import edgespec
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import UsageError
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Message, Request

pytestmark = pytest.mark.native
TEMPERATURES = [SamplingSettings(temperature=0), SamplingSettings(temperature=0.8)]


@pytest.fixture(scope="module")
def llm() -> Iterator[Runtime]:
    with edgespec.load("demo", spec_type="draft,suffix", pace="fixed:3", store=False, threads=1) as runtime:
        yield runtime


def answered(llm: Runtime, **asked: Any) -> tuple[list[int], str, str]:
    """The ids, the text and the reason of an answer, which is the same without drafts."""
    found = []
    for spec_type in (None, "none"):
        *tokens, last = llm.submit(replace(Request("def f(", max_tokens=20, seed=3), spec_type=spec_type, **asked))
        text = "".join(event.text for event in (*tokens, last))
        found.append(([event.id for event in tokens], text, str(last.finish_reason)))
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("sampling", TEMPERATURES)
def test_a_stop_token_ends_the_answer_and_is_no_part_of_it(llm: Runtime, sampling: SamplingSettings) -> None:
    ids, _, reason = answered(llm, sampling=sampling, ignore_eos=True)
    assert reason == "length"
    for stop in {ids[0], ids[7], ids[-1]}:
        cut, _, reason = answered(llm, sampling=sampling, ignore_eos=True, stop_token_ids=(stop, 0))
        assert (cut, reason) == (ids[: ids.index(stop)], "stop")


@pytest.mark.parametrize("sampling", TEMPERATURES)
def test_an_answer_does_not_end_before_it_has_enough_tokens(llm: Runtime, sampling: SamplingSettings) -> None:
    ids, _, _ = answered(llm, sampling=sampling, ignore_eos=True)
    longer, _, reason = answered(llm, sampling=sampling, ignore_eos=True, stop_token_ids=(ids[2],), min_tokens=12)
    assert ids[2] not in longer[:12]
    assert len(longer) >= 12
    assert (reason == "stop") == (len(longer) < 20)
    ends = llm.model.end_tokens
    biased = replace(sampling, logit_bias=((ends[0], 99.0),))
    assert answered(llm, sampling=biased)[0] == []
    assert len(answered(llm, sampling=biased, min_tokens=5)[0]) == 5


@pytest.mark.parametrize("sampling", TEMPERATURES)
def test_bad_words_of_one_token_and_of_several_do_not_appear(llm: Runtime, sampling: SamplingSettings) -> None:
    ids, _, _ = answered(llm, sampling=sampling, ignore_eos=True)
    pieces = [llm.model.token_bytes(id).decode("utf-8", "replace") for id in ids]
    one = next(piece for piece in pieces if piece.strip() and piece.isascii())
    two = next(a + b for a, b in pairwise(pieces) if a.strip() and (a + b).isascii())
    for word in (one, two):
        spelled = llm.model.tokenize(word)
        without, _, _ = answered(llm, sampling=sampling, ignore_eos=True, bad_words=(word,))
        assert without != ids
        assert not any(without[at : at + len(spelled)] == spelled for at in range(len(without)))


def test_a_prompt_that_is_not_to_be_cached_is_read_anew(llm: Runtime) -> None:
    asked = Request(messages=(Message("user", "Tell me about rivers, please. " * 20),), max_tokens=4, seed=1)
    for request, is_cached in ((asked, False), (asked, True), (replace(asked, cache_prompt=False), False)):
        *tokens, last = llm.submit(request)
        assert last.stats is not None
        n_most = last.stats.prompt_tokens - 1  # or those that another text begins with
        assert (last.stats.cached_tokens == n_most) == is_cached, request.cache_prompt
        assert tokens


@pytest.mark.parametrize("drafts", [None, "none"])
def test_a_request_for_no_tokens_reads_its_prompt_for_the_next_one(llm: Runtime, drafts: str | None) -> None:
    text = f"Tell me about the mountains of {drafts}, please. " * 20
    asked = Request(messages=(Message("user", text),), max_tokens=6, seed=1, spec_type=drafts)
    llm.forget()
    [read] = llm.submit(replace(asked, max_tokens=0))
    assert (read.text, read.finish_reason) == ("", "length")
    *tokens, last = llm.submit(asked)
    assert read.stats is not None
    assert last.stats is not None
    assert last.stats.cached_tokens == read.stats.prompt_tokens - 1
    llm.forget()
    assert [event.id for event in llm.submit(asked)][:-1] == [event.id for event in tokens]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"min_tokens": -1}, "min_tokens must be an integer"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens must be at most max_tokens"),
        ({"min_tokens": 2, "stop": ("a",)}, "min_tokens and stop cannot be combined"),
        ({"min_tokens": 2, "regex": "a"}, "min_tokens and regex cannot be combined"),
        ({"stop_token_ids": (10**6,)}, "stop_token_ids must be an integer from 0 to"),
        ({"bad_words": (" ",)}, "bad_words must be"),
        ({"bad_words": ("a",) * 999}, "bad_words must be"),
        ({"bad_words": ("a" * 999,)}, "bad_words must have"),
    ],
)
def test_what_cannot_be_combined_or_is_out_of_range_is_refused(llm: Runtime, asked: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        [*llm.submit(replace(Request("a", max_tokens=20), **asked))]
