"""Two answers to one message: what they are made with, what is kept of them, and what is said of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, drafted_events, plain

from edgespec.cancel import CancelFlag
from edgespec.chat.comparing import AnswerComparison, Lane, racing_sides, side_of, sides_and_text
from edgespec.chat.session import Session
from edgespec.chat.settings import ChatSettings
from edgespec.core.sampling import SamplingSettings
from edgespec.core.stats import Stats
from edgespec.core.verify import VerifyRule
from edgespec.errors import EdgespecError, GenerationError, OutOfMemoryError, UsageError
from edgespec.events import FinishReason, TokenEvent
from edgespec.history import Store
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings

WORDS = "one two three four five six seven"


def session_with(open_engine: Callable[..., Any], model: str = "demo", **settings: Any) -> Session:
    session = Session(Store.in_memory(), open_engine, LoadSettings(model, threads=1), ChatSettings(**settings))
    session.load()
    return session


def talking_to(engine: Any, **settings: Any) -> Session:
    return session_with(lambda *_: engine, **settings)


def compared(session: Session, argument: str, cancel: CancelFlag | None = None, **heard: Any) -> AnswerComparison:
    comparison = AnswerComparison(session, *sides_and_text(session, argument))
    comparison.run(cancel or CancelFlag(), **heard)
    return comparison


def branches(session: Session) -> set[str]:
    """All that was ever said in the chat."""
    return {turn.content for branch in session.chat.branches() for turn in session.store.path(branch.leaf)}


# --- what is asked for ------------------------------------------------------------------------------------------------


def test_sides_are_read_as_they_are_typed() -> None:
    session = talking_to(FakeEngine())
    sides, text = sides_and_text(session, "Say -1 | two")
    assert ([side.title for side in sides], text) == (["current settings", "without drafting"], "Say -1 | two")
    sides, text = sides_and_text(session, "temp=0 | 'other model.gguf' seed=7 draft=none -- hello -- you")
    assert text == "hello -- you"
    assert [side.settings.sampling.temperature for side in sides] == [0.0, session.chat.settings.sampling.temperature]
    assert sides[0].loads is None
    assert sides[1].loads is not None
    assert (sides[1].loads.model, sides[1].settings.seed) == ("other model.gguf", 7)
    sides, text = sides_and_text(session, "model=demo temp=1.5 --")
    assert (sides[0].title, sides[1].loads, text) == ("current settings", None, "")


@pytest.mark.parametrize("changes", ["nonsense=1", "temp=hot", "'open", "temp=-1"])
def test_a_side_that_cannot_be_is_refused(changes: str) -> None:
    with pytest.raises(UsageError):
        side_of(talking_to(FakeEngine()), changes)


# --- answering --------------------------------------------------------------------------------------------------------


def test_both_answers_are_branches_and_the_chat_shows_the_first_until_another_is_kept() -> None:
    session = talking_to(FakeEngine("warm", "one", "two"), seed=3)
    deque(session.ask("before"), maxlen=0)
    comparison = compared(session, "temp=0 | temp=1 -- hello")
    assert [turn.content for turn in session.chat.turns] == ["before", "warm", "hello", "one"]
    answers = [turn.answer for turn in session.chat.turns if turn.answer]
    assert [answer.settings["sampling"]["temperature"] for answer in answers] == [0.8, 0.0]
    comparison.keep(1)
    assert [turn.content for turn in session.chat.turns] == ["before", "warm", "hello", "two"]
    assert branches(session) == {"before", "warm", "hello", "one", "two"}
    assert session.chat.settings == ChatSettings(seed=3)
    assert session.chat.saved_id is not None
    assert session.store.chat_settings(session.chat.saved_id)["sampling"]["temperature"] == 0.8


def test_an_answer_is_kept_only_in_its_own_chat() -> None:
    session = talking_to(FakeEngine())
    comparison = compared(session, "hello")
    session.chat.new()
    list(session.ask("another chat"))
    turns = session.chat.turns
    with pytest.raises(UsageError, match="another chat"):
        comparison.keep(1)
    assert session.chat.turns == turns


def test_the_last_message_is_answered_again_where_none_is_given() -> None:
    engine = FakeEngine("old", "one", "two")
    session = talking_to(engine)
    deque(session.ask("hello"), maxlen=0)
    comparison = compared(session, "temp=0 --")
    assert [turn.content for turn in session.chat.turns] == ["hello", "old"], "until one of the others is kept"
    assert branches(session) == {"hello", "old", "one", "two"}
    assert [request.sampling.temperature for request in engine.requests] == [0.8, 0.8, 0.0]
    comparison.keep(0)
    assert [turn.content for turn in session.chat.turns] == ["hello", "one"]


def test_both_have_the_same_seed_and_the_same_conversation() -> None:
    engine = FakeEngine("one", "two")
    compared(talking_to(engine), "hello")
    first, second = engine.requests
    assert (first.seed, first.sample, first.messages) == (second.seed, 0, second.messages)


def test_in_a_race_the_drafted_answer_comes_first_and_neither_finds_a_cache() -> None:
    engine = FakeEngine(WORDS)
    comparison = compared(talking_to(engine), "pace=off | -- x")
    assert [call for call in engine.calls if call != "pace auto"] == [
        "forget", "answer", "forget", "pace off", "answer",
    ]  # fmt: skip
    assert [lane.stats.proposed > 0 for lane in comparison.lanes] == [False, True]
    assert comparison.differs_at is None


def test_another_model_answers_from_its_own_memory_and_leaves_it() -> None:
    opened: list[tuple[str, FakeEngine]] = []

    def open_engine(wanted: LoadSettings, *_: Any) -> FakeEngine:
        opened.append((wanted.model, FakeEngine("one" if len(opened) == 0 else "other", settings=wanted)))
        return opened[-1][1]

    session = session_with(open_engine)
    comparison = compared(session, "draft=none -- x")
    assert [lane.events[0].text for lane in comparison.lanes] == ["one", "other"]
    assert [engine.closed for _, engine in opened] == [False, True]
    assert session.model.engine is opened[0][1]
    assert not comparison.is_race


def test_a_model_that_leaves_no_room_for_another_is_loaded_again_afterwards() -> None:
    opened: list[FakeEngine] = []

    def open_engine(wanted: LoadSettings, *_: Any) -> FakeEngine:
        if any(not engine.closed for engine in opened):
            raise OutOfMemoryError("no room")
        opened.append(FakeEngine(f"answer {len(opened)}", settings=wanted))
        return opened[-1]

    session = session_with(open_engine)
    comparison = compared(session, "draft=none -- x")
    assert ["".join(event.text for event in lane.tokens) for lane in comparison.lanes] == ["answer 0", "answer 1"]
    assert [engine.closed for engine in opened] == [True, True, False]
    assert session.model.engine is opened[2]


def test_a_model_that_is_not_there_is_told_before_anything_is_said() -> None:
    session = talking_to(FakeEngine("one"))
    with pytest.raises(EdgespecError, match="nowhere"):
        compared(session, "nowhere.gguf -- x")
    assert session.chat.turns == []
    assert session.load_settings.model == "demo"


def test_a_model_that_cannot_be_loaded_leaves_the_chat_as_it_was_but_for_the_first_answer() -> None:
    def open_engine(wanted: LoadSettings, *_: Any) -> FakeEngine:
        if wanted != LoadSettings("demo", threads=1):
            raise GenerationError("it breaks")
        return FakeEngine("one", settings=wanted)

    session = session_with(open_engine)
    with pytest.raises(GenerationError, match="breaks"):
        compared(session, "draft=none -- x")
    assert [turn.content for turn in session.chat.turns] == ["x", "one"]
    assert session.model.engine is not None
    assert session.load_settings.draft_model is None


@pytest.mark.parametrize(("stopped", "lengths"), [(0, [4, 0]), (1, [7, 4])])
def test_what_is_stopped_is_kept_as_far_as_it_came(stopped: int, lengths: list[int]) -> None:
    cancel, heard = CancelFlag(), [0, 0]

    def stop(side: int) -> None:
        heard[side] += 1
        if side == stopped and heard[side] == 4:
            cancel.set()

    comparison = compared(talking_to(FakeEngine(WORDS)), "temp=0 -- x", cancel, heard=stop)
    assert [len(lane.tokens) for lane in comparison.lanes] == lengths
    if stopped:
        assert comparison.verdict().endswith("the same 4 tokens")
    else:
        assert comparison.verdict() == "stopped before there was anything to compare"
        with pytest.raises(UsageError):
            comparison.keep(1)


def test_an_engine_that_fails_keeps_the_chats_own_settings() -> None:
    engine = FakeEngine(WORDS, error=GenerationError("no"), error_after=3)
    session = talking_to(engine, pace="fixed:2")
    with pytest.raises(GenerationError, match="no"):
        compared(session, "x")
    assert session.chat.settings.pace == "fixed:2"
    assert session.chat.turns[-1].content == "one two three"


def test_the_bundled_pair_says_the_same_twice_and_only_once_with_drafts(home: Path) -> None:
    loads = LoadSettings("demo", threads=1, pace="fixed:4", spec_type="draft", store=False)
    settings = ChatSettings(sampling=SamplingSettings(temperature=0.6), seed=3, max_tokens=32)
    with Session(Store.in_memory(), lambda *_: Runtime(loads), loads, settings) as session:
        session.load()
        comparison = compared(session, "Write a function that adds two numbers.")
    first, second = comparison.lanes
    assert comparison.differs_at is None
    assert len(first.tokens) == len(second.tokens) > 20
    assert comparison.drafted_by["draft"] > 5
    assert second.stats.tokens_per_round == 1 < first.stats.tokens_per_round
    assert [lane.stats.cached_tokens for lane in comparison.lanes] == [0, 0]
    assert f"the same {len(first.tokens)} tokens" in comparison.verdict()


def test_a_race_has_sides_with_and_without_drafting() -> None:
    session = talking_to(FakeEngine())
    sides = racing_sides(session)
    assert [side.title for side in sides] == ["with drafting", "without drafting"]
    assert [side.is_plain for side in sides] == [False, True]
    assert AnswerComparison(session, sides).is_race
    session.chat.change({"pace": "off"})
    with pytest.raises(UsageError, match="drafting is off"):
        racing_sides(session)


# --- what is made of the times ----------------------------------------------------------------------------------------


def lane(text: str, step_s: float, *, finish: FinishReason = "stop", proposed: int = 0) -> Lane:
    """A token a word, `step_s` apart; equal words have equal ids."""
    events = [TokenEvent(int.from_bytes(word.encode()), f"{word} ") for word in text.split()]
    stats = Stats(generated_tokens=len(events), generation_s=len(events) * step_s, proposed=proposed)
    return Lane([*events, TokenEvent(-1, "", finish_reason=finish, stats=stats)])


def of(first: Lane, second: Lane, verify: VerifyRule = "coupled") -> AnswerComparison:
    session = talking_to(FakeEngine(), verify=verify)
    comparison = AnswerComparison(session, *sides_and_text(session, "x"))
    comparison.lanes = first, second
    return comparison


@pytest.mark.parametrize(
    ("first_s", "verdict"),
    [
        (0.05, "current settings: 2.00x as fast, 20 vs. 10 tok/s, the same 7 tokens"),
        (0.2, "without drafting: 2.00x as fast, 5.0 vs. 10 tok/s, the same 7 tokens"),
        (0.101, "equally fast: 9.9 vs. 10 tok/s, the same 7 tokens"),
    ],
)
def test_which_was_faster_is_said_as_it_is(first_s: float, verdict: str) -> None:
    assert of(lane(WORDS, first_s, proposed=9), lane(WORDS, 0.1)).verdict() == verdict


def test_a_lane_knows_when_its_tokens_came_and_its_speed_then() -> None:
    events = [TokenEvent(number, "x") for number in range(5)]
    replayed = Lane(events, times_s=[1.0, 1.5, 2.0, 2.0, 3.0])
    assert [replayed.n_until(time_s) for time_s in (0.5, 1.0, 2.4, 9.0)] == [0, 1, 4, 5]
    assert [replayed.speed_of(n) for n in (0, 1, 2, 4, 5)] == [None, None, 2.0, 3.0, 2.0]


def test_only_the_first_answer_of_a_race_is_replayed() -> None:
    comparison = of(lane(WORDS, 0.1), Lane(begun_s=10.0))
    comparison.running = 1
    assert comparison.replayed(12.5) == (0, 2.5)
    comparison.running = 0
    assert comparison.replayed(12.5) == (None, 0.0)


def test_a_race_without_a_draft_says_so() -> None:
    both = lane(WORDS, 0.1)
    assert of(both, both).verdict().startswith("nothing was drafted")


@pytest.mark.parametrize(("verify", "why"), [("coupled", "by rounding"), ("block", "as block allows")])
def test_texts_that_part_are_said_to_and_why(verify: VerifyRule, why: str) -> None:
    parted = of(lane(WORDS.replace("four", "five"), 0.05, proposed=9), lane(WORDS, 0.1), verify)
    assert parted.differs_at == 3
    assert parted.verdict().endswith(f"different text from token 4 on, {why}")


def test_a_text_that_ends_earlier_is_another_one_unless_it_was_stopped() -> None:
    assert of(lane(WORDS, 0.1, proposed=9), lane("one two three", 0.1)).differs_at == 3
    stopped = of(lane(WORDS, 0.1, proposed=9), lane("one two three", 0.1, finish="cancelled"))
    assert stopped.differs_at is None
    assert stopped.verdict().endswith("the same 3 tokens")


def test_one_token_is_too_little_to_compare() -> None:
    assert of(lane("one", 0.1), lane("one", 0.1)).verdict() == "too short to compare"


def test_the_fake_engine_of_tests_drafts_and_decodes_plainly() -> None:
    events = drafted_events(WORDS)
    assert "".join(event.text for event in events) == WORDS
    assert [event.round for event in events] == [0, 1, 1, 1, 2, 2, 2]
    assert [event.from_draft for event in events] == [False, True, True, False, True, True, False]
    assert [event.round for event in plain(events)] == list(range(7))
