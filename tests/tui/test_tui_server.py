"""The full-screen chat with a model of a server."""

from __future__ import annotations

import asyncio

import pytest
from stand_in import StandIn, stand_in
from tui_harness import wait_until

from edgespec.chat.session import Session
from edgespec.history import Store
from edgespec.remote.model import RemoteModel
from edgespec.settings import LoadSettings
from edgespec.tui.app import ChatApp
from edgespec.tui.turn_window import Note

pytestmark = pytest.mark.cli


def notes(app: ChatApp) -> str:
    return "\n".join(entry.text for entry in app.transcript.entries if isinstance(entry, Note))


async def drive(other: StandIn, store: Store) -> None:
    session = Session(
        store, lambda settings, *_: RemoteModel(other.url, "", settings), LoadSettings("other"), server=other.url
    )
    app = ChatApp(session)
    async with app.run_test(size=(100, 40)) as pilot:
        await wait_until(pilot, lambda: not app.is_busy)
        other.fails += ["busy", "lost"]
        app.jobs.send("one two three")
        await wait_until(pilot, lambda: len(session.chat.turns) == 2 and not app.is_busy)
        assert session.chat.turns[-1].content == "one two"
        await wait_until(pilot, lambda: "went away in the middle" in notes(app))
        assert "is busy: waiting for it" in notes(app)
        app.run_command("/regen", is_typed=True)
        await wait_until(pilot, lambda: session.chat.turns[-1].content == "one two three and so on")
        await wait_until(pilot, lambda: not app.is_busy)
        app.run_command("/models", is_typed=True)
        await wait_until(pilot, lambda: f"models of {other.url}" in notes(app))
    session.close()


@pytest.mark.slow
def test_a_chat_with_a_server_that_is_busy_and_goes_away() -> None:
    with stand_in() as other, Store.in_memory() as store:
        asyncio.run(drive(other, store))
