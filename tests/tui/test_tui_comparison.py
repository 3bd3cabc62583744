"""Comparing on the screen: two answers side by side, keeping one of them, and errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_engine import FakeEngine, drafted_events
from textual.pilot import Pilot
from tui_harness import Styled, text_of, wait_until

from edgespec.chat.comparing import AnswerComparison, racing_sides, sides_and_text
from edgespec.chat.session import Session
from edgespec.errors import GenerationError
from edgespec.history import Store
from edgespec.settings import LoadSettings
from edgespec.tui.comparison import ComparisonScreen, LaneView, Speeds
from edgespec.tui.lines import Lines, Prose

WORDS = "[b]one[/b] two\nthree four five six seven eight nine \x1b[31mten"
RACED = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
Step = Callable[[Pilot[Any]], Awaitable[None]]


def drive(engine: FakeEngine, step: Step, text: str = "count", size: tuple[int, int] = (106, 24)) -> Session:
    """Open a comparison on `engine` and let `step` use it."""
    session = Session(Store.in_memory(), lambda *_: engine, LoadSettings("demo"))
    return drive_session(session, lambda: AnswerComparison(session, *sides_and_text(session, text)), step, size)


def drive_session(
    session: Session, compare: Callable[[], AnswerComparison], step: Step, size: tuple[int, int] = (106, 24)
) -> Session:
    """Open the comparison that `compare` makes of the session, and let `step` use it."""
    session.load()

    class Harness(Styled):
        def on_mount(self) -> None:
            self.push_screen(ComparisonScreen(compare()))

    async def run() -> None:
        async with Harness().run_test(size=size) as pilot:
            await step(pilot)

    asyncio.run(run())
    return session


def screen_of(pilot: Pilot[Any]) -> ComparisonScreen:
    screen = pilot.app.screen
    assert isinstance(screen, ComparisonScreen)
    return screen


def said(pilot: Pilot[Any]) -> str:
    return text_of(screen_of(pilot).query_one("#comparison-said", Prose))


def lane(pilot: Pilot[Any], number: int) -> LaneView:
    return list(screen_of(pilot).query(LaneView))[number - 1]


def lane_text(view: LaneView) -> str:
    return view.query_one(Lines).plain


def drawn(view: LaneView, attribute: str) -> list[str]:
    """The texts that have an attribute, such as "underline"."""
    found = []
    for y in range(view.region.height):
        for text, style, _ in view.query_one(Lines).render_line(y):
            if style is not None and getattr(style, attribute):
                found.append(text)
    return found


def tinted(view: LaneView) -> list[str]:
    """The texts that have a colour of a drafter."""
    lines = view.query_one(Lines)
    own = lines.visual_style.background
    assert own is not None
    parts = [part for y in range(view.region.height) for part in lines.render_line(y)]
    return [text for text, style, _ in parts if style is not None and style.bgcolor not in (None, own.rich_color)]


async def compared(pilot: Pilot[Any]) -> None:
    await wait_until(pilot, lambda: " vs. " in said(pilot))


def test_both_answers_are_shown_with_the_verdict() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await compared(pilot)
        assert "the same 10 tokens" in said(pilot)
        assert "accepted: 6 by draft" in said(pilot)
        for number, title in ((1, "current settings"), (2, "without drafting")):
            assert str(lane(pilot, number).border_title).startswith(title)
            assert "10 tokens, " in str(lane(pilot, number).border_subtitle)
            assert "tok/s" in str(lane(pilot, number).border_subtitle)

    session = drive(FakeEngine(WORDS, round_s=0.002), step)
    assert [turn.role for turn in session.chat.turns] == ["user", "assistant"]


def test_draft_tokens_are_coloured_and_nothing_in_a_text_is_markup_or_drives_the_terminal() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await compared(pilot)
        drafted, plain = lane(pilot, 1), lane(pilot, 2)
        assert lane_text(plain) == lane_text(drafted) == WORDS.replace("\x1b", "\ufffd")
        assert tinted(plain) == []
        words = [text.strip() for text in tinted(drafted)]
        assert [word for word in words if word] == ["two", "three", "five", "six", "eight", "nine"]

    drive(FakeEngine(WORDS), step)


def test_a_race_replays_the_first_answer_while_the_second_is_generated() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        drafted, plain = lane(pilot, 1), lane(pilot, 2)
        await wait_until(pilot, lambda: "one" in lane_text(plain) and len(lane_text(drafted)) < len(RACED))
        assert str(drafted.border_title) == "with drafting · replay"
        lines = pilot.app.screen.query_one(Speeds)
        await wait_until(pilot, lambda: "━" in str(lines.render()))
        await compared(pilot)
        assert text_of(drafted.query_one(Lines)) == text_of(plain.query_one(Lines)) == RACED
        assert str(drafted.border_title) == "with drafting"
        with_drafts, without = (line.count("━") for line in str(lines.render()).split("\n"))
        assert 0 < without < with_drafts
        assert "with drafting: " in said(pilot)

    session = Session(Store.in_memory(), lambda *_: FakeEngine(RACED, round_s=0.2), LoadSettings("demo"))
    drive_session(session, lambda: AnswerComparison(session, racing_sides(session), "count"), step)


def test_a_comparison_of_settings_is_no_race() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await compared(pilot)
        assert not pilot.app.screen.query(Speeds)

    drive(FakeEngine("first one", "other one"), step, "temp=0 | temp=1 -- x")


def test_a_key_keeps_one_answer_and_the_other_stays_a_branch() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await compared(pilot)
        await pilot.press("2")
        await wait_until(pilot, lambda: not isinstance(pilot.app.screen, ComparisonScreen))

    session = drive(FakeEngine("first one", "other one"), step, "temp=0 | temp=1 -- x")
    assert session.chat.turns[-1].content == "other one"
    assert len(session.chat.branches()) == 2


def test_the_answer_whose_prompt_is_read_is_named() -> None:
    has_read = threading.Semaphore(0)

    class Reading(FakeEngine):
        def _events(self, *asked: Any) -> Any:
            assert has_read.acquire(timeout=60)
            return super()._events(*asked)

    async def step(pilot: Pilot[Any]) -> None:
        for title in ("current settings", "without drafting"):
            await wait_until(pilot, lambda title=title: f"{title}, reading the prompt" in said(pilot))  # type: ignore[misc]
            has_read.release()

    drive(Reading("one"), step)


def test_escape_stops_and_then_leaves() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await wait_until(pilot, lambda: "tokens ..." in said(pilot))
        await pilot.press("escape")
        await wait_until(pilot, lambda: "stopped" in said(pilot))
        await pilot.press("escape")
        await wait_until(pilot, lambda: not isinstance(pilot.app.screen, ComparisonScreen))

    session = drive(FakeEngine("word " * 200, round_s=0.02), step)
    assert session.chat.turns[-1].role == "assistant"


@pytest.mark.long
def test_leaving_the_program_saves_what_has_come() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await wait_until(pilot, lambda: "tokens ..." in said(pilot))

    session = drive(FakeEngine("word " * 200, round_s=0.02), step)
    assert session.chat.turns[-1].content.startswith("word")
    assert session.chat.turns[-1].answer is not None
    assert session.chat.turns[-1].answer.finish_reason == "cancelled"


@pytest.mark.parametrize("error", [GenerationError("it died", why="signal 9", hint="restart it"), OSError("it died")])
def test_an_engine_that_fails_is_reported(error: Exception) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await wait_until(pilot, lambda: str(error) in said(pilot))
        await pilot.press("escape")
        await wait_until(pilot, lambda: not isinstance(pilot.app.screen, ComparisonScreen))

    drive(FakeEngine(WORDS, error=error), step)


def test_texts_that_part_are_marked_where_they_do() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await compared(pilot)
        assert "different text from token 3 on" in said(pilot)
        for number, word in ((1, " drei"), (2, " three")):
            assert drawn(lane(pilot, number), "reverse") == [word]

    drafted = drafted_events("one two drei four")
    plain = [
        replace(event, id=event.id + 100 * (event.text == " three")) for event in drafted_events("one two three four")
    ]
    drive(FakeEngine(drafted, plain), step)


@pytest.mark.parametrize(("width", "side_by_side"), [(120, True), (60, True), (59, False), (40, False)])
def test_lanes_lie_side_by_side_where_there_is_room(width: int, side_by_side: bool) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        first, second = lane(pilot, 1).region, lane(pilot, 2).region
        assert (first.y == second.y) == side_by_side
        assert (first.x == second.x) != side_by_side
        assert first.width > 20
        assert first.height >= 6

    drive(FakeEngine(), step, size=(width, 22))
