"""The input of a job: its lines, one at a time, and its shards."""

from __future__ import annotations

import json
import queue
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import BinaryIO, TypedDict, TypeVar

from edgespec.requests.row import Id
from edgespec.text.encodings import Utf8Lines

MOST_BYTES = 16_000_000  # of a line; longer lines are errors
MOST_AHEAD = 16  # items that are read before they are needed

Item = TypeVar("Item")

Line = tuple[int, bytes | None]
"""The number of a line, counted from 1, and its bytes; None if it is too long."""


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """Yield the lines that are not blank, in UTF-8."""
    lines, number = Utf8Lines(file), 0
    while line := lines.readline(MOST_BYTES + 1):
        number += 1
        if len(line) > MOST_BYTES and not line.endswith(b"\n"):
            _skip_rest(lines)
            yield number, None
        elif line.strip():
            yield number, line


def count_lines(file: BinaryIO) -> int:
    """Return the number of lines that `read_lines` yields."""
    return sum(1 for _ in read_lines(file))


def _skip_rest(lines: Utf8Lines) -> None:
    while (part := lines.readline(1 << 20)) and not part.endswith(b"\n"):
        pass


def read_ahead(items: Iterable[Item]) -> Iterator[Item | None]:
    """Read an iterator that blocks in a separate thread, a few items ahead; yield None while no item is there."""
    arrived: queue.Queue[tuple[Item] | Exception | None] = queue.Queue(MOST_AHEAD)

    def read() -> None:
        try:
            for item in items:
                arrived.put((item,))
            arrived.put(None)
        except Exception as error:
            arrived.put(error)

    threading.Thread(target=read, name="rows", daemon=True).start()
    while True:
        try:
            found = arrived.get_nowait()
        except queue.Empty:
            yield None
            continue
        if found is None:
            return
        if isinstance(found, Exception):
            raise found
        yield found[0]


# --- shards -----------------------------------------------------------------------------------------------------------

MOST_SHARDS = 100_000  # shards of an input
LINE = "input_line"
"""The last key in each result of a shard: the number of its input line."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` shards, counted from 0. The id of a row alone decides which shard it belongs to."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard "i/n". Raises ValueError."""
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip(), re.ASCII)
        index, count = (int(found[1]), int(found[2])) if found else (0, 0)
        if not index < count <= MOST_SHARDS:
            raise ValueError(f"{text!r} is not i/n, such as 0/4 to 3/4, with at most {MOST_SHARDS:,} shards")
        return cls(index, count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def holds(self, id: Id) -> bool:
        """True if the row with this id is in the shard; the id of a line without one is its number."""
        return int.from_bytes(sha256(json.dumps(id).encode()).digest()[:8], "big") % self.count == self.index


class Figures(TypedDict):
    """The figures of an input: the digest and the number of its lines, and the number of rows of the shard."""

    digest: str
    lines: int
    rows: int


class Inventory:
    """Counts the rows of a shard while the input is read, and hashes the whole input, since shards of different inputs
    cannot be merged."""

    def __init__(self, shard: Shard) -> None:
        self._shard, self._digest = shard, sha256()
        self._n_rows = self._last_line = 0

    def watch(self, lines: Iterable[Line]) -> Iterator[Line]:
        for number, line in lines:
            self._digest.update(b"%d %s\n" % (number, b"?" if line is None else line.strip()))
            self._last_line = number
            yield number, line

    def takes(self, id: Id) -> bool:
        """True if the row is in the shard. Call it once for each row."""
        is_ours = self._shard.holds(id)
        self._n_rows += is_ours
        return is_ours

    def as_json(self) -> Figures:
        """Return the figures of an input that was read to its end."""
        return {"digest": self._digest.hexdigest()[:32], "lines": self._last_line, "rows": self._n_rows}
