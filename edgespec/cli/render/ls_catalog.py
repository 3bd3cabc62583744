"""`edgespec ls --catalog`: the names that edgespec knows, and which of these models are on this machine."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING

from edgespec.cli.render.table import INDENT, Row, padded, ruled
from edgespec.cli.terminal.output import Output
from edgespec.text.printable import wrapped

if TYPE_CHECKING:
    from edgespec.models.names.catalog import Entry

HEADER = ("model", "weights", "here", "drafts")
BELOW = "description, repository or package, licence"


def list_catalogue(output: Output, part: str, *, as_json: bool) -> None:
    """List the entries with this text, in lower case, in their names."""
    from edgespec.models.names.catalog import catalogue

    entries = [each for each in catalogue().values() if part in f"{each.name} {each.about} {each.source}".lower()]
    if as_json:
        for entry in entries:
            output.json(asdict(entry) | {"here": _quants_here(entry)})
    elif entries:
        for line in _lines(entries):
            output.line(line)
    else:
        output.note(f"the catalogue has nothing with '{part}' in its name")


def _lines(entries: list[Entry]) -> list[str]:
    columns = shutil.get_terminal_size().columns
    header, *rows = padded(HEADER, [_row(entry) for entry in entries])
    lines = []
    for row, entry in zip(rows, entries, strict=True):
        about = ", ".join(filter(None, (entry.about, entry.source, entry.licence)))
        lines += [row, *wrapped(INDENT + about, columns).split("\n")]
    return ruled([header, INDENT + BELOW], lines)


def _row(entry: Entry) -> Row:
    return entry.name, entry.quant, " ".join(_quants_here(entry)), " ".join(entry.drafts)


def _quants_here(entry: Entry) -> list[str]:
    """Its quantisations on this machine."""
    from edgespec.models.hub.quants import quant_of
    from edgespec.models.names.source import files_here

    return sorted({quant_of(path.name) or path.name for path in files_here(entry)})
