"""Selecting text with the mouse: words, lines and ranges, what is copied, and that it is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from rich.cells import cell_len
from rich.color import ColorType
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.geometry import Offset
from textual.pilot import Pilot
from textual.strip import Strip
from textual.theme import BUILTIN_THEMES
from tui_harness import Harness, place_of, wait_until

from edgespec.history import AnswerRecord, Turn
from edgespec.text.words import word_at
from edgespec.tui.lines import Lines, _restyled
from edgespec.tui.transcript import Transcript

Script = Callable[[Harness, Pilot[Any], Transcript], Awaitable[None]]
LONG = " ".join(f"word{n}" for n in range(40))
URL = "https://example.org/" + "path" * 30


def run(script: Script, *texts: str, size: tuple[int, int] = (50, 40)) -> None:
    """Let the user and the model say these texts in turn."""
    transcript = Transcript()
    app = Harness(transcript)

    async def go() -> None:
        async with app.run_test(size=size) as pilot:
            roles = ("user", "assistant")
            turns = [Turn(f"k{n}", None, roles[n % 2], text, 0.0, AnswerRecord()) for n, text in enumerate(texts)]
            await transcript.show(turns)
            await pilot.pause()
            await script(app, pilot, transcript)

    asyncio.run(go())


async def drag(pilot: Pilot[Any], start: tuple[int, int], end: tuple[int, int]) -> None:
    await pilot.mouse_down(offset=start)
    await pilot.hover(offset=((start[0] + end[0]) // 2, (start[1] + end[1]) // 2))
    await pilot.hover(offset=end)
    await pilot.mouse_up(offset=end)
    await pilot.pause()


@pytest.mark.parametrize(
    ("text", "pointed", "times", "copied"),
    [
        ("one two\n\nthree", "two", 2, "two"),
        ("one two\n\nthree four", "four", 3, "three four"),
        ("It doesn't matter, l\u2019été", "esn't", 2, "doesn't"),
        ("It doesn't matter, l\u2019été", "été", 2, "l\u2019été"),
        ("a snake_case, name", "case", 2, "snake_case"),
        ("e\u0301te\u0301 x", "te", 2, "e\u0301te\u0301"),
        ("说 你好 世界", "好", 2, "你好"),
        ("a **bold** word", "bold", 3, "a bold word"),
        (f"{LONG}\n\nlast", "word30", 2, "word30"),
        (f"{LONG}\n\nlast", "word30", 3, LONG),
        (URL, "path", 3, URL),
        ("- one\n- two three\n", "three", 3, "• two three"),
        (f"- one\n- {LONG}\n", "word30", 3, f"• {LONG}"),
        (f"> {LONG}\n", "word30", 3, LONG),
        ("```python\ndef f():\n    return 1\n```", "return", 3, "    return 1"),
    ],
)
def test_a_double_click_takes_a_word_and_a_triple_click_a_line(
    text: str, pointed: str, times: int, copied: str
) -> None:
    async def script(app: Harness, pilot: Pilot[Any], transcript: Transcript) -> None:
        place = place_of(transcript.views[1], pointed)
        await pilot.click(offset=place, times=times)
        await wait_until(pilot, lambda: app.clipboard == copied)
        assert app.screen.get_selected_text() == copied

    run(script, "question", text)


@pytest.mark.parametrize("times", [2, 3, 4])
@pytest.mark.parametrize("text", ["one\n\ntwo\n\nthree", "```\na\n\nb\n```", "| a | b |\n|---|---|\n| 1 | 2 |", ""])
def test_a_click_anywhere_ends_nothing(text: str, times: int) -> None:
    async def script(app: Harness, pilot: Pilot[Any], transcript: Transcript) -> None:
        for y in range(12):
            for x in (0, 1, 2, 30, 49):
                await pilot.click(offset=(x, y), times=times)
        assert app.is_running

    run(script, "question\n\n\nsecond", text, size=(50, 14))


def test_a_range_over_paragraphs_and_turns_is_copied_as_it_was_written() -> None:
    async def script(app: Harness, pilot: Pilot[Any], transcript: Transcript) -> None:
        question, answer = transcript.views
        await drag(pilot, place_of(question, "there"), place_of(answer, "last"))
        head = answer.plain.splitlines()[0].rstrip()  # type: ignore[attr-defined]
        assert app.clipboard == f"there\n\n{head}\n{LONG}\n\nsecond\n\nl"

    run(script, "hello there", f"{LONG}\n\nsecond\n\nlast")


def test_a_drag_to_the_left_takes_the_same_as_one_to_the_right() -> None:
    async def script(app: Harness, pilot: Pilot[Any], transcript: Transcript) -> None:
        answer = transcript.views[1]
        await drag(pilot, place_of(answer, "word30"), place_of(answer, "word3"))
        assert app.clipboard == " ".join(f"word{n}" for n in range(3, 30)) + " w"

    run(script, "question", LONG)


FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
FLAG = "\U0001f1e9\U0001f1ea"
WARNING = "\u26a0\ufe0f"


@pytest.mark.parametrize("is_note", [False, True])
@pytest.mark.parametrize(
    ("text", "start", "end", "copied"),
    [
        ("说 你好 世界", ("好", 1), None, "你好"),
        ("说 你好 世界", ("你", 0), ("好", 1), "你好"),
        ("说 你好 世界", ("你", 1), ("你", 2), "你好"),
        ("说 你好 世界", ("好", 1), ("你", 0), "你好"),
        (f"{WARNING} warning here", ("warning", 0), ("here", 0), "warning h"),
        (f"{WARNING} warning here", ("warning", -2), ("warning", 0), f"{WARNING} w"),
        (f"{FAMILY} hello", ("hello", 4), None, "hello"),
        (f"{FAMILY} hello", (FAMILY, 0), (FAMILY, 1), FAMILY),
        (f"see {FAMILY} hello", ("see", 0), (FAMILY, 0), f"see {FAMILY}"),
        ("e\u0301te\u0301 x", ("te", 0), ("te", 1), "te\u0301"),
        (f"to {FLAG} hello", ("to", 0), (FLAG, 0), f"to {FLAG}"),
        (f"to {FLAG} hello", ("hello", 0), None, "hello"),
    ],
)
def test_wide_and_joined_characters_are_selected_where_they_are_seen(
    text: str, start: tuple[str, int], end: tuple[str, int] | None, copied: str, is_note: bool
) -> None:
    async def script(app: Harness, pilot: Pilot[Any], transcript: Transcript) -> None:
        if is_note:
            await transcript.note(text)
            await pilot.pause()

        def place(at: tuple[str, int]) -> tuple[int, int]:
            x, y = place_of(transcript.views[1], at[0])
            return x + at[1], y

        if end is None:
            await pilot.click(offset=place(start), times=2)
        else:
            await drag(pilot, place(start), place(end))
        await wait_until(pilot, lambda: app.clipboard == copied)

    run(script, "question", *([] if is_note else [text]))


def test_what_the_program_says_of_an_answer_is_not_copied() -> None:
    async def script(app: Harness, pilot: Pilot[Any], transcript: Transcript) -> None:
        answer = transcript.views[1]
        await drag(pilot, place_of(answer, "before"), (49, 39))
        assert app.clipboard == "before\n\nx = 1\n\nafter"

    run(script, "question", "before\n\n```python\nx = 1\n```\n\nafter")


@pytest.mark.parametrize("theme", [*BUILTIN_THEMES])
def test_a_selection_is_seen_in_every_theme(theme: str) -> None:
    async def script(app: Harness, pilot: Pilot[Any], transcript: Transcript) -> None:
        app.theme = theme
        for view in transcript.views:
            transcript.mark_found("third")
            await pilot.pause()
            y = place_of(view, "first")[1] - view.content_region.y
            before = styles(view.render_line(y))
            await pilot.click(offset=place_of(view, "first"), times=3)
            await pilot.pause()
            after = styles(view.render_line(y))
            assert len(after) == len("first second third") <= len(before)
            for old, new in zip(before, after, strict=False):
                assert new.bgcolor is not None and new.color is not None and new.bgcolor != old.bgcolor
                assert not new.reverse and not new.dim and new.bgcolor != new.color
                if new.color.type is ColorType.TRUECOLOR:
                    assert contrast(new) >= 3  # the least that the WCAG asks of parts of an interface

    def styles(strip: Any) -> list[Style]:
        return [style for text, style, _ in strip for _ in text][: len(strip.text.rstrip())]

    run(script, "first second third", "first `second` third")


def contrast(style: Style) -> float:
    """The contrast of text, as the WCAG defines it."""

    def luminance(color: Any) -> float:
        parts = (value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4 for value in color.normalized)
        return float(sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True)))

    assert style.color is not None and style.bgcolor is not None
    light, dark = sorted(
        (luminance(Color.from_rich_color(each)) for each in (style.color, style.bgcolor)), reverse=True
    )
    return (light + 0.05) / (dark + 0.05)


def test_a_narrower_screen_drops_a_selection_and_a_note_can_be_selected() -> None:
    async def script(app: Harness, pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.note("a note [b]of\n\nseveral lines")
        await pilot.pause()
        await pilot.click(offset=place_of(transcript.views[1], "several"), times=2)
        await wait_until(pilot, lambda: app.clipboard == "several")
        await pilot.click(offset=place_of(transcript.views[0], "word3"), times=2)
        await wait_until(pilot, lambda: app.clipboard == "word3")
        await pilot.resize_terminal(30, 40)
        await wait_until(pilot, lambda: not app.screen.selections)

    run(script, LONG)


@pytest.mark.parametrize(
    "text", ["plain", "你好 wide", "e\u0301te\u0301 \u0301", "👩\u200d👩\u200d👧 a👍🏽b", "\u200d\u200b\ufe0f", ""]
)
def test_a_line_keeps_its_text_whatever_part_of_it_is_marked(text: str) -> None:
    strip = Strip([Segment(text[:3], Style(bold=True)), Segment(text[3:])])
    for first in range(len(text) + 1):
        for last in range(len(text) + 1):
            marked = _restyled(strip, (first, last), Style(reverse=True))
            assert marked.text == text and marked.cell_length == cell_len(text)
            assert [part.style for part in marked if part.style and part.style.reverse] or first >= last
            assert _restyled(marked, (0, last), Style(underline=True)).text == text


@pytest.mark.parametrize("y", [-1000, 1000])
def test_a_text_that_has_moved_since_the_click_has_nothing_there(y: int) -> None:
    async def script(app: Harness, pilot: Pilot[Any], transcript: Transcript) -> None:
        await transcript.note("a note")
        for view in transcript.views:
            assert isinstance(view, Lines)
            assert not view.render_line(y).text.strip()
            assert view.line_text(y) == ""
            for whole_line in (False, True):
                assert not view.around(Offset(0, y), whole_line=whole_line)

    run(script, LONG)


@pytest.mark.parametrize(
    ("text", "index", "word"),
    [("don't", 3, "don't"), ("'a'", 0, "'"), ("a -- b", 3, "--"), ("a  b", 1, "  "), ("x", 0, "x"), ("a.b", 2, "b")],
)
def test_words_are_what_people_take_for_words(text: str, index: int, word: str) -> None:
    start, end = word_at(text, index)
    assert text[start:end] == word
