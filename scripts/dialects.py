"""Prints a Markdown table of how models write reasoning and calls, derived from their chat templates.

python scripts/dialects.py FILE.jinja ...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from edgespec.dialects.about import calls_of, reasoning_of


def table(files: Sequence[Path]) -> str:
    """Return the table; templates whose models write the same share a row."""
    rows: dict[tuple[str, str], list[str]] = {}
    for file in sorted(files, key=lambda file: file.stem.lower()):
        template = file.read_text()
        rows.setdefault((reasoning_of(template, _code), calls_of(template, _code)), []).append(file.stem)
    lines = ["| templates | reasoning | calls |", "|---|---|---|"]
    lines += [f"| {', '.join(names)} | {' | '.join(row)} |" for row, names in rows.items()]
    return "\n".join(lines)


def _code(mark: str) -> str:
    """Return a mark for a cell of a table."""
    return (f"`` {mark} ``" if "`" in mark else f"`{mark}`").replace("|", "\\|")


if __name__ == "__main__":
    print(table([Path(name) for name in sys.argv[1:]]))
