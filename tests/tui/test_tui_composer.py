"""The input field: keys, growth, history, commands, and pastes of any length."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.events import Paste
from textual.pilot import Pilot
from textual.widgets import Static
from tui_harness import Harness, click_on, send_bytes, wait_until

from edgespec.tui.composer import CommandChoices, Composer, Pasted, PasteUndone, Submitted
from edgespec.tui.terminal import know_alt_enter

COMMANDS = [("/help", "what there is"), ("/regen", "answer again"), ("/redo", "do again"), ("/bye", "leave")]
HISTORY = ["first", "second\nof two lines"]
LONG_TEXT = "0123456789abcde\n" * 4096

Script = Callable[[Pilot[Any], Composer], Awaitable[None]]


def run(script: Script, size: tuple[int, int] = (60, 24)) -> Harness:
    composer = Composer(COMMANDS, HISTORY)
    app = Harness(Static("above"), composer, keeps=(Submitted, Pasted, PasteUndone))

    async def go() -> None:
        async with app.run_test(size=size) as pilot:
            composer.input.focus()
            await pilot.pause()
            await script(pilot, composer)
            await pilot.pause()

    asyncio.run(go())
    return app


async def write(pilot: Pilot[Any], text: str) -> None:
    keys = {" ": "space", "/": "slash", "\n": "ctrl+j"}
    await pilot.press(*(keys.get(letter, letter) for letter in text))


def offered(composer: Composer) -> list[str | None]:
    """The commands in the list, if it is there."""
    commands = composer.query_one(CommandChoices)
    return [option.id for option in commands.options] if commands.display else []


# --- writing and sending ------------------------------------------------------------------------------------------


def test_enter_sends_and_empties_and_other_keys_make_lines() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "one")
        await pilot.press("ctrl+j", "t", "w", "o", "shift+enter", "enter")
        assert composer.text == ""

    assert run(script).messages == [Submitted("one\ntwo\n")]


def test_nothing_is_not_sent() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await pilot.press("enter", "space", "ctrl+j", "enter")

    assert run(script).messages == []


@pytest.mark.parametrize("height", [20, 40])
def test_it_grows_with_its_lines_to_a_third_of_the_screen_and_shrinks_again(height: int) -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        assert composer.size.height == 3  # with its frame
        await pilot.press("ctrl+j", "ctrl+j")
        await wait_until(pilot, lambda: composer.size.height == 5)
        await pilot.press(*["ctrl+j"] * 40)
        await wait_until(pilot, lambda: height / 4 < composer.size.height <= height / 2.8)
        await write(pilot, "end")
        await pilot.press("enter")
        await wait_until(pilot, lambda: composer.size.height == 3)

    run(script, size=(60, height))


def test_a_long_line_is_wrapped_and_makes_it_grow_too() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        composer.put("word " * 30)
        await wait_until(pilot, lambda: composer.size.height == 5)

    run(script)


def test_typing_can_be_undone() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "abc")
        await pilot.press("ctrl+u")
        assert composer.text == ""
        await pilot.press("ctrl+z")
        assert composer.text == "abc"

    run(script)


def test_what_can_be_done_is_said_while_it_is_empty() -> None:
    for size, hint in [((60, 24), "Enter sends"), ((40, 20), "/ commands")]:

        async def script(pilot: Pilot[Any], composer: Composer, hint: str = hint) -> None:
            strips = composer.input.render_lines(composer.input.outer_size.region)
            assert any(hint in strip.text for strip in strips)

        run(script, size=size)


def test_pages_are_asked_of_the_transcript() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await pilot.press("pageup", "pagedown")

    assert run(script).called == ["page -1", "page 1"]


def test_ctrl_x_cuts_a_selection_and_without_one_begins_the_chord_of_the_editor() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "ab")
        await pilot.press("shift+left", "ctrl+x")
        assert composer.text == "a"
        await pilot.press("ctrl+x")
        assert composer.input.border_title == "Ctrl+E opens your editor"
        await pilot.press("ctrl+e")
        assert composer.input.border_title == ""
        await pilot.press("ctrl+x", "b", "ctrl+e")  # another key ends the chord
        assert composer.text == "ab"

    assert run(script).called == ["call editor"]


def test_end_moves_to_the_end_of_the_line_and_then_to_the_newest_message() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "ab")
        await pilot.press("home", "end", "c")
        assert composer.text == "abc"
        await pilot.press("end")

    assert run(script).called == ["newest"]


# --- history ------------------------------------------------------------------------------------------------------


def test_up_and_down_go_through_what_was_sent_and_back_to_the_draft() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "draft")
        await pilot.press("up")
        assert composer.text == HISTORY[1]
        await pilot.press("up")  # to its first line
        assert composer.text == HISTORY[1]
        await pilot.press("up")
        assert composer.text == HISTORY[0]
        await pilot.press("up")
        assert composer.text == HISTORY[0]
        await pilot.press("down")
        assert composer.text == HISTORY[1]
        await pilot.press("down")
        assert composer.text == "draft"
        await pilot.press("down")
        assert composer.text == "draft"

    run(script)


@pytest.mark.parametrize("key", ["up", "ctrl+z"])
def test_a_text_that_was_cleared_is_brought_back_by_keys(key: str) -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "my text")
        assert composer.input.clear_text()
        assert composer.text == ""
        assert not composer.input.clear_text()
        await pilot.press(key)
        assert composer.text == "my text"

    run(script)


def test_a_cleared_text_does_not_come_back_over_another_one() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "my text")
        composer.input.clear_text()
        await write(pilot, "x")
        await pilot.press("backspace")
        composer.input.undo_clearing()
        assert composer.text == ""

    run(script)


def test_alt_enter_as_terminals_send_it_makes_a_line() -> None:
    know_alt_enter()

    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        send_bytes(pilot.app, "one\x1b\rtwo\r")
        await wait_until(pilot, lambda: composer.text == "")

    assert run(script).messages == [Submitted("one\ntwo")]


def test_what_is_sent_is_the_newest_of_the_history() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "new")
        await pilot.press("enter", "up")
        assert composer.text == "new"
        await pilot.press("up")
        assert composer.text == HISTORY[1]

    run(script)


# --- commands -----------------------------------------------------------------------------------------------------


def test_commands_are_offered_while_one_is_typed_and_fewer_with_every_letter() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "/")
        assert offered(composer) == [name for name, _ in COMMANDS]
        await write(pilot, "re")
        assert offered(composer) == ["/regen", "/redo"]
        await write(pilot, "x")
        assert offered(composer) == []
        await pilot.press("backspace", "g")
        assert offered(composer) == ["/regen"]
        await pilot.press("home", "a")
        assert offered(composer) == []

    run(script)


@pytest.mark.parametrize("key", ["tab", "enter"])
def test_a_command_is_chosen_with_the_arrows_and_completed(key: str) -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "/re")
        await pilot.press("down", key)
        assert composer.text == "/redo "
        assert offered(composer) == []
        await write(pilot, "now")
        await pilot.press("enter")

    assert run(script).messages == [Submitted("/redo now")]


def test_enter_sends_what_was_typed_and_no_command_that_only_begins_so() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "/re")
        assert offered(composer) == ["/regen", "/redo"]
        await pilot.press("enter")

    assert run(script).messages == [Submitted("/re")]


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        ([*"/redo now", "enter"], "/redo now"),
        ([*"/by", "tab", *"now", "enter"], "/bye now"),
        ([*"wrong", "ctrl+u", *"right", "enter"], "right"),
        ([*"on", "backspace", "f", "enter"], "of"),
        ([*"/re", "down", "enter", *"now", "enter"], "/redo now"),
    ],
)
def test_keys_typed_in_a_burst_act_in_the_order_they_were_typed(keys: list[str], sent: str) -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        for key in keys:
            pilot.app.simulate_key(key)
        await wait_until(pilot, lambda: composer.text == "")
        await pilot.pause()

    assert run(script).messages == [Submitted(sent)]


def test_a_command_that_is_typed_out_is_sent_at_once() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "/bye")
        await pilot.press("enter")

    assert run(script).messages == [Submitted("/bye")]


def test_a_click_takes_a_command() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "/re")
        await pilot.pause()
        await click_on(pilot, composer.query_one(CommandChoices), "/redo")
        await wait_until(pilot, lambda: composer.text == "/redo ")
        assert composer.input.has_focus

    run(script)


def test_a_command_out_of_the_history_does_not_catch_the_arrows() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "/bye")
        await pilot.press("enter", "up")
        assert composer.text == "/bye"
        assert offered(composer) == []
        await pilot.press("up")
        assert composer.text == HISTORY[1]

    run(script)


def test_escape_closes_the_list_then_takes_the_command_back_and_then_stops() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "/re")
        await pilot.press("escape")
        assert offered(composer) == []
        assert composer.text == "/re"
        await pilot.press("escape")
        assert composer.text == ""
        await write(pilot, "//usr")  # a message that begins with a slash
        await pilot.press("escape")
        assert composer.text == "//usr"

    assert run(script).called == ["stop"]


def test_tab_without_a_command_leaves_the_field() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        other = Composer()
        await pilot.app.mount(other)
        await write(pilot, "word")
        await pilot.press("tab")
        assert other.input.has_focus
        assert composer.text == "word"

    run(script)


# --- pastes -------------------------------------------------------------------------------------------------------


def test_a_paste_is_taken_as_it_is() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "ab")
        await pilot.press("left")
        pilot.app.post_message(Paste("[b]\n  two\x1b[31m\tlines"))
        await pilot.pause()
        await pilot.press("enter")

    assert run(script).messages == [Submitted("a[b]\n  two\x1b[31m\tlinesb")]


def test_control_characters_in_a_paste_do_not_reach_the_terminal() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        pilot.app.post_message(Paste("a\x1b[31mb"))
        await pilot.pause()
        strips = composer.input.render_lines(composer.input.outer_size.region)
        assert any("a\ufffd[31mb" in strip.text for strip in strips)
        assert not any("\x1b" in strip.text for strip in strips)

    run(script)


def test_a_long_paste_is_attached_and_undo_makes_it_text() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        await write(pilot, "see ")
        pilot.app.post_message(Paste(LONG_TEXT))
        await pilot.pause()
        assert composer.text == "see "
        await pilot.press("ctrl+z")
        assert composer.text == f"see {LONG_TEXT}"

    assert run(script).messages == [Pasted(LONG_TEXT, is_paths=False), PasteUndone()]


def test_a_paste_keeps_its_lines_whatever_ends_them() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        for text in ("one\rtwo\r\nthree\n", "0123456789\r\n" * 100):
            pilot.app.post_message(Paste(text))
            await pilot.press("enter")

    assert run(script).messages == [Submitted("one\ntwo\nthree\n"), Submitted("0123456789\n" * 100)]


def test_a_long_message_can_be_written_anew() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        composer.put(LONG_TEXT)
        await write(pilot, "!")
        await pilot.press("enter")

    assert run(script).messages == [Submitted(f"{LONG_TEXT}!")]


@pytest.mark.parametrize("n_lines", [2, 11, 40])
@pytest.mark.parametrize(
    "text", ["line\n", "\n", "a long line that is wrapped, because the field is narrow " * 3 + "\n"]
)
@pytest.mark.parametrize("before", ["", "first\nsecond"])
def test_undo_and_redo_of_any_paste_restore_the_text(n_lines: int, text: str, before: str) -> None:
    pasted = text * n_lines

    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        composer.put(before)
        composer.input.move_cursor((0, 0))
        pilot.app.post_message(Paste(pasted))
        await wait_until(pilot, lambda: len(composer.text) >= len(pasted))
        assert composer.text == pasted + before
        for _ in range(2):
            await pilot.press("ctrl+z")
            assert composer.text == before
            await pilot.press("ctrl+y")
            assert composer.text == pasted + before
        await pilot.press(*["ctrl+z"] * 4, *["ctrl+y"] * 4, *["ctrl+z"] * 4)
        assert composer.text == ""

    run(script)


def test_a_long_paste_that_undo_inserted_can_be_undone_twice() -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        pilot.app.post_message(Paste(LONG_TEXT))
        await wait_until(pilot, lambda: composer.input._pasted[0] == LONG_TEXT)
        await pilot.press("ctrl+z")
        await wait_until(pilot, lambda: composer.text == LONG_TEXT)
        await pilot.press("ctrl+z", "ctrl+z", "ctrl+y", "ctrl+z")
        assert composer.text == ""

    run(script)


FAMILY, FLAG = "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea"


@pytest.mark.parametrize("character", [FAMILY, FLAG, "e\u0301", "\U0001f44d\U0001f3fd", "\u2764\ufe0f"])
def test_a_key_takes_a_visible_character_whole(character: str) -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        composer.put(f"a{character}{character}b")
        await pilot.press("left", "backspace")
        assert composer.text == f"a{character}b"
        await pilot.press("left", "delete")
        assert composer.text == "ab"
        composer.put(f"a{character}b")
        await pilot.press("home", "right", "right", "x")
        assert composer.text == f"a{character}xb"

    run(script)


@pytest.mark.parametrize("character", [FAMILY, FLAG, "e\u0301", "\U0001f44d\U0001f3fd"])
def test_the_cursor_is_never_inside_a_visible_character(character: str) -> None:
    async def script(pilot: Pilot[Any], composer: Composer) -> None:
        line = f"a{character}b"
        composer.put(f"{line}\n{'x' * 12}")
        places = {line.index(character), line.index("b"), 0, len(line)}
        for column in range(12):
            composer.input.move_cursor((1, column))
            await pilot.press("up")
            assert composer.input.cursor_location[1] in places
            composer.input.move_cursor((0, column))
            assert composer.input.cursor_location[1] in places
        composer.input.move_cursor((0, 1))
        drawn = composer.input.render_line(0)
        assert character in [segment.text for segment in drawn]
        assert drawn.cell_length == composer.input.render_line(1).cell_length

    run(script)
