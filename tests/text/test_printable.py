"""Foreign texts on a terminal: control characters are replaced, and lines break at blanks."""

from __future__ import annotations

import pytest

from edgespec.text.printable import one_line, printable, wrapped


def test_control_characters_are_shown_as_such() -> None:
    assert printable("a\x1b[2Jb\tc\n\x9b") == "a\ufffd[2Jb\tc\n\ufffd"
    assert one_line(" a\n\tb\x07 ") == "a b\ufffd"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("fits", "fits"),
        ("note: one two three four", "note: one two\nthree four"),
        ("  hint is longer than that", "  hint is\n  longer than\n  that"),
        ("/help  shows all the commands", "/help  shows\n       all the\n       commands"),
        ("first\nhf:owner/a-repository-name x", "first\nhf:owner/a-repository-name\nx"),
        (" " * 30, " " * 30),
    ],
)
def test_lines_break_at_blanks_and_go_on_below_their_beginning(text: str, shown: str) -> None:
    assert wrapped(text, 14) == shown
