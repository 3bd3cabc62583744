"""Code blocks and tables of an answer: long lines, blocks copied one by one, columns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot
from tui_harness import Harness, click_on, tokens, wait_until

from edgespec.history import Turn
from edgespec.text.code_blocks import code_blocks
from edgespec.tui.markdown import Code, markdown
from edgespec.tui.transcript import Transcript
from edgespec.tui.turn_view import CopyText, SaveCode, TurnView

LONG = "x = [" + ", ".join(str(number) for number in range(100)) + "]"
ANSWER = f"First:\n\n```python\n{LONG}\nend\n```\n\n- second\n\n  ```sh\n  ls\n\tdir\n  ```\n"

Script = Callable[[Pilot[Any], TurnView], Awaitable[None]]


def on_answer(script: Script, text: str = ANSWER, size: tuple[int, int] = (60, 24)) -> list[str]:
    """Run the script on the view of an answer; what was to be copied."""
    transcript = Transcript()
    app = Harness(transcript, keeps=(CopyText, SaveCode))

    async def go() -> None:
        async with app.run_test(size=size) as pilot:
            await transcript.show([Turn("key", None, "assistant", text, 0.0)])
            await pilot.pause()
            view = transcript.query_one(TurnView)
            view.focus()
            await pilot.pause()
            await script(pilot, view)
            await pilot.pause()

    asyncio.run(go())
    taken = (message for message in app.messages if isinstance(message, CopyText | SaveCode))
    return [message.text if isinstance(message, CopyText) else message.block.code for message in taken]


def codes(text: str) -> list[str]:
    return [block.code for block in code_blocks(text)]


def line_of(view: TurnView, text: str) -> str:
    return next(line for line in view.plain.splitlines() if text in line)


def test_a_long_line_of_code_is_wrapped_and_its_end_is_seen() -> None:
    async def script(pilot: Pilot[Any], view: TurnView) -> None:
        lines = view.plain.splitlines()
        first = lines.index(line_of(view, "x = [0, 1"))
        last = lines.index(line_of(view, "99]"))
        assert "".join(line.strip() for line in lines[first : last + 1]).replace(" ", "") == LONG.replace(" ", "")
        assert lines[last + 1].strip() == "end"

    on_answer(script)


def test_each_block_is_copied_whole_by_its_number_and_by_a_click() -> None:
    async def script(pilot: Pilot[Any], view: TurnView) -> None:
        await pilot.press("1", "2", "3")
        await click_on(pilot, view, "copy [2]")

    assert on_answer(script) == codes(ANSWER)[:1] + 2 * codes(ANSWER)[1:]


def test_blocks_are_saved_all_by_a_key_and_one_by_a_click() -> None:
    async def script(pilot: Pilot[Any], view: TurnView) -> None:
        await pilot.press("s")
        await click_on(pilot, view, "save  copy [2]")

    assert on_answer(script) == [*codes(ANSWER), codes(ANSWER)[1]]


def test_code_that_is_being_written_is_one_block_however_long() -> None:
    text = "```python\n" + "".join(f"line {number}\n" for number in range(150)) + "```\n\n```\nother\n```"
    transcript = Transcript()
    app = Harness(transcript, keeps=(CopyText,))

    async def go() -> None:
        async with app.run_test(size=(60, 24)) as pilot:
            await transcript.begin_answer()
            live = transcript.live
            assert isinstance(live, TurnView)
            for event in tokens(text, size=9):
                await transcript.feed([event])
            await wait_until(pilot, lambda: "other" in live.plain)
            assert live.plain.count("copy [") == 2
            assert [line.strip() for line in live.plain.splitlines()][2:152] == [f"line {n}" for n in range(150)]
            live.focus()
            await pilot.press("1", "2")
            await pilot.pause()

    asyncio.run(go())
    assert [message.text for message in app.messages if isinstance(message, CopyText)] == codes(text)


@given(
    st.lists(st.sampled_from(["text", "```\na\n```", "    b", "- c\n\n      d", "> ```sh\n> e\n> ```", "| f |\n|-|"]))
)
def test_what_is_copied_by_number_is_what_has_that_number_on_the_screen(parts: list[str]) -> None:
    text = "\n\n".join(parts)
    assert codes(text) == [block.code for block in markdown(text) if isinstance(block, Code)]


@pytest.mark.parametrize("width", [60, 24, 12])
def test_the_line_above_the_code_fits_every_width(width: int) -> None:
    async def script(pilot: Pilot[Any], view: TurnView) -> None:
        await wait_until(pilot, lambda: "copy" in view.plain)
        assert all(len(line) <= width for line in view.plain.splitlines())

    on_answer(script, size=(width, 24))


def test_columns_of_a_table_are_aligned_as_it_says() -> None:
    table = "| left | middle | right |\n|:-|:-:|-:|\n| a | b | 1 |\n| longer | text | 1,000 |"

    async def script(pilot: Pilot[Any], view: TurnView) -> None:
        rows = view.plain.splitlines()[1:]
        assert rows[0] == "left   │ middle │ right"
        assert rows[2:4] == ["a      │   b    │     1", "longer │  text  │ 1,000"]

    on_answer(script, table)
