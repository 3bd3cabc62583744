"""A race compares two answers to one request: what it measures, and what it says of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from fake_engine import FakeEngine, drafted_events, plain

import edgespec
from edgespec.cancel import CancelFlag
from edgespec.chat.race import DRAFTED, PLAIN, Lane, Race, Timed, run_race
from edgespec.core.sampling import SamplingSettings
from edgespec.core.stats import Stats
from edgespec.core.verify import VerifyRule
from edgespec.errors import GenerationError
from edgespec.events import FinishReason, TokenEvent
from edgespec.settings import LoadSettings, Message, Request

WORDS = "one two three four five six seven"


def lane(text: str, step_s: float, *, finish: FinishReason = "stop", proposed: int = 0, first_s: float = 0.5) -> Lane:
    """A token a word, `step_s` apart; equal words have equal ids."""
    events = [TokenEvent(int.from_bytes(word.encode()), f"{word} ") for word in text.split()]
    events.append(TokenEvent(-1, "", finish_reason=finish, stats=Stats(proposed=proposed)))
    return Lane(tuple(Timed(first_s + index * step_s, event) for index, event in enumerate(events)))


def race(plain_text: str, drafted_text: str, plain_s: float = 0.1, drafted_s: float = 0.1) -> Race:
    return Race(lane(plain_text, plain_s), lane(drafted_text, drafted_s, proposed=9))


# --- running one ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_race(home: Path) -> Race:
    heard: list[tuple[int, Timed]] = []
    with edgespec.load("demo", threads=1, pace="fixed:4", spec_type="draft") as llm:
        request = Request("def read_lines(path):", max_tokens=48, seed=3, sampling=SamplingSettings(temperature=0.6))
        race = run_race(llm, request, CancelFlag(), lambda lane, timed: heard.append((lane, timed)))
        assert llm.settings.pace == "fixed:4"
    assert [timed for lane, timed in heard if lane == PLAIN] == list(race.plain.events)
    assert [timed for lane, timed in heard if lane == DRAFTED] == list(race.drafted.events)
    return race


def test_the_bundled_pair_says_the_same_in_both_lanes_and_only_one_of_them_drafts(real_race: Race) -> None:
    assert real_race.differs_at is None
    assert real_race.n_common == len(real_race.plain.tokens) > 20
    assert real_race.guessed_by["draft"] > 10
    assert not any(timed.event.from_draft for timed in real_race.plain.tokens)
    assert real_race.plain.stats.tokens_per_round == 1
    assert real_race.drafted.stats.tokens_per_round > 1
    assert real_race.speedup is not None
    assert real_race.speedup > 0
    assert f"the same {real_race.n_common} tokens" in real_race.verdict()


def test_times_are_counted_from_the_request_of_each_answer(real_race: Race) -> None:
    for lane in (real_race.plain, real_race.drafted):
        assert 0 < lane.first_token_s < lane.took_s
        assert all(one.elapsed_s <= two.elapsed_s for one, two in pairwise(lane.events))


def test_neither_answer_finds_the_conversation_in_the_cache(home: Path) -> None:
    request = Request(messages=(Message("user", "Write a function that adds two numbers."),), max_tokens=8)
    with edgespec.load("demo", threads=1) as llm:
        list(llm.answer(request))
        race = run_race(llm, request, CancelFlag())
    assert [lane.stats.cached_tokens for lane in (race.drafted, race.plain)] == [0, 0]


def test_the_speculative_answer_comes_first_as_it_must_not_be_looked_up() -> None:
    engine = FakeEngine(WORDS)
    run_race(engine, Request("x", seed=5), CancelFlag())
    assert engine.calls == ["answer", "forget", "answer", "pace off", "forget", "answer", "pace auto"]
    assert [request.max_tokens for request in engine.requests] == [8, -1, -1]
    assert {request.seed for request in engine.requests} == {5}


def test_a_race_stopped_in_the_first_answer_has_no_second() -> None:
    cancel = CancelFlag()

    def stop(lane: int, timed: Timed) -> None:
        if timed.event.id == 3:
            cancel.set()

    race = run_race(FakeEngine(WORDS), Request("x"), cancel, stop)
    assert [len(race.drafted.tokens), len(race.plain.tokens)] == [4, 0]
    assert race.verdict() == "stopped before there was anything to compare"


def test_a_race_stopped_in_the_second_answer_is_compared_as_far_as_it_got() -> None:
    cancel = CancelFlag()

    def stop(lane: int, timed: Timed) -> None:
        if lane == PLAIN and timed.event.id == 3:
            cancel.set()

    race = run_race(FakeEngine(WORDS, round_s=0.001), Request("x"), cancel, stop)
    assert race.n_common == 4
    assert race.differs_at is None
    assert "the same 4 tokens" in race.verdict()


def test_an_engine_that_fails_keeps_its_own_draft_policy() -> None:
    engine = FakeEngine(
        drafted_events("a b"),
        drafted_events("a b"),
        WORDS,
        error=GenerationError("no"),
        settings=LoadSettings("x", pace="fixed:2"),
    )
    engine.error_after = 3  # the first two answers are shorter
    with pytest.raises(GenerationError, match="no"):
        run_race(engine, Request("x"), CancelFlag())
    assert engine.calls[-3:] == ["forget", "answer", "pace fixed:2"]
    assert engine.settings.pace == "fixed:2"


# --- what is made of the times ----------------------------------------------------------------------------------------


def test_a_lane_is_shown_as_it_was_at_a_moment() -> None:
    answer = lane("a b c", step_s=0.1, first_s=0.5)
    assert [event.text for event in answer.shown_at(0.49)] == []
    assert [event.text for event in answer.shown_at(0.65)] == ["a ", "b "]
    assert len(answer.shown_at(9)) == 4  # with the end, which may bring the rest of the text
    assert answer.tokens_per_s(0.55) == 0
    assert answer.tokens_per_s(0.7) == pytest.approx(2 / 0.2)
    assert answer.tokens_per_s(9) == pytest.approx(2 / 0.2)


@pytest.mark.parametrize(
    ("drafted_s", "verdict"),
    [
        (0.05, "2.00x: 20 vs. 10 tok/s, the same 7 tokens"),
        (0.2, "0.50x, slower with speculation: 5.0 vs. 10 tok/s, the same 7 tokens"),
        (0.101, "0.99x, speculation made no difference: 9.9 vs. 10 tok/s, the same 7 tokens"),
    ],
)
def test_who_won_is_said_as_it_is(drafted_s: float, verdict: str) -> None:
    assert race(WORDS, WORDS, drafted_s=drafted_s).verdict() == verdict


def test_a_race_without_a_draft_says_so() -> None:
    both = lane(WORDS, 0.1)
    assert Race(both, both).verdict().startswith("nothing was drafted")


@pytest.mark.parametrize(("verify", "why"), [("coupled", "by rounding"), ("typical", "as typical allows")])
def test_texts_that_part_are_said_to_and_why(verify: VerifyRule, why: str) -> None:
    parted = Race(lane(WORDS, 0.1), lane(WORDS.replace("four", "five"), 0.05, proposed=9), verify)
    assert parted.differs_at == 3
    assert parted.verdict() == f"2.00x: 20 vs. 10 tok/s, different text from token 4 on, {why}"


def test_a_text_that_ends_earlier_is_another_one_unless_it_was_stopped() -> None:
    shorter = race(WORDS, "one two three")
    assert shorter.differs_at == 3
    stopped = Race(lane("one two three", 0.1, finish="cancelled"), lane(WORDS, 0.1, proposed=9))
    assert stopped.differs_at is None
    assert stopped.verdict().endswith("the same 3 tokens")


def test_one_token_is_too_little_to_compare() -> None:
    assert race("one", "one").verdict() == "too short to compare"
    assert race("one", "one").speedup is None


def test_the_fake_engine_of_tests_drafts_and_decodes_plainly() -> None:
    events = drafted_events(WORDS)
    assert "".join(event.text for event in events) == WORDS
    assert [event.round for event in events] == [0, 1, 1, 1, 2, 2, 2]
    assert [event.from_draft for event in events] == [False, True, True, False, True, True, False]
    assert [event.round for event in plain(events)] == list(range(7))
