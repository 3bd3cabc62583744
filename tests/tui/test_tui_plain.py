"""Text from outside is text wherever the screen shows it: names, titles, errors, settings and searches."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from random_input import HOSTILE
from textual.events import Click
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input as TextualInput
from textual.widgets import Static
from textual.widgets._toast import Toast
from tui_harness import Harness, place_of, text_of, wait_until

import edgespec.tui
from edgespec.chat.comparing import AnswerComparison, side_of
from edgespec.chat.session import Session
from edgespec.errors import EdgespecError
from edgespec.history import Store
from edgespec.settings import LoadSettings
from edgespec.text.printable import one_line
from edgespec.tools.config import ServerConfig
from edgespec.tools.server import ToolServer
from edgespec.tools.toolbox import Calling, Tool
from edgespec.tui.app import ChatApp
from edgespec.tui.comparison import ComparisonScreen
from edgespec.tui.dialogs import ChoiceScreen, ListEntry, TextScreen
from edgespec.tui.lines import Lines
from edgespec.tui.plain import OptionList, Plain
from edgespec.tui.tool_calls import CallLine, PermissionScreen

READS_MARKUP = {"textual.widgets", "textual.containers"}
PLAIN = {"Footer", "LoadingIndicator"}  # their texts are those of the program


def test_widgets_that_read_markup_come_from_one_module() -> None:
    for file in Path(edgespec.tui.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module in READS_MARKUP and file.name != "plain.py":
                assert {alias.name for alias in node.names} <= PLAIN, file.name
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("from_markup", "from_text"), file.name


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_text_from_outside_is_shown_as_it_is_and_ends_nothing(text: str) -> None:
    """Everything that shows such a text gets it, one after the other."""
    said = one_line(text)

    async def steps(app: ChatApp, pilot: Pilot[None]) -> None:
        sides = side_of(app.session, ""), side_of(app.session, "pace=off")
        screens: list[Screen[Any]] = [
            ChoiceScreen(text, text, [ListEntry("a", text, text), ListEntry(text, text)], text),
            TextScreen(text, text, [text]),
            PermissionScreen(calling(text)),
            ComparisonScreen(AnswerComparison(app.session, sides, "x")),
        ]
        for screen in screens:
            app.push_screen(screen)
            await pilot.pause()
            for widget in screen.query(Plain):
                widget.border_title = widget.border_subtitle = widget.tooltip = text
            await pilot.pause()
            assert said in shown(screen) or screen is screens[-1]
            app.pop_screen()
        app.title_bar.unsaved(text)
        await pilot.hover("#unsaved")
        app.screen._handle_tooltip_timer(app.query_one("#unsaved"))
        app.notify(text, title=text)
        app.transcript.notify(text)
        app.say(text, "warning")
        app.report(EdgespecError(text, why=text, hint=text))
        app.composer.say(text, warns=True)
        app.composer.files.show([(text, text)], text)
        app.composer.waiting.show([(1, text, 2)], text, is_held=True)
        app.session.chat.rename(text)
        app.session.chat.set_system(text)
        app.session.chat.persona = text
        await app.transcript.begin_call(CallLine(calling(text)))
        await app.redraw()
        app.title_bar.show_progress(text)
        await pilot.pause()
        if said:
            assert any(said in one_line(str(toast.render())) for toast in app.screen.query(Toast))
            assert said in shown(app.screen)
        for line in (f"/set stop {text}", f"/compare stop={text} | temp=1 -- hi", f"/models {text}", f"/search {text}"):
            app.run_command(line)
            await pilot.pause()
            while app.has_screen_above:
                app.pop_screen()
        await pilot.press("ctrl+p")
        app.screen.query_one("Input", TextualInput).value = text
        await pilot.press("escape")
        await wait_until(pilot, lambda: not app.has_screen_above)

    drive(steps)


def calling(text: str) -> Calling:
    tool = Tool(ToolServer(ServerConfig(text or "x", "x")), text, text, text, {})
    return Calling(tool, '{"a": "[/b]", "[/c]": 1}')


def shown(screen: Any) -> str:
    """All texts on a screen, each on one line."""
    texts = [one_line(str(each.visual)) for each in screen.query(Static)]
    texts += [one_line(text_of(each)) for each in screen.query(Lines)]
    texts += [one_line(str(option.prompt)) for each in screen.query(OptionList) for option in each.options]
    texts += [each.value for each in screen.query(TextualInput)]
    texts += [str(each._border_title or "") for each in screen.query(Widget)]
    return "\n".join(texts)


def drive(steps: Any) -> None:
    async def go() -> None:
        with Store.in_memory() as store:
            session = Session(store, lambda *_: FakeEngine("one"), LoadSettings("demo"))
            app = ChatApp(session)
            async with app.run_test(size=(106, 40), notifications=True, tooltips=True) as pilot:
                await wait_until(pilot, lambda: not app.is_busy)
                await steps(app, pilot)
                assert app._exception is None

    asyncio.run(go())


def test_a_list_may_change_before_it_has_its_styles() -> None:
    shown = OptionList("one")  # as between its mounting and the first layout, when a search adds its results
    shown.set_options(["two", "three"])
    shown._update_lines()
    assert shown.option_count == 2


@pytest.mark.parametrize("key", ["pageup", "pagedown", "home", "end", "up", "down", "enter"])
def test_keys_in_a_list_without_room_end_nothing(key: str) -> None:
    shown = OptionList("one", "two", "three")
    app = Harness(shown)

    async def steps() -> None:
        async with app.run_test(size=(20, 10)) as pilot:
            shown.styles.height = 0
            shown.set_options(["four", "five", "six"])
            shown.highlighted = 1
            shown.focus()
            await pilot.pause()
            await pilot.press(key)
            assert app.is_running

    asyncio.run(steps())


def test_a_click_on_an_option_that_has_gone_does_nothing() -> None:
    shown = OptionList("one", "two", "three")
    app = Harness(shown)

    async def steps() -> None:
        async with app.run_test(size=(20, 10)) as pilot:
            await pilot.pause()
            x, y = place_of(shown, "three")
            drawn = app.screen.get_style_at(x, y)
            shown.set_options(["four"])
            shown.post_message(Click(shown, x, y, 0, 0, 1, False, False, False, x, y, drawn))
            await pilot.pause()
            assert app.is_running

    asyncio.run(steps())
