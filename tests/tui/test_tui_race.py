"""The race on the screen: asking, racing, replaying, and what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_engine import FakeEngine, drafted_events
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Static
from tui_harness import wait_until

from edgespec.chat.race import Lane, Race, Timed
from edgespec.errors import GenerationError, UsageError
from edgespec.events import TokenEvent
from edgespec.settings import Request
from edgespec.tui.lines import Lines
from edgespec.tui.race import LaneView, RacePrompt, RaceScreen

WORDS = "[b]one[/b] two\n three four five six seven eight nine \x1b[31mten"
Step = Callable[[Pilot[Any]], Awaitable[None]]


def drive(engine: FakeEngine, step: Step, prompt: str = "count", size: tuple[int, int] = (120, 40)) -> None:
    """Open a race on `engine` and let `step` use it."""

    class Harness(App[Any]):
        def on_mount(self) -> None:
            self.push_screen(RaceScreen(engine, Request, prompt))

    async def run() -> None:
        async with Harness().run_test(size=size) as pilot:
            await step(pilot)

    asyncio.run(run())


def screen_of(pilot: Pilot[Any]) -> RaceScreen:
    screen = pilot.app.screen
    assert isinstance(screen, RaceScreen)
    return screen


def said(pilot: Pilot[Any]) -> str:
    return str(screen_of(pilot).query_one("#race-said", Static).content)


def lane(pilot: Pilot[Any], name: str) -> LaneView:
    return screen_of(pilot).query_one(f"#race-{name}", LaneView)


def text_of(view: LaneView) -> str:
    return view.query_one(Lines).plain


def drawn(view: LaneView, attribute: str) -> list[str]:
    """What is drawn with an attribute, such as "underline"."""
    found = []
    for y in range(view.region.height):
        for text, style, _ in view.query_one(Lines).render_line(y):
            if style is not None and getattr(style, attribute):
                found.append(text)
    return found


async def raced(pilot: Pilot[Any]) -> None:
    await pilot.press("enter")
    await wait_until(pilot, lambda: screen_of(pilot).check_action("pause", ()) is True)


def test_enter_races_and_the_end_tells_who_won_and_that_the_text_is_the_same() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        assert screen_of(pilot).focused is screen_of(pilot).query_one(RacePrompt)
        await raced(pilot)
        await pilot.press("end")
        await wait_until(pilot, lambda: " vs. " in said(pilot))
        assert "the same 10 tokens" in said(pilot)
        assert "accepted (underlined): 6 by draft" in said(pilot)
        for name in ("plain", "drafted"):
            assert "done, 10 tokens" in str(lane(pilot, name).border_subtitle)
            assert "tok/s" in str(lane(pilot, name).border_title)

    drive(FakeEngine(WORDS, round_s=0.002), step)


def test_draft_tokens_are_underlined_and_nothing_in_a_text_is_markup_or_drives_the_terminal() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await raced(pilot)
        await pilot.press("end")
        await wait_until(pilot, lambda: " vs. " in said(pilot))
        plain, drafted = lane(pilot, "plain"), lane(pilot, "drafted")
        assert text_of(plain) == text_of(drafted) == WORDS.replace("\x1b", "\ufffd")
        assert drawn(plain, "underline") == []
        words = [text.strip() for text in drawn(drafted, "underline")]
        assert [word for word in words if word] == ["two", "three", "five", "six", "eight", "nine"]

    drive(FakeEngine(WORDS), step)


def test_the_replay_is_paused_and_goes_on_at_other_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await raced(pilot)
        await wait_until(pilot, lambda: said(pilot).endswith("of 101 s, x1"))
        await pilot.press("space")
        await wait_until(pilot, lambda: said(pilot).endswith("paused"))
        before = said(pilot)
        await pilot.pause(0.1)
        assert said(pilot) == before
        await pilot.press("4")
        await wait_until(pilot, lambda: said(pilot).endswith("of 101 s, x4"))
        await pilot.press("end")
        await wait_until(pilot, lambda: " vs. " in said(pilot))
        await pilot.press("space")  # once more from the beginning
        await wait_until(pilot, lambda: said(pilot).endswith("of 101 s, x4"))

    events = [Timed(1 + 100.0 * index, TokenEvent(index, "x")) for index in range(2)]
    answer = Lane((*events, Timed(102, TokenEvent(-1, "", finish_reason="stop"))))
    monkeypatch.setattr("edgespec.tui.race.run_race", lambda *args: Race(answer, answer))
    drive(FakeEngine(), step)


def test_escape_stops_the_race_and_then_leaves() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await pilot.press("enter")
        await wait_until(pilot, lambda: "1 of 2" in said(pilot))
        await pilot.press("escape")
        await wait_until(pilot, lambda: "stopped" in said(pilot))
        await pilot.press("escape")
        await wait_until(pilot, lambda: not isinstance(pilot.app.screen, RaceScreen))

    drive(FakeEngine("word " * 200, round_s=0.02), step)


def test_r_races_again() -> None:
    engine = FakeEngine(WORDS)

    async def step(pilot: Pilot[Any]) -> None:
        await raced(pilot)
        await pilot.press("r")
        await wait_until(pilot, lambda: len(engine.requests) == 6)
        await wait_until(pilot, lambda: screen_of(pilot).check_action("pause", ()) is True)
        assert {request.prompt for request in engine.requests} == {"count"}

    drive(engine, step)


def test_the_prompt_is_edited_in_place_over_several_lines() -> None:
    engine = FakeEngine(WORDS)

    async def step(pilot: Pilot[Any]) -> None:
        await raced(pilot)
        await pilot.press("e", "end", "1", "ctrl+j", "r")  # plain letters once it is being edited
        await raced(pilot)
        assert engine.requests[-1].prompt == "count1\nr"

    drive(engine, step)


@pytest.mark.parametrize("error", [GenerationError("it died", why="signal 9", hint="restart it"), OSError("it died")])
def test_an_engine_that_fails_is_reported_and_may_be_tried_again(error: Exception) -> None:
    engine = FakeEngine(WORDS, error=error)

    async def step(pilot: Pilot[Any]) -> None:
        await pilot.press("enter")
        await wait_until(pilot, lambda: "it died" in said(pilot))
        assert str(error) in said(pilot)
        engine.error = None
        await raced(pilot)

    drive(engine, step)


def test_what_cannot_be_asked_is_said_at_once() -> None:
    class Refusing(App[Any]):
        def on_mount(self) -> None:
            self.push_screen(RaceScreen(FakeEngine(), self.refuse, "x"))

        def refuse(self, prompt: str) -> Request:
            raise UsageError("no such rule")

    async def run() -> None:
        async with Refusing().run_test() as pilot:
            await pilot.press("enter")
            await wait_until(pilot, lambda: said(pilot) == "no such rule")

    asyncio.run(run())


def test_an_empty_prompt_asks_for_one() -> None:
    engine = FakeEngine()

    async def step(pilot: Pilot[Any]) -> None:
        await pilot.press("enter")
        await wait_until(pilot, lambda: "Type a prompt first" in said(pilot))
        assert not engine.requests

    drive(engine, step, prompt=" ")


def test_texts_that_part_are_marked_where_they_do() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await raced(pilot)
        await pilot.press("end")
        await wait_until(pilot, lambda: "different text from token 3 on" in said(pilot))
        for name, word in (("plain", " three"), ("drafted", " drei")):
            assert drawn(lane(pilot, name), "reverse") == [word]

    drafted = drafted_events("one two drei four")
    plain = [
        replace(event, id=event.id + 100 * (event.text == " three")) for event in drafted_events("one two three four")
    ]
    drive(FakeEngine("warm", drafted, plain), step)


@pytest.mark.parametrize(("width", "side_by_side"), [(120, True), (60, True), (59, False), (40, False)])
def test_lanes_lie_side_by_side_where_there_is_room(width: int, side_by_side: bool) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        plain, drafted = lane(pilot, "plain").region, lane(pilot, "drafted").region
        assert (plain.y == drafted.y) == side_by_side
        assert (plain.x == drafted.x) != side_by_side
        assert plain.width > 20
        assert plain.height >= 6

    drive(FakeEngine(), step, size=(width, 20))
