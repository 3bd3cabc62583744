"""An answer that has to be indented ends at the first line that is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.text.indentation import Indentation

LINES = st.lists(st.text(" \tab", max_size=6), max_size=6).map("\n".join)


def end_of(text: str, least: int) -> int | None:
    """The place of the first line after the first one that has too few blanks, at the end of its blanks."""
    start = text.find("\n") + 1
    while start:
        line = text[start:]
        n_blanks = len(line) - len(line.lstrip(" \t"))
        if n_blanks < least and n_blanks < len(line):
            return start + n_blanks
        start = text.find("\n", start) + 1
    return None


@given(LINES, st.integers(0, 4), st.integers(1, 5))
def test_parts_of_a_text_end_where_the_whole_text_ends(text: str, least: int, size: int) -> None:
    indentation, before = Indentation(least), 0
    for part in (text[at : at + size] for at in range(0, len(text), size)):
        end = indentation.end(part)
        if end is not None:
            assert before + end == end_of(text, least)
            return
        before += len(part)
    assert end_of(text, least) is None


@pytest.mark.parametrize(
    ("text", "kept"), [("a\n  b\n c", "a\n  b\n "), ("a\n\n  b", "a\n"), ("    a\n  b", "    a\n  b"), ("a\n", "a\n")]
)
def test_the_blanks_of_the_last_line_are_kept(text: str, kept: str) -> None:
    assert text[: Indentation(2).end(text)] == kept
