"""Labels with texts beside them, as `show` and `doctor` write what they know."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap
from typing import NamedTuple

from edgespec.cli.terminal.output import Output


class Row(NamedTuple):
    """A label and its text; without either the line is empty. `colour` is click's, for what is good or bad.

    `as_is` keeps the text in one line: a command to be copied, or a line of a table.
    """

    label: str = ""
    text: str = ""
    colour: str = ""
    as_is: bool = False


def write_rows(output: Output, rows: Iterable[Row], *, indent: int, columns: int) -> None:
    """Texts begin at the column `indent` and are wrapped; paths and options stay whole."""
    for row in rows:
        for line in _wrapped(row, indent, columns) or [""]:
            output.labelled(line[:indent], line[indent:], row.colour)


def _wrapped(row: Row, indent: int, columns: int) -> list[str]:
    label = row.label.ljust(indent)
    if row.as_is:
        return [label + row.text]
    return wrap(
        row.text,
        columns,
        initial_indent=label,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
