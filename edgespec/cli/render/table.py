"""Columns under a heading, as in `ls`; in a narrow terminal the name is above the other cells of its row."""

from __future__ import annotations

from collections.abc import Collection, Sequence

Row = tuple[str, ...]

INDENT = " " * 4


def table(header: Row, rows: Sequence[Row], *, columns: int, right: Collection[str] = ()) -> list[str]:
    """The lines of a table; if they are longer than `columns`, first cells get lines of their own. They are never cut,
    so that they can be copied. `right` names the right-aligned columns."""
    lines = padded(header, rows, right)
    if max(map(_width, lines)) <= columns:
        return ruled(lines[:1], lines[1:])
    rest = [INDENT + line for line in padded(header[1:], [row[1:] for row in rows], right)]
    names = [row[0] for row in (header, *rows)]
    pairs = [line for pair in zip(names, rest, strict=True) for line in pair]
    return ruled(pairs[:2], pairs[2:], width=max(map(_width, rest)))


def padded(header: Row, rows: Sequence[Row], right: Collection[str] = ()) -> list[str]:
    """The header's line and one for each row, with aligned columns."""
    every = [header, *rows]
    widths = [max(map(_width, column)) for column in zip(*every, strict=True)]
    ends = [name in right for name in header]
    return ["  ".join(map(_cell, row, widths, ends)).rstrip() for row in every]


def ruled(heading: Sequence[str], lines: Sequence[str], *, width: int = 0) -> list[str]:
    """A heading, a rule as wide as the content, and the lines below it."""
    return [*heading, "─" * (width or max(map(_width, [*heading, *lines]))), *lines]


def _cell(text: str, width: int, is_right: bool) -> str:
    gap = " " * (width - _width(text))
    return gap + text if is_right else text + gap


def _width(text: str) -> int:
    """In columns of a terminal."""
    from rich.cells import cell_len

    return cell_len(text)
