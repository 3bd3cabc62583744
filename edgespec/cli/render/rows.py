"""Labels with texts beside them, the output format of `show` and `doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from edgespec.cli.terminal.output import Output
from edgespec.text.printable import wrapped


class Row(NamedTuple):
    """A label and its text; without either the line is empty. `colour` is click's, for good or bad values. `as_is`
    keeps the text on one line: a command to be copied, or a line of a table."""

    label: str = ""
    text: str = ""
    colour: str = ""
    as_is: bool = False


def write_rows(output: Output, rows: Iterable[Row], *, indent: int, columns: int) -> None:
    """Texts begin at the column `indent` and are wrapped; paths and options stay whole."""
    for row in rows:
        text = f"{row.label:{indent}}{row.text}".rstrip()
        for line in [text] if row.as_is else wrapped(text.replace("\n", " "), columns, indent).split("\n"):
            output.labelled(line[:indent], line[indent:], row.colour)
