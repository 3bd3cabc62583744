"""Messages that are sent while an answer is generated: they wait, can be changed, and are not lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from threading import Event

from fake_engine import FakeEngine
from textual.pilot import Pilot
from tui_harness import click_on, clicks, send_bytes, wait_until

from edgespec.cancel import CancelFlag
from edgespec.chat.session import Session
from edgespec.errors import GenerationError
from edgespec.events import TokenEvent
from edgespec.history import Store
from edgespec.settings import LoadSettings, Request
from edgespec.tui.app import ChatApp
from edgespec.tui.composer import CROSS

Steps = Callable[[ChatApp, Pilot[None]], Awaitable[None]]
LONG = "word " * 400


class Slow(FakeEngine):
    """Its first answer begins, and continues when `may_end` is set or the answer is cancelled."""

    def __init__(self, *answers: str, error: Exception | None = None) -> None:
        super().__init__(*answers, error=error, error_after=1)
        self.may_end = Event()

    def _events(self, request: Request, cancel: CancelFlag) -> Iterator[TokenEvent]:
        events = super()._events(request, cancel)
        yield next(events)
        while not cancel.is_set() and not self.may_end.wait(0.01):
            pass
        yield from events


def on_screen(steps: Steps, engine: Slow, store: Store | None = None, message: str | None = None) -> None:
    """Drive an app, in which `engine` is answering the message "first" if no other message is given."""

    async def drive() -> None:
        with Store.in_memory() as other:
            session = Session(store or other, lambda *_: engine, LoadSettings("demo"))
            app = ChatApp(session, message=message or "first")
            async with app.run_test(size=(100, 24), notifications=False) as pilot:
                await wait_until(pilot, lambda: bool(engine.requests) and app.is_answering)
                await steps(app, pilot)
                engine.may_end.set()

    asyncio.run(drive())


async def send(app: ChatApp, pilot: Pilot[None], *texts: str) -> None:
    for text in texts:
        app.composer.put(text)
        await pilot.press("enter")


def questions(app: ChatApp) -> list[str]:
    return [turn.content for turn in app.session.chat.turns if turn.role == "user"]


def waiting(app: ChatApp) -> str:
    """The text above the field, with an x for each cross; "" if it is hidden."""
    return str(app.composer.waiting.content).replace(CROSS, "x") if app.composer.waiting.display else ""


def test_messages_wait_while_an_answer_is_generated_and_are_sent_in_order() -> None:
    engine = Slow("one two", "three")

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await send(app, pilot, "second", "//third")
        assert waiting(app).split("\n") == [" x second", " x //third", " Up edits · sent after this answer"]
        await send(app, pilot, "/set temp 0.1")  # a command does not wait
        assert app.session.chat.settings.sampling.temperature == 0.1
        assert questions(app) == ["first"]
        engine.may_end.set()
        await wait_until(pilot, lambda: questions(app) == ["first", "second", "/third"] and not app.is_busy)
        assert waiting(app) == ""

    on_screen(steps, engine)


def test_a_waiting_message_is_edited_or_removed() -> None:
    engine = Slow("one two", "three")

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await send(app, pilot, "second", "third", "fourth")
        await pilot.press("up")
        assert app.composer.text == "fourth"
        await click_on(pilot, app.composer.waiting, "third")  # the text in the field takes its place
        assert app.composer.text == "third"
        assert "fourth" in waiting(app)
        await click_on(pilot, app.composer.waiting, CROSS)
        await pilot.press("end", "!", "enter")
        assert waiting(app).split("\n")[:-1] == [" x fourth", " x third!"]
        engine.may_end.set()
        await wait_until(pilot, lambda: questions(app) == ["first", "fourth", "third!"] and not app.is_busy)

    on_screen(steps, engine)


def test_several_clicks_on_a_cross_remove_one_message() -> None:
    """The second one arrives before the message disappears from the screen."""

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await send(app, pilot, "second", "third")
        await pilot.pause()
        send_bytes(app, clicks(app.composer.waiting, CROSS, 4))
        await wait_until(pilot, lambda: "second" not in waiting(app))
        await pilot.pause()
        assert "third" in waiting(app)
        send_bytes(app, clicks(app.composer.waiting, "third", 4))
        await wait_until(pilot, lambda: app.composer.text == "third")
        await pilot.pause()
        assert waiting(app) == ""

    on_screen(steps, Slow("one two", "three"))


def test_after_a_stopped_answer_messages_wait_for_enter() -> None:
    engine = Slow(LONG, "two")

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await send(app, pilot, "second", "third")
        await pilot.press("escape")
        await wait_until(pilot, lambda: not app.is_busy)
        assert "Enter sends · Up edits · held, because you stopped the answer" in waiting(app)
        assert questions(app) == ["first"]
        engine.may_end.set()
        await pilot.press("enter")
        await wait_until(pilot, lambda: questions(app) == ["first", "second", "third"] and not app.is_busy)

    on_screen(steps, engine)


def test_after_an_error_messages_are_held() -> None:
    engine = Slow("one two", error=GenerationError("the pass failed"))

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await send(app, pilot, "second")
        engine.may_end.set()
        await wait_until(pilot, lambda: not app.is_busy)
        assert "held, because the answer failed" in waiting(app)
        assert questions(app) == ["first"]

    on_screen(steps, engine)


def test_a_rejected_message_comes_back_even_if_it_repeats_the_last_one() -> None:
    engine = Slow("one two")
    too_long = "word " * 2000

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await send(app, pilot, too_long, "third")
        app.composer.put("typing")
        engine.may_end.set()
        await wait_until(pilot, lambda: "held, because the answer failed" in waiting(app))
        assert [line[3:7] for line in waiting(app).split("\n")[:2]] == ["word", "thir"]
        assert app.composer.text == "typing"
        assert questions(app) == ["first"]

    on_screen(steps, engine)


def test_what_waits_has_its_files_and_comes_back_in_the_field_after_quitting() -> None:
    engine = Slow(LONG)
    with Store.in_memory() as store:

        async def quit_early(app: ChatApp, pilot: Pilot[None]) -> None:
            app.controls.attach_text("the note")
            await send(app, pilot, "second", "third")
            assert " x second (1 file)" in waiting(app)
            assert app.session.chat.attached == []
            app.composer.put("unfinished")
            await pilot.press("ctrl+q")

        on_screen(quit_early, engine, store)

        async def look(app: ChatApp, pilot: Pilot[None]) -> None:
            assert app.composer.text == ""
            await pilot.press("escape")
            await wait_until(pilot, lambda: not app.is_busy)
            app.session.chat.open(next(chat.id for chat in store.chats() if chat.title == "first"))
            await app.redraw()
            assert app.composer.text == "second\n\nthird\n\nunfinished"
            assert [(file.name, file.text) for file in app.session.chat.attached] == [("pasted-1.txt", "the note")]
            app.composer.put("")
            app.session.chat.attached = []

        on_screen(look, Slow(LONG), store, message="other")


def test_a_text_that_was_never_sent_comes_back_in_the_next_new_chat() -> None:
    with Store.in_memory() as store:
        session = Session(store, lambda *_: FakeEngine(), LoadSettings("demo"))
        session.chat.keep_unsent("hello")
        again = Session(store, lambda *_: FakeEngine(), LoadSettings("demo"))
        assert again.chat.take_unsent() == "hello"
        assert Session(store, lambda *_: FakeEngine(), LoadSettings("demo")).chat.take_unsent() == ""
