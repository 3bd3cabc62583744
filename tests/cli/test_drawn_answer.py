"""Answers that are drawn on a terminal while they stream."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich_answer import ANSWER, REASONING
from terminal import Terminal

from edgespec.cli.terminal.drawn_answer import DrawnAnswer, Look
from edgespec.cli.terminal.output import Output

COLOURS, PLAIN, READER = Look(True, True, True), Look(False, True), Look(False, False)
SEQUENCE = re.compile(r"\x1b\[[\d;]*m|\x1b\]8;;[!-~]*\x1b\\")


def draw(text: str, size: int = 1, look: Look = PLAIN, width: int = 40, *, thinks: bool = False) -> str:
    """Return what a terminal gets of a text in pieces of this size."""
    written: list[str] = []
    answer = DrawnAnswer(written.append, look, lambda: width, thinks=thinks)
    for start in range(0, len(text), size):
        answer.add(text[start : start + size])
    answer.end()
    return "".join(written)


PARTS = [
    "# A *title*",
    "Some **bold and _nested_ text**, `code`, ~~gone~~ and [a link](https://e.org/a_b). It costs $5, not $6.",
    "A formula \\(x^2\\), $a_1$ and $$b$$; 2 * 3 * 4, snake_case_name and *.py, but 5 < 6 & 7 > 3!",
    "- one\n- **two**\n  - inner `x`\n- [x] done",
    "1. first\n2. second\n\n   more of it\n3. $z$",
    "```python\ndef f(*args):\n\n    return '''a\nb'''\n```",
    "> quoted *text*\n> and more",
    "| a | **b** |\n|---|--:|\n| `1` | $2$ |",
    "\\[\n\\frac{a}{b}\n\\]",
    "$$\nx\n$$",
    "---",
    "A claim[^1].\n\n[^1]: A *source*.",
    "line one  \nline two\\\nline three",
    "    indented *code*\n    more",
]


@settings(max_examples=40, deadline=None)
@given(parts=st.lists(st.sampled_from(PARTS), max_size=5), size=st.integers(2, 50))
def test_the_pieces_in_which_an_answer_comes_make_no_difference(parts: list[str], size: int) -> None:
    text = "\n\n".join(parts)
    assert draw(text, 1) == draw(text, size) == draw(text, 10_000)


STRANGE = [
    *"*_`$[]()!<>&\\|~#-+ \n\x1b\r\x07\x9b",
    *("**", "```", "$$", "\\[", "\\(", "\n\n", "- ", "1. ", "word", "&#27;", "    "),
]


@settings(max_examples=150, deadline=None)
@given(parts=st.lists(st.sampled_from(STRANGE), max_size=30))
def test_no_control_sequence_of_a_model_reaches_the_terminal(parts: list[str]) -> None:
    for look in (COLOURS, READER):
        drawn = SEQUENCE.sub("", draw("".join(parts), 1, look, thinks=True))
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", drawn)


def test_nothing_of_an_answer_gets_lost() -> None:
    shown = draw(ANSWER, 3)
    for word in ["discriminant", "$HOME/bin", "snake_case_name", "solve(a:", "https://example.org/", "none", "[42]"]:
        assert word in shown


def test_a_word_is_shown_as_soon_as_it_is_complete() -> None:
    written: list[str] = []
    answer = DrawnAnswer(written.append, PLAIN, lambda: 40)
    shown = []
    for piece in ("The", " quick", " **bro", "wn** f", "ox\n", "next"):
        answer.add(piece)
        shown.append("".join(written))
    assert shown == ["", "The", "The quick", "The quick brown", "The quick brown fox", "The quick brown fox\n"]


def test_a_line_of_code_is_shown_as_soon_as_it_is_complete() -> None:
    written: list[str] = []
    answer = DrawnAnswer(written.append, PLAIN, lambda: 40)
    answer.add("```python\nx = 1\ny = ")
    assert "".join(written) == "```python\nx = 1"


@pytest.mark.parametrize("text", ["a **b", "a `b", "a $b", "a [b", "a \\(b", "**a\nb**", "*" + "x " * 200])
def test_a_mark_that_is_never_closed_is_text(text: str) -> None:
    assert draw(text, 1, width=10_000).split() == text.split()


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_words_are_wrapped_and_no_line_of_text_is_too_long(width: int) -> None:
    text = "- " + "some words of several lengths, 你好 and 👨‍👩‍👧‍👦 " * 10
    lines = draw(text, 4, width=width).split("\n")
    assert max(map(cell_len, lines)) <= min(width, 100)
    assert all(line.startswith("  ") for line in lines[1:])


def test_scripts_without_spaces_are_wrapped_and_stream_too() -> None:
    text = "敏捷的棕色狐狸、跳过了懒狗。" * 6
    lines = draw(text, 1, width=30).split("\n")
    assert "".join(lines) == text
    assert max(map(cell_len, lines)) <= 32  # a comma may follow
    assert not any(line.startswith(("、", "。")) for line in lines)
    written: list[str] = []
    answer = DrawnAnswer(written.append, PLAIN, lambda: 30)
    answer.add("敏捷的")
    assert "".join(written) == "敏捷"


def test_a_long_word_stays_whole_to_be_copied() -> None:
    address = "https://example.org/" + "x" * 60
    assert f"\n{address}" in draw(f"See the address <{address}>")


def test_code_is_shown_without_anything_that_a_copy_would_have() -> None:
    code = "if x:\n    return   'a | b'\n\nelse:\n\tpass"
    assert f"\n```python\n{code.replace(chr(9), chr(0xFFFD))}\n```".replace(chr(0xFFFD), "\t") in draw(
        f"1. item:\n\n```python\n{code}\n```"
    )


def test_a_resize_while_an_answer_streams_changes_only_what_follows() -> None:
    widths = [30]
    written: list[str] = []
    answer = DrawnAnswer(written.append, PLAIN, lambda: widths[-1])
    answer.add("word " * 12)
    before = "".join(written)
    widths.append(60)
    answer.add("word " * 24)
    answer.end()
    after = "".join(written)
    assert after.startswith(before)
    assert max(map(len, before.split("\n"))) <= 30 < max(map(len, after.split("\n"))) <= 60


def test_reasoning_is_dim_or_between_its_marks() -> None:
    text = f"<think>\n{REASONING}\n</think>\n\nYes."
    assert draw(text, 10_000, COLOURS, 200, thinks=True).startswith("\x1b[2mThe user wants everything.")
    assert draw(text, 4, COLOURS, 200, thinks=True).endswith("\x1b[0m\n\nYes.")
    assert draw(text, 4, PLAIN, 200, thinks=True).startswith("<think>\nThe user")
    assert draw(text, 4, PLAIN, 200, thinks=True).endswith("done.\n</think>\n\nYes.")


def test_a_reader_gets_no_lines_and_no_boxes() -> None:
    shown = draw("- a\n- [x] b\n\n> c\n\n| t | u |\n|--|--|\n| 1 | 2 |\n\n$$\\frac{a}{b+c}$$\n\n---", 2, READER)
    assert shown.split("\n") == ["- a", "[x] b", "", "> c", "", "t: 1", "u: 2", "", "  a/(b + c)", "", "---"]


def test_links_open_if_they_are_safe_and_show_their_address() -> None:
    shown = draw("[good](https://e.org/a) [bad](javascript:x) [strange](ssh://h) x", 5, COLOURS, 200)
    assert "\x1b]8;;https://e.org/a\x1b\\" in shown
    assert shown.count("\x1b]8;;") == shown.count("\x1b]8;;\x1b\\") * 2
    assert "(ssh://h)" in shown and "]8;;ssh" not in shown


def test_a_program_that_is_killed_leaves_no_style_behind() -> None:
    for text in ("# A long title", "<think>some reasoning", "**bold words** and", "[a link](https://e.org) here"):
        written: list[str] = []
        answer = DrawnAnswer(written.append, COLOURS, lambda: 80, thinks=True)
        for character in text:
            answer.add(character)
            if sequences := SEQUENCE.findall("".join(written)):
                assert sequences[-1] in ("\x1b[0m", "\x1b]8;;\x1b\\")


def test_a_note_in_the_middle_of_an_answer_begins_a_new_line() -> None:
    written: list[str] = []
    answer = DrawnAnswer(written.append, COLOURS, lambda: 80)
    answer.add("- one **two** three fo")
    answer.restart_line()
    before = len(written)
    answer.add("ur\n- five")
    answer.end()
    assert SEQUENCE.sub("", "".join(written[before:])) == "four\n• five"


def test_a_diff_has_colours() -> None:
    shown = draw("```diff\n-old\n+new\n same\n```", 2, COLOURS)
    assert "\x1b[31m-old" in shown and "\x1b[32m+new" in shown


def written_by(terminal: Terminal, pieces: Sequence[str], **options: bool) -> str:
    with patch.object(sys, "stdout", terminal):
        answer = Output(quiet=True).new_answer(**options)
        for piece in pieces:
            answer.add(piece)
        answer.end()
    return terminal.bytes.getvalue().decode()


class Pipe(Terminal):
    def isatty(self) -> bool:
        return False


def test_a_pipe_gets_the_text_of_the_model() -> None:
    text = f"<think>{REASONING}</think>{ANSWER}\x1b[31m"
    assert written_by(Pipe(), [text[:9], text[9:]], thinks=True) == text + "\n"
    assert written_by(Terminal(), [text], draws=False) == text.replace("\x1b", "\ufffd") + "\n"
    assert written_by(Terminal("ascii"), ["**é**"]) == "**?**\n"


def test_a_terminal_has_colours_unless_the_user_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert written_by(Terminal(), ["a **b** c\n"]) == "a \x1b[1mb\x1b[0m c\n"
    monkeypatch.setenv("TERM", "dumb")
    assert written_by(Terminal(), ["a **b** c\n"]) == "a b c\n"
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    assert written_by(Terminal(), ["a **b** c\n"]) == "a b c\n"
