"""Shared by tests of the screen: an app that holds widgets, waiting for a state, made-up chats and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

from rich.cells import cell_len
from textual._xterm_parser import XTermParser
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.pilot import Pilot
from textual.screen import Screen
from textual.selection import Selection
from textual.widget import Widget

import edgespec.tui
from edgespec.events import TokenEvent
from edgespec.history import Turn
from edgespec.tui.lines import Lines
from edgespec.tui.screens import BaseScreen

PATIENCE_S = 40.0


async def wait_until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    """Let the app work until the condition holds."""
    deadline_s = monotonic() + PATIENCE_S
    await pilot.pause()
    while not condition():
        assert monotonic() < deadline_s, "it never came to hold"
        await asyncio.sleep(0.01)
    await pilot.pause()


Play = Callable[[Pilot[Any]], Awaitable[None]]


class Stage:
    """An app that stays open for several tests: starting one takes longer than most of them."""

    def __init__(self, app: App[Any], size: tuple[int, int]) -> None:
        self._loop = asyncio.new_event_loop()
        self._plays = asyncio.Queue[tuple[Play | None, asyncio.Future[None]]]()
        self._task = self._loop.create_task(self._run(app, size))

    async def _run(self, app: App[Any], size: tuple[int, int]) -> None:
        async with app.run_test(size=size, notifications=False) as pilot:
            while True:
                play, is_over = await self._plays.get()
                try:
                    if play is not None:
                        await play(pilot)
                except BaseException as error:
                    is_over.set_exception(error)
                else:
                    is_over.set_result(None)
                if play is None:
                    return

    def play(self, play: Play | None) -> None:
        """Let a test use the app, or with None close it. Raises what the test or the app raises."""
        is_over: asyncio.Future[None] = self._loop.create_future()
        self._plays.put_nowait((play, is_over))
        waiting = asyncio.wait({is_over, self._task}, return_when=asyncio.FIRST_COMPLETED)
        self._loop.run_until_complete(waiting)
        if is_over.done():
            is_over.result()
        if play is None or self._task.done():
            self._loop.run_until_complete(self._task)
            self._loop.close()


class Styled(App[Any]):
    """An app with the style sheet and the screen of the chat."""

    CSS_PATH = Path(edgespec.tui.__file__).parent / "app.tcss"

    def get_default_screen(self) -> Screen[object]:
        return BaseScreen(id="_default")


class Harness(Styled):
    """Holds widgets one below the other; keeps messages of some kinds that reach it, the actions of the chat's app that
    are called, and the links it is to open."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "stop")]

    def __init__(self, *widgets: Widget, keeps: tuple[type[Message], ...] = ()) -> None:
        super().__init__()
        self._widgets, self._keeps = widgets, keeps
        self.messages: list[Message] = []
        self.opened: list[str] = []
        self.called: list[str] = []

    def compose(self) -> ComposeResult:
        yield from self._widgets

    def post_message(self, message: Message) -> bool:
        if isinstance(message, self._keeps):
            self.messages.append(message)
        return super().post_message(message)

    def action_stop(self) -> None:
        self.called.append("stop")

    def action_page(self, step: int) -> None:
        self.called.append(f"page {step}")

    def action_newest(self) -> None:
        self.called.append("newest")

    def action_call(self, name: str) -> None:
        self.called.append(f"call {name}")

    def open_url(self, url: str, *, new_tab: bool = True) -> None:
        self.opened.append(url)


async def click_on(pilot: Pilot[Any], widget: Widget, text: str) -> None:
    """Click at the first place where the widget shows this text."""
    for y, strip in enumerate(widget.render_lines(widget.outer_size.region)):
        if text in strip.text:
            assert await pilot.click(widget, offset=(strip.text.index(text), y))
            return
    raise AssertionError(f"it does not show {text!r}")


def place_of(widget: Widget, text: str) -> tuple[int, int]:
    """Return where on the screen a widget first shows this text."""
    for y, strip in enumerate(widget.render_lines(widget.outer_size.region)):
        if text in strip.text:
            cells = cell_len(strip.text.partition(text)[0])
            return widget.region.x + cells, widget.region.y + y
    raise AssertionError(f"it does not show {text!r}")


def send_bytes(app: App[Any], data: str) -> None:
    """Let the app get what a terminal sends, all at once, as Textual's driver reads it."""
    assert app._driver is not None
    for message in (*(parser := XTermParser()).feed(data), *parser.tick()):
        app._driver.process_message(message)


def clicks(widget: Widget, text: str, n: int) -> str:
    """Return what a terminal sends for `n` clicks at the first place where the widget shows this text."""
    x, y = place_of(widget, text)
    return f"\x1b[<0;{x + 1};{y + 1}M\x1b[<0;{x + 1};{y + 1}m" * n


def chat(n: int, text: str = "message") -> list[Turn]:
    """A chat of `n` messages with keys k0, k1 ..., by turns the user's and the assistant's."""
    roles = ("user", "assistant")
    return [
        Turn(f"k{index}", f"k{index - 1}" if index else None, roles[index % 2], f"{text} {index}", float(index))
        for index in range(n)
    ]


def tokens(text: str, size: int = 4) -> Iterator[TokenEvent]:
    """An answer as it comes: by turns a token of the target and one that was drafted, two a round."""
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    for index, piece in enumerate(pieces):
        is_drafted = index % 2 == 1
        yield TokenEvent(index, piece, is_drafted, "draft" if is_drafted else "", index // 2, proposed=3)


def text_of(widget: Lines) -> str:
    """The text of a widget, without the line breaks of the wrapping."""
    return widget.get_selection(Selection(None, None))[0]
