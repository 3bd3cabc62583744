"""The form of settings: its result, and its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static
from tui_harness import Styled, wait_until

from edgespec.chat.settings import SETTINGS, ChatSettings, all_changed, changed
from edgespec.core.sampling import SamplingSettings
from edgespec.tui.settings_screen import SettingRow, SettingsScreen, as_typed, changes

Result = dict[str, str] | None
Step = Callable[[Pilot[Any]], Awaitable[None]]
OPEN: Result = {"still": "open"}


def result_of(step: Step, settings: ChatSettings | None = None, size: tuple[int, int] = (80, 24)) -> Result:
    """The result of the screen after `step`; `OPEN` while it is open."""
    results: list[Result] = [OPEN]

    class Harness(Styled):
        def on_mount(self) -> None:
            self.push_screen(SettingsScreen(settings or ChatSettings()), results.append)

    async def run() -> None:
        async with Harness().run_test(size=size) as pilot:
            await step(pilot)
            await pilot.pause()

    asyncio.run(run())
    return results[-1]


def row(pilot: Pilot[Any], name: str) -> SettingRow:
    return next(row for row in pilot.app.screen.query(SettingRow) if row.setting.name == name)


def text_of(pilot: Pilot[Any], selector: str) -> str:
    return str(pilot.app.screen.query_one(selector, Static).content)


def test_there_is_a_row_for_every_setting_with_its_value() -> None:
    settings = changed(changed(ChatSettings(), "stop", "a, b"), "pace", "fixed:3")

    async def step(pilot: Pilot[Any]) -> None:
        assert [row.setting for row in pilot.app.screen.query(SettingRow)] == list(SETTINGS)
        assert row(pilot, "temp").field.value == "0.8"
        assert row(pilot, "stop").field.value == "a, b"
        assert row(pilot, "pace").field.value == "fixed:3"
        assert row(pilot, "spec-tree").field.value == ""
        await pilot.press("ctrl+s")

    assert result_of(step, settings) == {}


def test_what_is_typed_and_taken_with_enter_is_given_back() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await pilot.press("0", "down", "down", "0", ".", "5", "up", "up", "up", "2", "enter")

    assert result_of(step) == {"temp": "0", "top-p": "0.5", "spec-tree": "2"}


def test_the_same_value_in_other_words_is_no_change() -> None:
    assert changes(ChatSettings(), form(ChatSettings(), temp="0.80")) == ({}, {})


def test_what_is_wrong_is_said_beside_it_and_the_form_stays_open() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await pilot.press(*"hot", "down", "enter")
        temp = row(pilot, "temp")
        await wait_until(pilot, lambda: temp.has_class("-wrong"))
        error = temp.query_one(".setting-error", Static)
        assert error.display
        assert str(error.content) == "temp must be a number, not 'hot'"
        assert str(temp.query_one(".setting-name", Static).content) == "✗ temp"
        assert temp.field.has_focus
        assert isinstance(pilot.app.screen, SettingsScreen)
        await pilot.press("ctrl+u", "1")
        await wait_until(pilot, lambda: not temp.has_class("-wrong"))
        assert str(temp.query_one(".setting-name", Static).content) == "• temp"
        await pilot.press("enter")

    assert result_of(step) == {"temp": "1"}


def test_the_line_below_tells_what_the_setting_with_the_focus_does_and_escape_changes_nothing() -> None:
    async def step(pilot: Pilot[Any]) -> None:
        assert text_of(pilot, "#settings-help") == SETTINGS[0].help
        await pilot.press("down")
        await wait_until(pilot, lambda: text_of(pilot, "#settings-help") == SETTINGS[1].help)
        await pilot.press("0", "escape")

    assert result_of(step) is None


def test_one_key_puts_all_defaults_back() -> None:
    settings = replace(ChatSettings(SamplingSettings(temperature=0.1)), verify="block", pace="off", stop=("x",))

    async def step(pilot: Pilot[Any]) -> None:
        await pilot.press("ctrl+r", "enter")

    result = result_of(step, settings)
    assert result == {"temp": "0.8", "stop": "", "verify": "coupled", "pace": ""}
    assert reduce(lambda s, item: changed(s, *item), result.items(), settings) == ChatSettings()


@pytest.mark.long(but=1)
@pytest.mark.parametrize("size", [(60, 24), (40, 20)])
def test_the_form_is_usable_with_the_mouse_in_a_small_window(size: tuple[int, int]) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        screen = pilot.app.screen
        seen = screen.query_one("#settings-rows").region
        help_ = screen.query_one("#settings-help").region
        assert help_.bottom < size[1] - 1
        assert seen.bottom <= help_.y
        assert screen.query_one("#setting-top-k", Input).region.width >= 10
        await pilot.click("#setting-top-k")
        await pilot.press("end", "ctrl+u", "7")
        last = row(pilot, SETTINGS[-1].name).field
        last.focus()
        await wait_until(pilot, lambda: seen.contains_region(last.region))
        await pilot.click(f"#setting-{SETTINGS[-1].name}")
        await pilot.press("3", "enter")

    assert result_of(step, size=size) == {"top-k": "7", SETTINGS[-1].name: "3"}


def form(settings: ChatSettings, **edited: str) -> dict[str, str]:
    """The texts of all fields."""
    texts = {item.name: as_typed(item, settings) for item in SETTINGS}
    return texts | {name.replace("_", "-"): text for name, text in edited.items()}


def test_a_constraint_replaces_another() -> None:
    settings = changed(ChatSettings(), "json-schema", "{}")
    assert changes(settings, form(settings, regex="a+")) == ({"regex": "a+"}, {})
    assert (changed(settings, "regex", "a+").json_schema, changed(settings, "regex", "a+").regex) == ("", "a+")
    assert "column 1: unclosed group" in changes(settings, form(settings, regex="(a"))[1]["regex"]


def test_settings_that_need_each_other_are_changed_in_any_order() -> None:
    settings = changed(ChatSettings(), "spec-draft-n-max", "4")
    wanted = {"pace": "fixed:8", "spec-draft-n-max": "8"}
    assert changes(settings, form(settings, **wanted)) == (wanted, {})
    assert all_changed(settings, wanted)[0].pace == "fixed:8"


def test_a_setting_that_another_excludes_is_refused_alone() -> None:
    settings = ChatSettings()
    taken, refused = changes(settings, form(settings, temp="0", pace="fixed:8", spec_draft_n_max="4"))
    assert taken == {"temp": "0", "pace": "fixed:8"}
    assert list(refused) == ["spec-draft-n-max"]
