"""Calls of tools on the screen: the question, the running call, folded results, and a chat that is opened again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from calling import calling_model, written_call
from fake_engine import FakeEngine
from textual.pilot import Pilot
from textual.widgets import OptionList
from tui_harness import wait_until

from edgespec.cancel import CancelFlag
from edgespec.chat.session import Session
from edgespec.history import Store
from edgespec.settings import LoadSettings
from edgespec.tools.config import ServerConfig
from edgespec.tools.server import Reply, ToolDescription, ToolServer
from edgespec.tools.toolbox import Toolbox
from edgespec.tui.app import ChatApp
from edgespec.tui.lines import Prose
from edgespec.tui.tool_calls import CallLine, PermissionScreen
from edgespec.tui.turn_view import TurnView

ABOUT: ToolDescription = {
    "name": "add",
    "description": "Add [bold]numbers[/bold].",
    "parameters": {"type": "object"},
    "problem": "",
}
CALL = f"Let me see.\n{written_call('add', a=1, text='[red]two[/red]')}"
Steps = Callable[[ChatApp, Pilot[None]], Awaitable[None]]


class Ready(ToolServer):
    """A server without a process; each call waits until it may `reply`."""

    def __init__(self) -> None:
        super().__init__(ServerConfig("sums", "x"))
        self.state, self.tools = "ready", [ABOUT]
        self.may_reply = threading.Event()
        self.may_reply.set()

    def call(self, tool: str, arguments: Mapping[str, Any], cancel: CancelFlag) -> Reply:
        while not self.may_reply.wait(0.01):
            if cancel.is_set():
                return Reply("", how="cancelled")
        return Reply("[bold]3[/bold]\x1b[2J\nend")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return calling_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.in_memory() as store:
        yield store


def on_screen(steps: Steps, store: Store, model: Path, *answers: str, resumes: bool = False) -> None:
    """Drive an app whose model gives these answers, with one tool."""

    async def drive() -> None:
        toolbox = Toolbox([ServerConfig("sums", "x")])
        toolbox.servers = [Ready()]
        loaded = LoadSettings(str(model))
        engine = FakeEngine(*answers, settings=loaded)
        session = Session(store, lambda *_: engine, loaded, toolbox=toolbox)
        if resumes:
            session.chat.open("last")
        app = ChatApp(session)
        async with app.run_test(size=(100, 40)) as pilot:
            await wait_until(pilot, lambda: not app.is_busy)
            await steps(app, pilot)

    asyncio.run(drive())


async def ask(app: ChatApp, pilot: Pilot[None]) -> None:
    """Send a message, and wait for the question about its call."""
    app.composer.put("What is the sum?")
    await pilot.press("enter")
    await wait_until(pilot, lambda: isinstance(app.screen, PermissionScreen))


def shown(app: ChatApp) -> str:
    return "\n".join(view.plain for view in app.screen_stack[0].query(TurnView))


def outcomes(app: ChatApp) -> list[str]:
    return [turn.content.split("\n")[1] for turn in app.session.chat.turns if turn.role == "tool"]


def test_a_call_is_asked_about_runs_and_is_folded_below_the_answer(store: Store, model: Path) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await ask(app, pilot)
        arguments = app.screen.query_one("#arguments Prose", Prose).plain
        assert 'text: "[red]two[/red]"' in arguments
        await pilot.press("enter")  # nothing is highlighted yet: a user who types allows nothing
        assert isinstance(app.screen, PermissionScreen)
        await pilot.press("down", "down", "enter")
        await wait_until(pilot, lambda: not app.is_busy)
        assert outcomes(app) == ["ok"]
        assert "Let me see." in shown(app) and "It is three." in shown(app) and "tool_call" not in shown(app)
        line = next(line for line in shown(app).split("\n") if "sums/add" in line)
        assert line == '▸ sums/add(a: 1, text: "[red]two[/red]")  2 lines, 22 characters'
        view = next(view for view in app.query(TurnView) if view.turn and view.turn.role == "tool")
        view.focus()
        await pilot.press("enter")
        assert "│ [bold]3[/bold]\ufffd[2J\n│ end" in view.plain

    on_screen(steps, store, model, CALL, "It is three.")

    async def again(app: ChatApp, pilot: Pilot[None]) -> None:
        assert "▸ sums/add(a: 1" in shown(app) and "It is three." in shown(app) and "tool_call" not in shown(app)

    on_screen(again, store, model, "x", resumes=True)


def test_a_denied_call_and_a_stopped_question(store: Store, model: Path) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await ask(app, pilot)
        await pilot.press("up", "enter")
        await wait_until(pilot, lambda: not app.is_busy)
        assert outcomes(app) == ["denied"] and "not allowed by you" in shown(app)
        await ask(app, pilot)
        await pilot.press("escape")
        await wait_until(pilot, lambda: not app.is_busy)
        assert outcomes(app) == ["denied", "stopped"]
        assert app.session.chat.turns[-1].role == "tool"

    on_screen(steps, store, model, CALL, "Then not.", CALL, "x")


def test_escape_stops_a_running_tool(store: Store, model: Path) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        [server] = app.session.tools.toolbox.servers
        assert isinstance(server, Ready)
        server.may_reply.clear()
        await ask(app, pilot)
        app.screen.query_one(OptionList).highlighted = 0
        await pilot.press("enter")
        await wait_until(pilot, lambda: bool(app.query(CallLine)) and "running" in app.query_one(CallLine).plain)
        await pilot.press("escape")
        await wait_until(pilot, lambda: not app.is_busy)
        assert outcomes(app) == ["stopped"] and not app.query(CallLine)

    on_screen(steps, store, model, CALL, "x")
