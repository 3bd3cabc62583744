"""Tables, texts with labels in front, and short names of models."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.cells import cell_len

from edgespec.cli.terminal.output import Output
from edgespec.text.printable import printable, wrapped

INDENT = " " * 4


class Row(NamedTuple):
    """A label and its text. Without both the line is empty. `as_is` keeps the text on one line: a command to copy."""

    label: str = ""
    text: str = ""
    as_is: bool = False


def write_rows(output: Output, rows: Iterable[Row], *, indent: int, columns: int) -> None:
    """Print rows. Texts begin at the column `indent` and are wrapped between words, so that paths stay whole."""
    for row in rows:
        text = printable(f"{row.label:{indent}}{row.text}".replace("\n", " ")).rstrip()
        output.line(text if row.as_is else wrapped(text, columns, indent))


def short_spec(spec: str) -> str:
    """Return a model's name, or its path from the working folder or the home folder if it is in one of them."""
    from edgespec.models.names.known import with_tilde

    path = Path(spec).expanduser()
    if not path.is_absolute():
        return spec
    try:
        return os.fspath(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return with_tilde(path)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """Return the lines of a table. `right` names right-aligned columns. No cell is cut or wrapped, so that names
    can be copied. Columns without any text are left out."""
    kept = [number for number, column in enumerate(zip(*rows, strict=True)) if any(column)]
    header, rows = [header[number] for number in kept], [[row[number] for number in kept] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = []
        for name, text, width in zip(header, row, widths, strict=True):
            gap = " " * (width - cell_len(text))
            cells.append(gap + text if name in right else text + gap)
        lines.append("  ".join(cells).rstrip())
    return [lines[0], "─" * max(map(cell_len, lines)), *lines[1:]]
