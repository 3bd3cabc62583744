"""Text of a model, a file or a user, made safe for a terminal: it must not be able to control one."""

from __future__ import annotations

import re
import textwrap

_CONTROL = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], "\ufffd") | {ord("\t"): "\t", ord("\n"): "\n"}


def printable(text: str) -> str:
    """Replace control characters but tab and newline with U+FFFD; the length stays the same."""
    return text.translate(_CONTROL)


def wrapped(text: str, width: int, column: int | None = None, *, breaks_words: bool = False) -> str:
    """The text with lines of more than `width` characters broken at spaces. Continuation lines begin at `column`, or
    else below the first word, or below the text after a gap, as in two columns. Words longer than a line stay whole, to
    be copied, unless `breaks_words`."""
    lines = []
    for line in text.split("\n"):
        if len(line) <= width:
            lines.append(line)
            continue
        start = re.match(r" *(\S.*?  +)?", line)
        below = column if column is not None else len(start[0]) if start and len(start[0]) <= width // 2 else 0
        lines += textwrap.wrap(
            line[below:],
            width,
            initial_indent=line[:below],
            subsequent_indent=" " * below,
            break_long_words=breaks_words,
            break_on_hyphens=False,
        ) or [line]
    return "\n".join(lines)


def one_line(text: str) -> str:
    """`printable`, with every run of white space as one space."""
    return " ".join(printable(text).split())


def with_unix_line_ends(text: str) -> str:
    """Return received text with a newline in place of each CR LF, as in files of Windows, and of each single CR, as
    terminals paste it."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
