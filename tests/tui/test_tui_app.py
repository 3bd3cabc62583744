"""The chat's screen: every key, every command, and what happens when something goes wrong."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from talks import talk
from textual.command import CommandList, CommandPalette
from textual.events import Click, Key, Paste, Resize
from textual.geometry import Size
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input
from textual.widgets._toast import Toast
from tui_harness import Stage, place_of, wait_until

from edgespec.chat.commands import COMMANDS
from edgespec.chat.session import Session
from edgespec.chat.settings import ChatSettings
from edgespec.chat.transcript import ImportedChat, import_chat
from edgespec.core.stats import Stats
from edgespec.errors import ModelFileError, UsageError
from edgespec.events import TokenEvent
from edgespec.history import AnswerRecord, Store
from edgespec.runtime.worker import LoadingStoppedError, WorkerDiedError
from edgespec.settings import LoadSettings
from edgespec.tui import app as app_module
from edgespec.tui import front
from edgespec.tui.about_chat import SystemPrompt, TitleBar, Welcome
from edgespec.tui.app import ChatApp
from edgespec.tui.comparison import ComparisonScreen
from edgespec.tui.dialogs import ChoiceScreen, Dialog, ListEntry, Palette
from edgespec.tui.lines import Prose
from edgespec.tui.picker import ModelPicker
from edgespec.tui.sidebar import ChangeChat, ChatChosen, ChatList, Sidebar
from edgespec.tui.statistics import StatisticsBelow, StatisticsLine, StatisticsPanel
from edgespec.tui.turn_view import SwitchBranch, TurnCommand, TurnView

Steps = Callable[[ChatApp, Pilot[None]], Awaitable[None]]


SIZE = (106, 24)  # where everything is shown


class OpenChat:
    """An app that tests use one after the other."""

    def __init__(self) -> None:
        self.engines: list[FakeEngine] = []
        session = Session(Store.in_memory(), lambda *_: self.engines[0], LoadSettings("demo"))
        self.app = ChatApp(session)
        self.engines.append(FakeEngine())
        self.stage = Stage(self.app, SIZE)

    async def begin(self, pilot: Pilot[None], engine: FakeEngine) -> None:
        """Leave nothing of the last test."""
        app = self.app
        while app.has_screen_above:
            app.pop_screen()
        app.jobs.stop()
        await idle(app, pilot)
        self.engines[:] = [engine]
        app.jobs.load(LoadSettings("demo"))
        await idle(app, pilot)
        app.session.chat.settings, app.session.chat.attached = ChatSettings(seed=3), []
        app.transcript.show_tokens = False
        app.query_one("#sidebar-search", Input).value = ""
        app.query_one(Sidebar).remove_class("-asked", "-usual")
        app.query_one(SystemPrompt).remove_class("-open")
        app.composer.input._history.clear()
        app.composer.input._position = 0
        await app.transcript.set_entries(0, [])
        await start_again(app, pilot)


_open: list[OpenChat] = []


@pytest.fixture(autouse=True, scope="module")
def chats_are_closed() -> Iterator[None]:
    yield
    while _open:
        _open.pop().stage.play(None)


def on_screen(steps: Steps, engine: FakeEngine | None = None) -> None:
    """Drive an app that other tests have used."""
    if not _open:
        _open.append(OpenChat())
    shared = _open[0]

    async def play(pilot: Pilot[None]) -> None:
        await shared.begin(pilot, engine or FakeEngine("one", "two", "three"))
        await steps(shared.app, pilot)

    try:
        shared.stage.play(play)
    except BaseException:  # the next test begins with another app
        _open.clear()
        with suppress(Exception):
            shared.stage.play(None)
        raise


def on_new_screen(
    steps: Steps,
    *engines: FakeEngine,
    store: Store | None = None,
    size: tuple[int, int] = SIZE,
    message: str | None = None,
    model: str = "demo",
    toasts: bool = False,
) -> None:
    """Drive an app from its start; each time a model is loaded the next of `engines` answers."""
    waiting = list(engines or (FakeEngine("one", "two", "three"),))

    def open_engine(wanted: LoadSettings, progress: Any, cancel: Any) -> FakeEngine:
        progress("loading", 0.5)
        engine = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if engine.error is not None and engine.error_after < 0:
            raise engine.error
        engine.load(wanted)
        return engine

    async def drive() -> None:
        opened = store or Store.in_memory()
        session = Session(opened, open_engine, LoadSettings(model), ChatSettings(seed=3))
        app = ChatApp(session, message=message)
        async with app.run_test(size=size, notifications=toasts) as pilot:
            await wait_until(pilot, lambda: not app.is_busy)
            await steps(app, pilot)
        if store is None:
            opened.close()

    asyncio.run(drive())


async def type_in(app: ChatApp, pilot: Pilot[None], text: str) -> None:
    """Write a line and send it, as one who types fast."""
    app.composer.put(text)
    await pilot.press("enter")
    await idle(app, pilot)


async def idle(app: ChatApp, pilot: Pilot[None]) -> None:
    await wait_until(pilot, lambda: not app.is_busy)


def contents(app: ChatApp) -> list[str]:
    return [turn.content for turn in app.session.chat.turns]


def shown(app: ChatApp) -> str:
    """All that can be read on the screen."""
    return "\n".join("".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips())


def test_a_message_is_answered_and_kept() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        assert app.query_one(Welcome).display
        await type_in(app, pilot, "hello there")
        assert contents(app) == ["hello there", "one"]
        assert not app.query_one(Welcome).display
        text = shown(app)
        assert "hello there" in text
        assert "one" in text
        assert app.composer.text == ""
        assert app.session.store.find("last").title == "hello there"

    on_screen(steps)


def test_a_message_from_the_command_line_is_sent_when_the_model_is_there() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await wait_until(pilot, lambda: contents(app) == ["hello", "one"])

    on_new_screen(steps, message="hello")


def test_text_is_text_whatever_it_says() -> None:
    nasty = "[bold red]not red[/] \x1b[2J\x07 [link=file:///etc/passwd]x[/link]"

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, nasty)
        await wait_until(pilot, lambda: shown(app).count("[bold red]not red[/]") >= 2)
        assert "\x1b" not in shown(app)
        assert contents(app)[0] == nasty

    on_screen(steps, FakeEngine(nasty))


def test_escape_stops_an_answer_and_what_there_is_is_kept() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.composer.put("count")
        await pilot.press("enter")
        await wait_until(pilot, lambda: "word" in shown(app))
        await pilot.press("escape")
        await idle(app, pilot)
        assert app.session.chat.turns[-1].answer is not None
        assert app.session.chat.turns[-1].answer.finish_reason == "cancelled"
        assert 0 < len(contents(app)[-1].split()) < 400

    on_screen(steps, FakeEngine("word " * 400, round_s=0.02))


def test_while_an_answer_is_made_the_conversation_stays_as_it_is() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.composer.put("count")
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.is_answering and len(app.session.chat.turns) == 1)
        for command in ("/regen", "/undo", "/clear", "/fork", "/load last", "/model x", "/compare", "/edit 1 x"):
            app.run_command(command)
        assert contents(app) == ["count"]
        app.composer.put("/regen 1")
        await pilot.press("enter")
        assert app.composer.text == "/regen 1"
        await wait_until(pilot, lambda: len(app.screen.query(Toast)) == 1)
        assert "an answer is being generated" in shown(app)
        notes = app.transcript.query(".note").results(Prose)
        assert not any("being generated" in note.plain for note in notes), "what is over soon leaves no note"
        await pilot.press("escape")
        await idle(app, pilot)

    on_new_screen(steps, FakeEngine("word " * 400, round_s=0.02), toasts=True)


def test_what_the_program_says_is_seen_wherever_the_user_has_scrolled_to() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "count")
        await type_in(app, pilot, "/persona brief")
        assert "persona brief" in shown(app)
        assert not app.screen.query(Toast)
        await pilot.press("pageup")
        await wait_until(pilot, lambda: not app.transcript.is_vertical_scroll_end)
        for line, said in (("/persona editor", "persona editor"), ("/load 99", "there is no chat number 99")):
            await type_in(app, pilot, line)
            await wait_until(pilot, lambda said=said: said in shown(app))  # type: ignore[misc]

    on_new_screen(steps, FakeEngine("line\n\n" * 60), toasts=True)


def test_what_is_said_at_the_very_end_ends_with_the_program() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.say("good night")
        app.exit()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        on_new_screen(steps)
        gc.collect()
    assert not [each for each in warned if "never awaited" in str(each.message)]


# --- commands and keys ------------------------------------------------------------------------------------------------

SCREENS = {
    "help": ChoiceScreen,
    "model": ModelPicker,
    "persona": ChoiceScreen,
    "set": ChoiceScreen,
    "compare": ComparisonScreen,
}
KEYS = {command.key: command.name for command in COMMANDS if command.key}


async def start_again(app: ChatApp, pilot: Pilot[None], *said: str) -> None:
    """Begin with these messages and with nothing else in the store: an app for several tests is quicker than one for
    each, and messages that are in the store already are quicker than answers."""
    session = app.session
    session.chat.new()
    session.store.remove([chat.id for chat in session.store.chats()])
    if said:
        session.store.create("chat", title=said[0])
        parent = None
        for role, text in zip(cycle(("user", "assistant")), said, strict=False):
            answer = AnswerRecord(stats=Stats(generated_tokens=1).as_json()) if role == "assistant" else None
            parent = session.store.append("chat", parent, role, text, answer).key
        session.chat.open("chat")
    app.composer.put("")
    app.composer.input.focus()
    await app.redraw()
    await pilot.pause()


def test_every_key_does_what_its_command_does(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        monkeypatch.setattr(app, "run_command", called.append)
        await pilot.press(*KEYS)
        await pilot.pause()
        assert called == [f"/{name}" for name in KEYS.values()]

    on_screen(steps)


def test_while_answers_are_compared_the_conversation_stays_as_it_is() -> None:
    counts = threading.Event()
    counts.set()

    class Counting(FakeEngine):
        def count(self, messages: Any, template: str = "") -> int:
            assert counts.wait(60)
            return super().count(messages, template)

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "hello")
        chat = app.session.chat.saved_id
        counts.clear()
        for line in ("/compare more", "/clear", "/compare less", "next"):  # typed before the screen was there
            app.run_command(line, is_typed=True) if line.startswith("/") else app.jobs.send(line)
        counts.set()
        screen = app.screen
        await wait_until(pilot, lambda: screen.check_action("keep", (2,)) is True)
        assert app.screen is screen, "nothing else is compared"
        await pilot.press("1")
        await wait_until(pilot, lambda: len(app.screen_stack) == 1 and not app.is_busy)
        assert app.session.chat.saved_id == chat
        assert contents(app) == ["hello", "one", "more", "two"]
        app.composer.put("")
        await pilot.press("enter")
        await wait_until(pilot, lambda: contents(app)[4:] == ["next", "three"])
        assert app.session.chat.store_error is None
        await idle(app, pilot)

    on_new_screen(steps, Counting("one", "two", "two", "three"))


def test_a_comparison_whose_screen_is_gone_has_to_end_first() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.run_command("/compare count", is_typed=True)
        await wait_until(pilot, lambda: app.session.chat.is_answering)
        await app.pop_screen()  # without an answer to whoever opened it
        await wait_until(pilot, lambda: not app.is_busy)
        assert not app.session.chat.is_answering

    on_new_screen(steps, FakeEngine("word " * 400, round_s=0.02))


def test_a_comparison_that_is_closed_before_it_is_shown_ends() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.run_command("/help")
        below = app.screen
        assert isinstance(below, ChoiceScreen)
        app.run_command("/compare count", is_typed=True)
        below.dismiss()
        await wait_until(pilot, lambda: not app.is_busy)
        assert not app.has_screen_above and not app.session.chat.is_answering

    on_new_screen(steps)


def test_what_was_compared_on_its_screen_can_be_kept_by_command() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press(*"hi", "f4")
        await wait_until(pilot, lambda: isinstance(app.screen, ComparisonScreen))
        await wait_until(pilot, lambda: app.screen.check_action("keep", (2,)) is True)
        await pilot.press("escape")
        await wait_until(pilot, lambda: len(app.screen_stack) == 1)
        assert app.composer.text == "", "the message was sent"
        first = app.session.chat.turns[-1].key
        await type_in(app, pilot, "/keep 2")
        await wait_until(pilot, lambda: app.session.chat.turns[-1].key != first)

    on_screen(steps, FakeEngine("one", "other"))


def test_a_setting_and_a_command_are_chosen_from_lists_and_put_into_the_field() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+s")
        await wait_until(pilot, lambda: isinstance(app.screen, ChoiceScreen))
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: app.composer.text == "/set top-k 40")
        await pilot.press("backspace", "enter")
        await wait_until(pilot, lambda: app.session.chat.settings.sampling.top_k == 4)
        await pilot.press("f1", "down", "enter")
        await wait_until(pilot, lambda: app.composer.text == f"/{COMMANDS[1].name} ")

    on_screen(steps)


@pytest.mark.parametrize("key", ["f6", "ctrl+l"])
def test_the_key_to_quit_works_in_dialogs_too(key: str) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        await wait_until(pilot, lambda: isinstance(app.screen, Dialog))
        await pilot.press("ctrl+q")
        await wait_until(pilot, lambda: app._exit)

    on_new_screen(steps)


@pytest.mark.long
def test_a_key_runs_its_command_also_if_a_file_has_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "pasted_files", lambda line: [Path(line)])

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press("f1")
        await wait_until(pilot, lambda: isinstance(app.screen, ChoiceScreen))
        await pilot.press("escape")
        assert app.session.chat.attached == []

    on_screen(steps)


def test_commands_that_have_a_screen_open_it_and_escape_closes_it() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "first")
        for name, screen in SCREENS.items():
            app.run_command(f"/{name}", is_typed=True)
            await wait_until(pilot, lambda screen=screen: isinstance(app.screen, screen))  # type: ignore[misc]
            if name == "compare":
                await wait_until(pilot, lambda: app.screen.check_action("dismiss", ()) is True)
            await pilot.press("escape")
            await wait_until(pilot, lambda: len(app.screen_stack) == 1)

    on_screen(steps)


def test_text_typed_over_the_help_is_written_into_the_field() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await start_again(app, pilot)
        await type_in(app, pilot, "/help")
        await wait_until(pilot, lambda: isinstance(app.screen, ChoiceScreen))
        await pilot.press("T", "e", "l", "l")
        await wait_until(pilot, lambda: len(app.screen_stack) == 1)
        assert app.composer.text == "Tell"
        app.composer.put("")

    on_screen(steps)


def after(*lines: str, expects: Callable[[ChatApp], object]) -> Steps:
    """After two messages and their answers, send these lines, and wait for what is expected."""

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await start_again(app, pilot, "first", "one", "second", "two")
        for line in lines:
            await type_in(app, pilot, line)
        await wait_until(pilot, lambda: bool(expects(app)))

    return steps


DONE: dict[str, Steps] = {
    "restart": after("/restart", expects=lambda app: app.session.model.engine is not None),
    "system": after("/system be brief", expects=lambda app: app.session.chat.system == "be brief"),
    "persona": after("/persona brief", expects=lambda app: app.session.chat.persona == "brief"),
    "set": after("/set temp 0.1", expects=lambda app: app.session.chat.settings.sampling.temperature == 0.1),
    "stats": after("/stats", expects=lambda app: "from the KV cache" in shown(app)),
    "tokens": after("/tokens", expects=lambda app: app.transcript.show_tokens),
    "thought": after("/thought", expects=lambda app: "no reasoning" in shown(app)),
    "regen": after("/regen", expects=lambda app: contents(app) == ["first", "one", "second", "three"]),
    "continue": after("/continue", expects=lambda app: contents(app)[-1] == "twothree"),
    "edit": after("/edit other", expects=lambda app: contents(app) == ["first", "one", "other", "three"]),
    "undo": after("/undo", expects=lambda app: contents(app) == ["first", "one"] and app.composer.text == "second"),
    "fork": after("/fork", expects=lambda app: len(app.session.store.chats()) == 2),
    "branches": after("/undo", "/branches", expects=lambda app: "4 messages" in shown(app)),
    "clear": after("/clear", expects=lambda app: contents(app) == [] and app.query_one(Welcome).display),
    "list": after("/list first", expects=lambda app: "/load N opens one" in shown(app)),
    "load": after("/clear", "/load last", expects=lambda app: len(contents(app)) == 4),
    "search": after("/search sec", expects=lambda app: "[sec]ond" in shown(app)),
    "rename": after("/rename My chat", expects=lambda app: app.session.store.find("last").title == "My chat"),
    "pin": after("/pin", expects=lambda app: app.session.store.find("last").is_pinned and "pinned" in shown(app)),
    "folder": after("/folder work", "/folder", expects=lambda app: "work  (1 chat)" in shown(app)),
    "copy": after("/copy", expects=lambda app: app.clipboard == "two"),
    "save": after("/save", expects=lambda app: "the last answer has no code block" in shown(app)),
    "help": after("/help regen", expects=lambda app: "Regenerate the last answer" in shown(app)),
    "delete": after("/clear", "/delete last", expects=lambda app: not app.session.store.chats()),
    "model": after("/model demo", expects=lambda app: app.session.load_settings.model == "demo"),
    "draft": after("/draft none", expects=lambda app: "draft" not in app.session.load_settings.drafters),
    "bye": after("/bye", expects=lambda app: not app.is_running or app._exit),
}


def test_every_command_does_what_it_says() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        for name, steps in DONE.items():
            try:
                await steps(app, pilot)
            except AssertionError as error:
                raise AssertionError(f"/{name} does not do it") from error

    on_new_screen(steps, FakeEngine("three"))


def test_no_command_goes_untested() -> None:
    elsewhere = {"answer", "compare", "race", "keep", "models", "export", "file", "editor", "tools", "result"}
    assert {command.name for command in COMMANDS} == set(DONE) | elsewhere


def test_export_and_file_read_and_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = tmp_path / "note.txt"
    note.write_text("the note")

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, f"/file {note}")
        await type_in(app, pilot, "what is this?")
        assert contents(app)[0] == "note.txt:\n```\nthe note\n```\n\nwhat is this?"
        for name in ("chat.md", "chat.jsonl"):
            await type_in(app, pilot, f"/export {tmp_path / name}")
            assert "what is this?" in (tmp_path / name).read_text(encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        await pilot.press("f8", "f8")
        await wait_until(pilot, lambda: (tmp_path / "what-is-this-2.md").exists())
        assert "written to" in shown(app)

    on_screen(steps)


def test_an_unknown_command_is_reported_and_nothing_sent() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "/reegen")
        await wait_until(pilot, lambda: "did you mean /regen?" in shown(app))
        assert contents(app) == []
        assert app.composer.text == "/reegen"
        await type_in(app, pilot, "//not a command")
        assert contents(app)[0] == "/not a command"

    on_new_screen(steps, toasts=True)


@pytest.mark.parametrize("fails", [False, True])
def test_the_text_of_the_field_is_changed_in_an_editor(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    def edited(text: str) -> str:
        if fails:
            raise UsageError("the editor failed")
        return f"{text}\nand more"

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        monkeypatch.setattr(app, "suspend", nullcontext)
        app.composer.put("hello")
        await pilot.press("ctrl+x", "ctrl+e")
        await wait_until(pilot, lambda: app.composer.text == ("hello" if fails else "hello\nand more"))

    monkeypatch.setattr(front, "edited", edited)
    on_screen(steps)


# --- chats ------------------------------------------------------------------------------------------------------------


def test_a_chat_found_by_what_was_said_is_opened_there() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "the walrus and the carpenter")
        await type_in(app, pilot, "/clear")
        await type_in(app, pilot, "something else")
        await pilot.press("ctrl+g")
        await wait_until(pilot, lambda: app.query_one("#sidebar-search", Input).has_focus)
        await pilot.press(*"walrus")
        await wait_until(pilot, lambda: "walrus" in shown(app))
        (hit,) = app.session.store.search("walrus")
        app.query_one(Sidebar).post_message(ChatChosen(hit.chat, hit.key))
        await wait_until(pilot, lambda: contents(app)[:1] == ["the walrus and the carpenter"])
        view = app.transcript.query("TurnView").first()

        def marked() -> list[str]:
            line = view.render_line(1)
            return [text for text, style, _ in line if style is not None and style.reverse]

        await wait_until(pilot, lambda: marked() == ["walrus"])
        await pilot.press("ctrl+g", "escape")
        await wait_until(pilot, lambda: marked() == [])

    on_screen(steps)


def test_keys_go_from_match_to_match_of_a_search() -> None:
    answer = "a walrus\n\n" + "more\n\n" * 30 + "the last walrus"

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await start_again(app, pilot, "the walrus", answer, "nothing", "of this", "no", "a Walrus")
        await pilot.press("ctrl+g")
        await wait_until(pilot, lambda: app.query_one("#sidebar-search", Input).has_focus)
        await pilot.press(*"walrus")
        await wait_until(pilot, lambda: app.transcript.is_searched)
        (first, *_) = (hit for hit in app.session.store.search("walrus") if hit.role == "user")
        app.query_one(ChatList).focus()
        app.query_one(Sidebar).post_message(ChatChosen(first.chat, first.key))
        views = app.transcript.views
        await wait_until(pilot, lambda: bool(views) and app.focused is views[0])

        def places() -> tuple[int, str]:
            view, line = app.transcript._found
            assert isinstance(view, TurnView)
            assert line is not None
            return app.transcript.views.index(view), view.line_text(line).strip()

        for key, place in (
            ("n", (1, "a walrus")),
            ("n", (1, "the last walrus")),
            ("f3", (5, "a Walrus")),
            ("n", (0, "the walrus")),
            ("N", (5, "a Walrus")),
            ("shift+f3", (1, "the last walrus")),
            ("N", (1, "a walrus")),
        ):
            await pilot.press(key)
            await wait_until(pilot, lambda place=place: places() == place)  # type: ignore[misc]
            view, line = app.transcript._found
            assert app.focused is view
            assert [each for each in app.transcript.views if getattr(each, "_current", None) is not None] == [view]
            assert view is not None
            assert line is not None
            await wait_until(
                pilot,
                lambda view=view, line=line: app.transcript.region.contains(view.region.x, view.region.y + line),  # type: ignore[misc]
            )
        assert app.composer.text == ""
        await pilot.press("ctrl+g", "escape", "escape", "shift+tab")
        await wait_until(pilot, lambda: not app.transcript.is_searched)
        await pilot.press("n")
        assert app.composer.text == "n"

    on_screen(steps)


def test_versions_of_an_answer_are_switched_by_keys() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "count")
        await type_in(app, pilot, "/regen")
        assert contents(app) == ["count", "two"]
        app.transcript.query("TurnView").last().focus()
        await pilot.press("left")
        await wait_until(pilot, lambda: contents(app) == ["count", "one"])

    on_screen(steps)


# --- where one types --------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_whatever_opens_or_changes_a_chat_leaves_the_focus_where_one_types() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        for key in ("ctrl+n", "f9", "f5", "ctrl+r", "r"):
            await start_again(app, pilot, "first", "one")
            await pilot.press("shift+tab")
            assert isinstance(app.focused, TurnView)
            await pilot.press(key)
            await idle(app, pilot)
            app.composer.put("")
            await pilot.press(*"typed")
            assert app.composer.text == "typed", key
        for command in ("/load last", "/branches 1", "/clear", "/undo", "/fork"):
            await start_again(app, pilot, "first", "one")
            await pilot.press("shift+tab")
            app.run_command(command)
            await wait_until(pilot, lambda: app.focused is app.composer.input)

    on_screen(steps)


def test_a_click_on_a_message_that_has_gone_does_nothing() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "one")
        await idle(app, pilot)
        for message in (TurnCommand("edit", "gone"), SwitchBranch("gone", 1)):
            app.post_message(message)
        await pilot.pause()
        assert len(app.session.chat.turns) == 2

    on_screen(steps)


def test_what_is_typed_at_once_after_a_key_is_not_lost() -> None:
    """The keys are on their way to the message that had the focus when they were typed; "e" means something there."""

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "first")
        await pilot.press("shift+tab")
        for key in ("ctrl+n", *"hello"):
            app.simulate_key(key)
        await wait_until(pilot, lambda: app.composer.text == "hello")
        assert contents(app) == []

    on_screen(steps)


def test_what_is_typed_where_nothing_takes_it_goes_into_the_composer() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "first")
        for focused in (None, app.transcript.query(TurnView).last()):
            app.screen.set_focus(focused)
            await pilot.press(*"why?")
            assert app.composer.text == "why?"
            app.composer.put("")
        app.screen.set_focus(app.transcript.query(TurnView).last())
        app.post_message(Paste("a\nb"))
        await wait_until(pilot, lambda: app.composer.text == "a\nb")

    on_screen(steps)


def test_letters_are_commands_only_after_a_key_has_led_to_the_messages_or_chats() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "first")
        await type_in(app, pilot, "/folder folder")
        await type_in(app, pilot, "/system be brief")
        before = contents(app)
        await pilot.press("ctrl+b")
        await wait_until(pilot, lambda: "folder" in shown(app) and "Chats" in shown(app))
        for clicked in (app.transcript.query(TurnView).last(), app.query_one(SystemPrompt), app.query_one(ChatList)):
            await pilot.click(clicked, offset=(3, 0))
            await pilot.press(*"drsce1x")
            assert app.composer.text == "drsce1x"
            assert "Writing" in shown(app)
            app.composer.put("")
        assert contents(app) == before
        assert not app.has_screen_above
        await pilot.press("ctrl+b")  # the list is there: the key leads to it, and then hides it
        await wait_until(pilot, lambda: app.query_one(ChatList).has_focus)
        assert app.query_one(Sidebar).display
        await pilot.press("ctrl+b")
        await wait_until(pilot, lambda: not app.query_one(Sidebar).display)
        await pilot.press("ctrl+b")
        await wait_until(pilot, lambda: app.query_one(ChatList).has_focus)
        await pilot.click(app.transcript.query(TurnView).last())
        await pilot.press("escape")
        assert not app.query_one(Sidebar).display
        assert app.composer.input.has_focus
        await pilot.press("shift+tab")
        await wait_until(pilot, lambda: "Messages" in shown(app))
        await pilot.press("up", "e")
        assert app.composer.text == "/edit 1 first"

    on_screen(steps, FakeEngine("```\ncode\n```"))


def test_every_character_that_is_no_control_character_can_be_typed() -> None:
    persian = "می\u200cرود\u200f \u3000\u00a0👨\u200d👩\u2067x\u2069"

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        for character in persian:
            app.post_message(Key(character, character))
        await wait_until(pilot, lambda: app.composer.text == persian)
        await pilot.press("enter")
        await idle(app, pilot)
        assert contents(app) == [persian, "one"]
        assert app.session.model.engine is not None
        assert app.session.chat.messages[0].content == persian
        await pilot.press("ctrl+g")
        await wait_until(pilot, lambda: app.query_one("#sidebar-search", Input).has_focus)
        for character in persian[:4]:
            app.post_message(Key(character, character))
        await wait_until(pilot, lambda: app.query_one("#sidebar-search", Input).value == persian[:4])

    on_screen(steps)


def test_a_command_typed_fast_is_the_one_that_is_run() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "first")
        await type_in(app, pilot, "/clear")
        for key in [*"/load last", "enter"]:
            app.simulate_key(key)
        await wait_until(pilot, lambda: contents(app) == ["first", "one"])
        assert app.composer.text == ""

    on_screen(steps)


def test_toasts_leave_the_composer_free() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "first")
        await type_in(app, pilot, "/copy")
        await wait_until(pilot, lambda: any(toast.region.area for toast in app.screen.query(Toast)))
        for toast in app.screen.query(Toast):
            assert not toast.region.overlaps(app.composer.region)
            assert toast.region.bottom < app.size.height // 2

    on_new_screen(steps, toasts=True)


def test_the_number_of_a_missing_code_block_is_reported_and_not_typed() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "hello")
        await pilot.press("shift+tab", "1", "2")
        assert app.clipboard == "x"
        assert [note.message for note in app._notifications][1:] == ["this message has no code block 2"]
        assert app.composer.text == ""

    on_new_screen(steps, FakeEngine("```\nx\n```"), toasts=True)


# --- the system prompt ------------------------------------------------------------------------------------------------

PIRATE = ImportedChat(
    "Sea", "You are a pirate.\nSpeak of the sea.", (("user", "hello", None), ("assistant", "Ahoy", None)), "pirate"
)


def test_the_system_prompt_of_an_imported_chat_is_seen_changed_and_left_behind() -> None:
    store = Store.in_memory()
    import_chat(store, PIRATE)
    engine = FakeEngine("one")

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "/load last")
        await wait_until(pilot, lambda: "▸ System prompt: You are a pirate. Speak of the sea." in shown(app))
        prompt = app.query_one(SystemPrompt)
        await pilot.click(prompt)
        assert prompt.has_class("-open")
        prompt.focus()
        await pilot.press("e")
        await wait_until(pilot, lambda: app.composer.text == "/system You are a pirate.\nSpeak of the sea.")
        await type_in(app, pilot, "/system Be brief.")
        await wait_until(pilot, lambda: "from the next answer on" in shown(app))
        await type_in(app, pilot, "more")
        assert engine.requests[-1].messages[0].content == "Be brief."
        await type_in(app, pilot, "/clear")
        assert not prompt.display
        assert "System prompt" not in shown(app)
        await type_in(app, pilot, "hello")
        assert [message.role for message in engine.requests[-1].messages] == ["user"]

    on_new_screen(steps, engine, store=store, size=(120, 24))
    store.close()


def test_escape_cancels_the_question_for_a_system_prompt() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "/system")
        assert app.composer.text == "/system "
        await pilot.press("escape", *"hello", "enter")
        await idle(app, pilot)
        assert contents(app) == ["hello", "one"]
        assert app.session.chat.system == ""

    on_screen(steps)


def test_the_keys_go_from_the_first_message_to_the_system_prompt_and_back() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "/system Be brief.")
        await type_in(app, pilot, "first")
        await pilot.press("shift+tab", "up", "up")
        assert isinstance(app.focused, SystemPrompt)
        await pilot.press("enter")
        await wait_until(pilot, lambda: "▾ System prompt" in shown(app))
        await pilot.press("down")
        await wait_until(pilot, lambda: app.focused is app.transcript.query(TurnView).first())

    on_screen(steps)


def test_a_system_prompt_of_many_lines_unfolds_where_it_is_seen_and_scrolls() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        lines = "\n".join(f"line {n}" for n in range(100))
        await type_in(app, pilot, f"/system\n{lines}")
        assert app.session.chat.system == lines
        await type_in(app, pilot, "first")
        await pilot.press("shift+tab", "up", "up", "enter")
        await wait_until(pilot, lambda: "▾ System prompt" in shown(app))
        await pilot.press("down")
        assert isinstance(app.focused, SystemPrompt)
        await wait_until(pilot, lambda: "▾ System prompt" not in shown(app))
        await pilot.press("up")
        await wait_until(pilot, lambda: "▾ System prompt" in shown(app))

    on_screen(steps)


def test_a_long_system_prompt_is_cut_where_the_screen_ends_after_clear_too() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.session.chat._own_system = "You are a helpful assistant. " * 20
        await type_in(app, pilot, "first")
        await type_in(app, pilot, "/clear")
        await wait_until(pilot, lambda: "System prompt: You are a helpful assistant. You" in shown(app))

    on_new_screen(steps)


# --- while an answer comes --------------------------------------------------------------------------------------------


def test_while_an_answer_comes_the_way_to_stop_it_and_the_context_in_use_are_reported() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        question = "one two three four five six"  # of ten tokens, with those of a message
        app.composer.put(question)
        await pilot.press("enter")
        await wait_until(pilot, lambda: "Esc stops" in shown(app))
        await wait_until(pilot, lambda: app.query_one(StatisticsPanel).figures.stats.generated_tokens > 0)
        figures = app.query_one(StatisticsPanel).figures
        assert figures.context_used >= 10 + figures.stats.generated_tokens
        before = figures.context_used
        await wait_until(pilot, lambda: figures.context_used > before)
        await pilot.press("escape")
        await idle(app, pilot)
        assert "Esc stops" not in shown(app)

    on_screen(steps, FakeEngine("word " * 400, round_s=0.02))


def test_a_new_chat_knows_nothing_of_the_last_ones_figures() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "hello")
        await type_in(app, pilot, "/clear")
        await type_in(app, pilot, "/stats")
        await wait_until(pilot, lambda: "there is no answer in this chat yet" in shown(app))
        await type_in(app, pilot, "/load last")
        await type_in(app, pilot, "/stats")
        await wait_until(pilot, lambda: "answer 1 tokens" in shown(app))

    on_new_screen(steps, toasts=True)


def test_a_complete_answer_has_nothing_to_go_on_with_and_no_speed() -> None:
    end = Stats(prompt_tokens=9, generated_tokens=1, generation_s=0.0001, rounds=1)
    nothing = [TokenEvent(-1, "", finish_reason="stop", stats=end)]

    class Complete(FakeEngine):
        def _events(self, request: Any, cancel: Any) -> Any:
            yield from nothing if request.messages[-1].role == "assistant" else super()._events(request, cancel)

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "hello")
        await type_in(app, pilot, "/continue")
        await wait_until(pilot, lambda: "the answer was complete" in shown(app))
        assert contents(app) == ["hello", "one"]
        assert "tok/s" not in shown(app)

    on_screen(steps, Complete("one"))


def test_an_answer_that_loops_is_reported_once_and_can_be_stopped() -> None:
    events = [TokenEvent(n % 4, f"w{n % 4} ", round=n) for n in range(4000)]

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.composer.put("count")
        await pilot.press("enter")
        await wait_until(pilot, lambda: "the answer repeats itself; Esc stops it" in shown(app))
        await pilot.press("escape")
        await idle(app, pilot)
        await wait_until(pilot, lambda: "! the answer repeats itself (the same 4 tokens" in shown(app))
        assert shown(app).count("repeats itself") == 1
        await type_in(app, pilot, "/regen")

    on_screen(steps, FakeEngine(events, "fine", round_s=0.002))


def test_the_keys_of_the_chats_fit_on_a_narrow_screen() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "hello")
        app.run_command("/list")
        await wait_until(pilot, lambda: shown(app).rstrip().endswith("f Folder ^q Quit f1 Help"))

    on_new_screen(steps, size=(80, 24))


def test_code_of_the_last_answer_is_copied_by_its_number() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "write")
        for command, copied in (("/copy code 1", "a = 1"), ("/copy code", "b = 2"), ("/copy code 2", "b = 2")):
            await type_in(app, pilot, command)
            assert app.clipboard == copied
        await type_in(app, pilot, "/copy code 3")
        await wait_until(pilot, lambda: "choose a number from 1 to 2" in shown(app))

    on_screen(steps, FakeEngine("```\na = 1\n```\nand\n```\nb = 2\n```\n"))


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_settings_in_errors_have_the_names_of_a_chat() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.report(
            UsageError("it is too long", hint="use a larger context (`ctx_size`), or no draft (`spec_type=none`)")
        )
        await pilot.pause()
        (shown,) = [note.message for note in app._notifications]
        hint = "use a larger context (-c), or no draft (/draft none); -c is an option of 'edgespec chat'"
        assert shown == f"it is too long\n  {hint}"

    on_new_screen(steps)


def test_when_the_model_dies_the_screen_offers_to_go_on(tmp_path: Path) -> None:
    died = FakeEngine("one two three", error=WorkerDiedError("the system killed the process"), error_after=2)

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.composer.put("count")
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, ChoiceScreen))
        assert "the system killed the process" in shown(app)
        assert contents(app) == ["count", "one two"]
        await pilot.press("enter")  # of a user who is typing: chooses nothing
        await pilot.pause()
        assert isinstance(app.screen, ChoiceScreen)
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: app.session.model.engine is not None and not app.is_busy)
        await wait_until(pilot, lambda: "1,024 tokens" in [note.message for note in app._notifications][-1])
        await type_in(app, pilot, "/regen")
        assert contents(app) == ["count", "all of it"]

    on_new_screen(steps, died, FakeEngine("all of it"))


def test_a_model_that_cannot_be_loaded_is_reported_and_another_can_be() -> None:
    broken = FakeEngine(error=ModelFileError("demo is no model"), error_after=-1)

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await wait_until(pilot, lambda: "demo is no model" in shown(app))
        await pilot.press("escape")
        await type_in(app, pilot, "hello")
        assert contents(app) == []
        assert app.composer.text == "hello"
        await pilot.press("escape")
        await type_in(app, pilot, "/model demo")
        await wait_until(pilot, lambda: app.session.model.engine is not None)

    on_new_screen(steps, broken, FakeEngine("one"))


def test_loading_that_was_cancelled_says_so_and_how_to_load_again() -> None:
    cancelled = FakeEngine(error=LoadingStoppedError("loading demo was cancelled"), error_after=-1)

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await wait_until(pilot, lambda: "loading demo was cancelled" in shown(app))
        assert "/restart loads it again, /model MODEL loads another one" in shown(app)
        assert len(app.screen_stack) == 1, "the model has not failed: there is nothing to ask"
        app.run_command("/model demo:draft")
        await wait_until(pilot, lambda: not app.is_busy and app.session.load_settings.model == "demo:draft")

    on_new_screen(steps, cancelled, FakeEngine("one"))


@pytest.mark.long
def test_a_model_that_is_not_there_is_reported_once() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await wait_until(pilot, lambda: "was not found" in shown(app))
        await pilot.press("escape")
        for _ in range(5):
            await pilot.pause(0.1)
        assert not app.is_busy
        assert shown(app).count("was not found") == 1

    on_new_screen(steps, model="/nowhere/x.gguf")


def test_what_the_store_does_not_take_is_marked(tmp_path: Path) -> None:
    store = Store(tmp_path / "chats.db")

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "first")
        mark = app.query_one(TitleBar).query_one("#unsaved")
        assert not mark.display
        store._database._connection.execute("PRAGMA query_only = 1")
        await type_in(app, pilot, "second")
        assert mark.display
        assert contents(app) == ["first", "one", "second", "two"]
        store._database._connection.execute("PRAGMA query_only = 0")
        await type_in(app, pilot, "/rename kept")
        assert not mark.display

    on_new_screen(steps, store=store)
    with Store(tmp_path / "chats.db") as again:
        assert len(again.path(again.find("last").head)) == 4
    store.close()


# --- the title and the statistics -------------------------------------------------------------------------------------


def test_the_title_shows_the_persona_and_the_temperature() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        assert "temp 0.8" in shown(app).splitlines()[0]
        await type_in(app, pilot, "/persona editor")
        await wait_until(pilot, lambda: "editor · temp 0.3" in shown(app).splitlines()[0])

    on_screen(steps)


def test_statistics_are_shown_from_the_first_answer_on_if_the_messages_have_room() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        panel = app.query_one(StatisticsPanel)
        assert not panel.display
        await type_in(app, pilot, "hello")
        await wait_until(pilot, lambda: panel.display)
        await pilot.press("ctrl+b")
        await wait_until(pilot, lambda: not panel.display and app.query_one(StatisticsLine).display)
        await pilot.press("ctrl+b")
        await wait_until(pilot, lambda: panel.display)
        await type_in(app, pilot, "/clear")
        await wait_until(pilot, lambda: not panel.display)
        await type_in(app, pilot, "/load last")
        await wait_until(pilot, lambda: re.search(r"1 token, [0-9.]+ s", shown(app)) is not None)

    on_screen(steps)


def test_statistics_are_below_the_chats_where_the_messages_leave_them_no_columns() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        right, below = app.query_one(StatisticsPanel), app.query_one(StatisticsBelow)
        line = app.query_one(StatisticsLine)
        await type_in(app, pilot, "hello")
        await wait_until(pilot, lambda: right.display)
        await pilot.press("ctrl+b")
        await wait_until(pilot, lambda: below.display and not right.display and not line.display)
        assert "1 token" in str(below.render())
        await pilot.resize_terminal(120, 24)
        await wait_until(pilot, lambda: line.display and not below.display)
        await pilot.resize_terminal(200, 50)
        await wait_until(pilot, lambda: right.display and not below.display)
        widths = [app.query_one(part).region.width for part in (Sidebar, TurnView, StatisticsPanel)]
        assert sum(widths) > 190

    on_new_screen(steps, size=(120, 40))


def test_while_a_model_is_loaded_a_sign_moves_and_what_is_done_is_said() -> None:
    begins, reads, ends = threading.Event(), threading.Event(), threading.Event()

    def open_engine(wanted: LoadSettings, progress: Any, cancel: Any) -> FakeEngine:
        begins.wait(60)
        progress("loading", 0.5)
        reads.wait(60)
        progress("loading", 1.0)
        ends.wait(60)
        return FakeEngine()

    async def drive() -> None:
        app = ChatApp(Session(Store.in_memory(), open_engine, LoadSettings("demo"), ChatSettings(seed=3)))
        async with app.run_test(size=SIZE) as pilot:
            for said, step in (("starting demo", begins), ("loading ━━━━━─────  50 %", reads), ("preparing", ends)):
                signs: set[str] = set()
                while len(signs) < 3:
                    await wait_until(pilot, lambda said=said: shown(app).count(said) == 2)  # type: ignore[misc]
                    signs |= {*re.findall(rf"(\S) {said}", shown(app))}
                step.set()
            await wait_until(pilot, lambda: not app.is_busy and "fake 10M, context" in shown(app))

    asyncio.run(drive())


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("size", "panel"), [((106, 24), True), ((40, 20), False)])
def test_it_fits_every_size(size: tuple[int, int], panel: bool) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "hello there")
        assert app.query_one("#figures").display is panel
        assert app.query_one(StatisticsLine).display is not panel
        assert app.composer.region.right <= size[0]
        assert "hello there" in shown(app)
        await pilot.press("ctrl+b")
        await wait_until(pilot, lambda: app.query_one(Sidebar).display)
        await pilot.press("ctrl+b")
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert "hello there" in shown(app)

    on_new_screen(steps, size=size)


def test_a_key_ends_the_reasoning_of_the_answer_that_comes_and_of_one_that_was_stopped() -> None:
    engine = FakeEngine("<think>" + " hm" * 500, round_s=0.05)

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.composer.input.put("hello")
        await pilot.press("enter")
        await wait_until(pilot, lambda: "thinking · F7 answers now" in shown(app))
        await pilot.press("f7")
        await wait_until(pilot, lambda: engine.cancels[0].ends_reasoning)
        await pilot.press("escape")
        await idle(app, pilot)
        await pilot.press("f7")
        await wait_until(pilot, lambda: len(engine.cancels) == 2)
        assert engine.cancels[1].ends_reasoning
        assert engine.requests[1].messages[-1].content.startswith("<think>")
        await idle(app, pilot)

    on_new_screen(steps, engine)


def test_a_click_beside_the_screen_does_not_end_the_palette_and_one_on_the_background_closes_it() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+p")
        await wait_until(pilot, lambda: isinstance(app.screen, CommandPalette))
        for x, y in ((500, 500), (0, 0)):
            assert isinstance(app.screen, CommandPalette)
            app.screen.post_message(Click(app.screen, x, y, 0, 0, 1, False, False, False, x, y))
            await pilot.pause()
        await wait_until(pilot, lambda: not app.has_screen_above)

    on_new_screen(steps)


def test_the_palette_is_closed_with_a_dialog_above_it_and_only_once() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+p")
        await wait_until(pilot, lambda: isinstance(app.screen, CommandPalette))
        palette = app.screen
        app.push_screen(ChoiceScreen("above", "", [ListEntry("a", "a")]))
        await pilot.pause()
        palette.dismiss()
        palette.dismiss()
        await wait_until(pilot, lambda: not app.has_screen_above)
        app.composer.input.focus()
        await type_in(app, pilot, "hello")
        assert contents(app) == ["hello", "one"]

    on_new_screen(steps)


@pytest.mark.parametrize("n_above", [0, 1])
def test_a_screen_that_is_closed_before_it_is_mounted_closes_when_it_is(n_above: int) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.action_command_palette()
        palette = app.screen
        assert isinstance(palette, CommandPalette) and not palette.is_mounted
        for _ in range(n_above):
            app.push_screen(ChoiceScreen("above", "", [ListEntry("a", "a")]))
        palette.dismiss()
        await wait_until(pilot, lambda: not app.has_screen_above)

    on_new_screen(steps)


def test_the_palette_is_opened_again_while_it_closes() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.action_command_palette()
        await pilot.pause()
        app.screen.dismiss()
        app.action_command_palette()  # the first one is not removed yet
        await wait_until(pilot, lambda: isinstance(app.screen, CommandPalette))
        app.screen.dismiss()
        await wait_until(pilot, lambda: not app.has_screen_above)

    on_new_screen(steps)


def test_a_terminal_may_have_a_few_columns_only() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        opens = [lambda: app.push_screen(ChoiceScreen("above", "", [ListEntry("a", "a")])), app.action_command_palette]
        for open_list in opens:
            for columns in (*range(14, 0, -1), 80):
                open_list()
                await pilot.pause()
                await pilot.resize_terminal(columns, 20)
                await pilot.pause()
                app.screen.dismiss()
                await wait_until(pilot, lambda: not app.has_screen_above)

    on_new_screen(steps)


@pytest.mark.parametrize("at", ["the beginning", "the end"])
def test_another_chat_cannot_be_opened_while_an_answer_begins_or_ends(at: str) -> None:
    """The answer would continue in one chat, and be saved in the other."""
    store = Store.in_memory()
    other, _ = talk(store, "another", "chat")

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        session, waits, goes_on = app.session, threading.Event(), threading.Event()
        begun, ended = session.ask, session._finish

        def wait() -> bool:
            waits.set()
            return goes_on.wait(30)

        if at == "the beginning":
            session.ask = lambda *args: (wait(), begun(*args))[1]  # type: ignore[method-assign]
        else:
            session._finish = lambda *args: (wait(), ended(*args))[1]  # type: ignore
        app.composer.input.put("hello")
        await pilot.press("enter")
        await wait_until(pilot, waits.is_set)
        app.query_one(Sidebar).post_message(ChatChosen(other))
        chat = session.chat.saved_id or ""
        app.query_one(Sidebar).post_message(ChangeChat(lambda session: session.delete(chat), (chat,)))
        await pilot.pause()
        goes_on.set()
        await idle(app, pilot)
        assert contents(app) == ["hello", "one"]
        assert session.chat.store_error is None
        assert [turn.content for turn in session.store.path(session.store.find("last").head)] == ["hello", "one"]

    on_new_screen(steps, store=store)


def test_a_dialog_is_closed_with_those_above_it_and_only_once() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        results: list[str | None] = []
        below, above = (ChoiceScreen(name, "", [ListEntry("a", "a")]) for name in ("below", "above"))
        for dialog in (below, above):
            app.push_screen(dialog, results.append)
        await pilot.pause()
        below.dismiss("a")
        below.dismiss("a")
        await wait_until(pilot, lambda: not app.has_screen_above)
        await pilot.pause()
        assert results == [None, "a"]

    on_new_screen(steps)


def test_sizes_that_follow_each_other_come_to_rest() -> None:
    """A window is dragged while other messages arrive. Each size must not bring back the one before."""

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.push_screen(ChoiceScreen("title", "", [ListEntry("a", "a")]))
        await pilot.pause()
        laid_out: list[Screen[Any]] = []
        for screen in app.screen_stack:
            screen.screen_layout_refresh_signal.subscribe(screen, laid_out.append)
        for columns in (60, 100, 60, 100):
            for screen in app.screen_stack:
                screen.post_message(Resize(Size(columns, 30), Size(columns, 30)))
                screen.call_later(lambda: None)
        for _ in range(50):
            await asyncio.sleep(0.01)
            assert len(laid_out) < 100
        await pilot.press("escape")
        await wait_until(pilot, lambda: not app.has_screen_above)

    on_new_screen(steps)


@pytest.mark.long
def test_a_screen_that_shrinks_at_once_with_all_of_its_columns() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "hello there")
        await pilot.press("ctrl+b")
        await wait_until(pilot, lambda: app.query_one(Sidebar).display)
        await pilot.resize_terminal(40, 20)
        await pilot.pause()
        await pilot.press("ctrl+b")
        assert app.composer.region.right <= 40
        assert "hello there" in shown(app)

    on_new_screen(steps, size=(120, 40))


def test_the_theme_is_remembered(tmp_path: Path) -> None:
    store = Store(tmp_path / "chats.db")

    async def choose(app: ChatApp, pilot: Pilot[None]) -> None:
        app.theme = "textual-light"
        await pilot.pause()

    async def look(app: ChatApp, pilot: Pilot[None]) -> None:
        assert app.theme == "textual-light"

    on_new_screen(choose, store=store)
    on_new_screen(look, store=store)
    store.close()


def test_a_theme_is_given_back_to_the_terminal(tmp_path: Path) -> None:
    store = Store(tmp_path / "chats.db")

    async def choose(app: ChatApp, pilot: Pilot[None], *, keys: Sequence[str], theme: str) -> None:
        app.action_change_theme()
        await wait_until(pilot, lambda: isinstance(app.screen, ChoiceScreen))
        await pilot.press(*keys, "enter")
        await wait_until(pilot, lambda: not app.has_screen_above)
        assert app.theme == theme

    async def other(app: ChatApp, pilot: Pilot[None]) -> None:
        await choose(app, pilot, keys=["end"], theme="tokyo-night")

    async def back(app: ChatApp, pilot: Pilot[None]) -> None:
        assert app.theme == "tokyo-night"
        await choose(app, pilot, keys=["home"], theme="textual-dark")

    async def look(app: ChatApp, pilot: Pilot[None]) -> None:
        assert app.theme == "textual-dark"
        assert app._is_as_terminal

    for steps in (other, back, look):
        on_new_screen(steps, store=store)
    store.close()


def test_keys_of_a_burst_arrive_in_the_order_they_were_typed() -> None:
    """As they come over a slow line, or from dictation: Enter must not overtake what was typed before it."""

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        for number, message in enumerate(("first", "second", "third"), 1):
            for key in [*message, "enter"]:
                app.simulate_key(key)
            await wait_until(pilot, lambda number=number: len(contents(app)) == 2 * number)  # type: ignore[misc]
            await idle(app, pilot)
        assert contents(app)[0::2] == ["first", "second", "third"]

    on_screen(steps, FakeEngine("word " * 20, round_s=0.02))


def test_the_palette_lists_the_commands() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+p", *"regen")
        await wait_until(pilot, lambda: "/regen" in shown(app))
        await pilot.press("escape")

    on_screen(steps)


def test_a_search_of_the_palette_that_outlives_its_list_ends_nothing() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+p")
        await wait_until(pilot, lambda: app.has_screen_above)
        palette = app.screen
        assert isinstance(palette, Palette)
        await palette.query_one(CommandList).remove()
        await palette._gather_commands("regen").wait()
        palette.dismiss(None)
        await wait_until(pilot, lambda: not app.has_screen_above)

    on_screen(steps)


def test_keys_in_a_palette_without_room_end_nothing() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+p", *"re")
        await wait_until(pilot, lambda: app.has_screen_above and "/regen" in shown(app))
        results = app.screen.query_one(CommandList)
        results.styles.height = results.styles.max_height = 0
        results.set_options(["one", "two"])
        results.highlighted = 1
        await pilot.pause()
        await pilot.press("pagedown", "pageup")
        assert app.is_running
        await pilot.press("escape")

    on_screen(steps)


def test_figures_are_those_of_the_chat_that_is_shown() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "hello")
        await wait_until(pilot, lambda: "1 token" in shown(app))
        assert app.query_one(StatisticsPanel).figures.stats.generated_tokens == 1
        await type_in(app, pilot, "/clear")
        await wait_until(pilot, lambda: app.query_one(StatisticsPanel).figures.stats.generated_tokens == 0)
        await pilot.press("ctrl+r")
        await wait_until(pilot, lambda: "there is nothing to answer yet" in shown(app))
        assert app.composer.text == ""

    on_screen(steps)


@pytest.mark.parametrize("key", ["f1", "ctrl+s", "ctrl+p"])
def test_a_second_click_or_key_that_closes_a_screen_ends_nothing(key: str) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press(key)
        await wait_until(pilot, lambda: app.has_screen_above)
        above = app.screen
        for _ in range(2):
            above.dismiss(None)
        await wait_until(pilot, lambda: not app.has_screen_above)
        above.dismiss(None)
        await type_in(app, pilot, "hello")
        assert contents(app) == ["hello", "one"]

    on_screen(steps)


def test_what_is_selected_is_copied_and_the_screen_says_how_much() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "hello there")
        await pilot.click(offset=place_of(app.transcript.views[0], "there"), times=3)
        await wait_until(pilot, lambda: app.clipboard == "hello there")
        assert [each.message for each in app._notifications] == ["Copied 2 words, 11 characters"]
        await pilot.press("x")
        assert app.composer.text == "x"
        assert not app.screen.selections

    on_new_screen(steps)


def test_a_second_ctrl_c_quits() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await pilot.press("ctrl+c")
        assert [each.message for each in app._notifications] == ["Ctrl+C again quits; this chat is not saved"]
        assert not app._exit
        await pilot.press("ctrl+c")
        assert app._exit

    on_new_screen(steps)


def test_ctrl_c_clears_the_field_and_a_second_one_quits_and_keeps_the_text(tmp_path: Path) -> None:
    store = Store(tmp_path / "chats.db")

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.composer.put("my draft")
        await pilot.press("ctrl+c")
        assert app.composer.text == ""
        assert [each.message for each in app._notifications] == [
            "Up brings the text back; Ctrl+C again quits; the chat is saved"
        ]
        await pilot.press("ctrl+c")
        assert app._exit

    async def look(app: ChatApp, pilot: Pilot[None]) -> None:
        assert app.composer.text == "my draft"
        app.query_one(ChatList).focus()
        await pilot.press("ctrl+c")  # there the key is not meant for the field
        assert app.composer.text == "my draft"

    on_new_screen(steps, store=store)
    on_new_screen(look, store=store)
    store.close()


@pytest.mark.parametrize("word", ["exit", " Quit ", "bye", ":q"])
def test_words_with_which_people_leave_other_programs_quit(word: str) -> None:
    engine = FakeEngine("never")

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.composer.put(f"{word} the shop")
        await pilot.press("enter")
        await idle(app, pilot)
        assert len(engine.requests) == 1
        app.composer.put(word)
        await pilot.press("enter")
        await wait_until(pilot, lambda: app._exit)
        assert len(engine.requests) == 1

    on_new_screen(steps, engine)


def test_ctrl_c_stops_and_quits_while_text_is_selected() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.composer.put("count")
        await pilot.press("enter")
        await wait_until(pilot, lambda: app.is_answering and bool(app.transcript.views))
        await pilot.click(offset=place_of(app.transcript.views[0], "count"), times=2)
        await wait_until(pilot, lambda: app.clipboard == "count")
        await pilot.press("ctrl+c")
        await idle(app, pilot)
        assert app.session.chat.turns[-1].answer is not None
        assert app.session.chat.turns[-1].answer.finish_reason == "cancelled"
        await pilot.click(offset=place_of(app.transcript.views[0], "count"), times=2)
        await wait_until(pilot, lambda: bool(app.screen.selections))
        await pilot.press("ctrl+c", "ctrl+c")
        assert app._exit

    on_new_screen(steps, FakeEngine("word " * 400, round_s=0.02))


def test_ctrl_c_copies_what_is_selected_in_the_field_once() -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        app.composer.put("some text")
        for _ in range(2):
            app.composer.input.select_all()
            app._clipboard = ""
            await pilot.press("ctrl+c")
            assert app.clipboard == "some text"
            await pilot.press("right")
        app.composer.input.select_all()
        await pilot.press("ctrl+c", "ctrl+c")
        assert app.composer.input.selection.is_empty
        assert not app._exit
        await pilot.press("ctrl+c")
        assert app._exit

    on_new_screen(steps)


@pytest.mark.parametrize("key", ["p", "f", "r"])
def test_keys_in_the_list_of_chats_leave_the_focus_there(key: str) -> None:
    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        await type_in(app, pilot, "hello")
        await pilot.press("ctrl+b")
        chats = app.query_one(ChatList)
        await wait_until(pilot, lambda: chats.has_focus and chats.place is not None)
        await pilot.press(key)
        if key != "p":
            await wait_until(pilot, lambda: app.has_screen_above)
            await pilot.press("x", "enter")
            await wait_until(pilot, lambda: not app.has_screen_above)
        await wait_until(pilot, lambda: chats.has_focus)
        await pilot.press("space", "space")
        assert app.composer.text == ""

    on_new_screen(steps)
