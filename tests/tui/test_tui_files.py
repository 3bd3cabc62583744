"""Attached files and personas on the screen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from made_documents import pdf
from textual.events import Paste
from textual.pilot import Pilot
from tui_harness import click_on, clicks, send_bytes, wait_until

from edgespec.chat.personas import Persona, persona, save
from edgespec.chat.session import Session
from edgespec.chat.settings import ChatSettings
from edgespec.history import Store
from edgespec.settings import LoadSettings
from edgespec.tui.app import ChatApp
from edgespec.tui.composer import LONG
from edgespec.tui.dialogs import ChoiceScreen
from edgespec.tui.turn_view import TurnView


def on_screen(
    steps: Callable[[ChatApp, Pilot[None]], Awaitable[None]], store: Store | None = None, **settings: Any
) -> None:
    """Drive the app."""

    async def drive() -> None:
        with Store.in_memory() as other:
            chat_settings = ChatSettings(**({"seed": 3} | settings))
            app = ChatApp(Session(store or other, lambda *_: FakeEngine("fine"), LoadSettings("demo"), chat_settings))
            async with app.run_test(size=(106, 24), notifications=False) as pilot:
                await wait_until(pilot, lambda: not app.is_busy)
                await steps(app, pilot)

    asyncio.run(drive())


async def type_in(app: ChatApp, pilot: Pilot[None], text: str) -> None:
    app.composer.put(text)
    await pilot.press("enter")
    await wait_until(pilot, lambda: not app.is_busy)


def shown(app: ChatApp) -> str:
    """All that can be read on the screen."""
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("one.txt", "two.txt", "my notes.txt"):
        (tmp_path / name).write_text(f"text of {name}")
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_attached_files_are_shown_and_a_click_removes_one(files: Path) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "/file *.txt")
        await wait_until(pilot, lambda: "one.txt 15 B, 6 tokens" in shown(app))
        assert "3 files, 50 B, 20 tokens" in shown(app)
        await click_on(pilot, app.composer.files, "\N{MULTIPLICATION SIGN}")
        await wait_until(pilot, lambda: [file.name for file in app.session.chat.attached] == ["one.txt", "two.txt"])
        await type_in(app, pilot, "/file none 2")
        await wait_until(pilot, lambda: "two.txt" not in shown(app))
        await pilot.press(*"typed")
        assert app.composer.text == "typed"

    on_screen(steps)


def test_several_clicks_on_a_cross_remove_one_file(files: Path) -> None:
    """The second one arrives before the file disappears from the screen."""

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "/file *.txt")
        for left in (["one.txt", "two.txt"], ["two.txt"], []):
            n = len(left) + 1
            await wait_until(pilot, lambda: len(app.session.chat.attached) == n)  # noqa: B023 - called at once
            await pilot.pause()
            send_bytes(app, clicks(app.composer.files, "\N{MULTIPLICATION SIGN}", 4))
            await wait_until(pilot, lambda: len(app.session.chat.attached) < n)  # noqa: B023 - called at once
            await pilot.pause()
            assert [file.name for file in app.session.chat.attached] == left

    on_screen(steps)


def test_pasted_paths_become_attachments_and_undo_makes_them_text(files: Path) -> None:
    path = f"'{files / 'my notes.txt'}'"

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.post_message(Paste(path))
        await wait_until(pilot, lambda: "my notes.txt 20 B" in shown(app))
        assert app.composer.text == ""
        await pilot.press("ctrl+z")
        await wait_until(pilot, lambda: app.session.chat.attached == [])
        assert app.composer.text == path
        await pilot.press("ctrl+z")
        assert app.composer.text == ""
        app.composer.put("see ")
        app.post_message(Paste(f"{path} there"))
        await wait_until(pilot, lambda: app.composer.text == f"see {path} there")
        (files / "bin").write_bytes(b"\0")
        app.composer.put("")
        app.post_message(Paste(str(files / "bin")))
        await wait_until(pilot, lambda: "binary file" in shown(app))
        assert app.composer.text == str(files / "bin")

    on_screen(steps)


def test_a_sent_file_is_folded_also_in_another_run(files: Path) -> None:
    async def send(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, f"{files / 'one.txt'}")
        await type_in(app, pilot, "what is it?")
        assert app.session.chat.turns[0].content == "one.txt:\n```\ntext of one.txt\n```\n\nwhat is it?"
        assert not app.composer.files.display

    async def read(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "/load last")
        await wait_until(pilot, lambda: "▸ one.txt  15 B" in shown(app))
        assert "text of" not in shown(app)
        await click_on(pilot, app.query(TurnView).first(), "one.txt")
        await wait_until(pilot, lambda: "│ text of one.txt" in shown(app))
        await type_in(app, pilot, "/file two.txt")
        await wait_until(pilot, lambda: "two.txt 15 B" in shown(app))

    with Store.in_memory() as store:
        on_screen(send, store=store)
        on_screen(read, store=store)


def test_a_long_paste_becomes_an_attachment_and_undo_makes_it_text(files: Path) -> None:
    text = "word " * LONG

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        for name in ("pasted-1.txt", "pasted-2.txt"):
            app.post_message(Paste(text))
            await wait_until(pilot, lambda name=name: f"{name} 50.0 kB" in shown(app))  # type: ignore[misc]
        assert app.composer.text == ""
        await pilot.press("ctrl+z")
        await wait_until(pilot, lambda: [file.name for file in app.session.chat.attached] == ["pasted-1.txt"])
        assert app.composer.text == text

    on_screen(steps)


def test_a_message_waits_for_the_document_that_is_read(files: Path) -> None:
    (files / "report.pdf").write_bytes(pdf("one", "two", "three"))

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.composer.put("/file report.pdf 2-3")
        await pilot.press("enter")
        app.composer.put("why?")
        await pilot.press("enter")
        assert "reading report.pdf" in shown(app)
        assert "then your message is sent" in shown(app)
        await wait_until(pilot, lambda: len(app.session.chat.turns) == 2 and not app.is_busy)
        assert app.session.chat.turns[0].content.startswith("report.pdf (pages 2-3 of 3):\n```\n[page 2]\ntwo\n")
        await wait_until(pilot, lambda: "▸ report.pdf  pages 2-3 of 3" in shown(app))

    on_screen(steps)


def test_reading_can_be_stopped_and_the_message_is_kept(files: Path) -> None:
    (files / "report.pdf").write_bytes(pdf(*["word"] * 2000))

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.post_message(Paste(str(files / "report.pdf")))
        await wait_until(pilot, lambda: "of 2,000" in shown(app))
        app.composer.put("why?")
        await pilot.press("enter")
        assert app.jobs.waiting.together() == "why?", "if the program ends now, the message is saved"
        await pilot.press("escape")
        await wait_until(pilot, lambda: "reading was cancelled" in shown(app))
        assert app.composer.text == f"why?\n{files / 'report.pdf'}"
        assert (app.session.chat.attached, app.session.chat.turns) == ([], [])

    on_screen(steps)


def test_files_that_are_too_long_are_reported(files: Path) -> None:
    (files / "long.csv").write_text("n\n" + "word word\n" * 600)

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "/file long.csv")
        await wait_until(
            pilot, lambda: "1,206 tokens are attached, 183 too many for the context of 1,024" in shown(app)
        )
        assert "long.csv 600 rows, 1,206 tokens" in shown(app)
        assert "/file long.csv 1-10" in shown(app)

    on_screen(steps)


def test_a_persona_is_chosen_and_saved_and_shown_above_the_chat(files: Path) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "hello")
        await pilot.press("f6")
        await wait_until(pilot, lambda: isinstance(app.screen, ChoiceScreen))
        await pilot.press("down", "down", "enter")
        await wait_until(pilot, lambda: "System prompt · coder: You are an experienced" in shown(app))
        save(Persona("coder", "Writes code.", "Write Rust.", {"temp": "0.7"}))
        await type_in(app, pilot, "/persona coder")
        await wait_until(pilot, lambda: "coder: Write Rust." in shown(app))
        assert app.session.chat.settings.sampling.temperature == 0.7
        await type_in(app, pilot, "/persona save mine")
        assert persona("mine").system == "Write Rust."
        await type_in(app, pilot, "/persona none")
        assert (app.session.chat.system, app.session.chat.persona) == ("", "")

    on_screen(steps)
