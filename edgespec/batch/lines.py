"""The lines of a job's input, one at a time; long lines are not kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

MOST_BYTES = 16_000_000  # of a line; longer lines are errors

Line = tuple[int, bytes | None]
"""The number of a line, counted from 1, and its bytes; None if it is too long."""
_BOM = b"\xef\xbb\xbf"


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """Yield the lines that are not blank."""
    number = 0
    while line := file.readline(MOST_BYTES + 1):
        number += 1
        line = line.removeprefix(_BOM) if number == 1 else line
        if len(line) > MOST_BYTES and not line.endswith(b"\n"):
            _skip_rest(file)
            yield number, None
        elif line.strip():
            yield number, line


def count_lines(file: BinaryIO) -> int:
    """Return the number of lines that `read_lines` yields."""
    return sum(1 for _ in read_lines(file))


def _skip_rest(file: BinaryIO) -> None:
    while (part := file.readline(1 << 20)) and not part.endswith(b"\n"):
        pass
