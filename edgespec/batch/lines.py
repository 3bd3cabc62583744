"""The lines of a job's input, one at a time, however long."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import BinaryIO

MOST_BYTES = 16_000_000  # of a line that is read
MOST_AHEAD = 16  # lines that are read ahead

Line = tuple[int, bytes | None]
"""The number of a line, from 1 on, and its bytes; None if it is too long."""
_BOM = b"\xef\xbb\xbf"


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """The lines; blank ones are skipped."""
    number = 0
    while line := file.readline(MOST_BYTES + 1):
        number += 1
        line = line.removeprefix(_BOM) if number == 1 else line
        if len(line) > MOST_BYTES and not line.endswith(b"\n"):
            _skip_rest(file)
            yield number, None
        elif line.strip():
            yield number, line


def as_they_come(lines: Iterable[Line]) -> Iterator[Line | None]:
    """Lines of a pipe that may be slow, read in a separate thread; None while there is none yet."""
    arrived: queue.Queue[Line | Exception] = queue.Queue(MOST_AHEAD)

    def read() -> None:
        try:
            for line in lines:
                arrived.put(line)
        except Exception as error:
            arrived.put(error)
        else:
            arrived.put(EOFError())

    threading.Thread(target=read, name="lines", daemon=True).start()
    while True:
        try:
            line = arrived.get_nowait()
        except queue.Empty:
            yield None
            continue
        if isinstance(line, EOFError):
            return
        if isinstance(line, Exception):
            raise line
        yield line


def count_lines(file: BinaryIO) -> int:
    """The number of lines that `read_lines` returns."""
    return sum(1 for _ in read_lines(file))


def _skip_rest(file: BinaryIO) -> None:
    while (part := file.readline(1 << 20)) and not part.endswith(b"\n"):
        pass
