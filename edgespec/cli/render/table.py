"""Columns under a heading, as in `ls`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.cells import cell_len

INDENT = " " * 4


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """Return the lines of a table. `right` names right-aligned columns. No cell is cut or wrapped, whatever the width
    of the terminal, so that names can be copied. Columns without any text are left out."""
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
