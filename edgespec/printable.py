"""What a model, a file or a user wrote, made fit for a terminal: it must not be able to drive one."""

from __future__ import annotations

_CONTROL = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], "\ufffd") | {ord("\t"): "\t", ord("\n"): "\n"}


def printable(text: str) -> str:
    """Control characters but tab and newline become U+FFFD, so that the length stays the same."""
    return text.translate(_CONTROL)


def one_line(text: str) -> str:
    """`printable`, with every run of white space as one space."""
    return " ".join(printable(text).split())
