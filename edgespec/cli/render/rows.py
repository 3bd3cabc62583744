"""Texts with labels in front, the output of `show`, `doctor` and `pair`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from edgespec.cli.terminal.output import Output
from edgespec.text.printable import printable, wrapped


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
