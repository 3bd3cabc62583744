"""Parts of a job's input that can be answered anywhere: which rows are whose, and what `merge` must know of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from edgespec.batch.lines import Line
from edgespec.batch.row import Id

MOST = 100_000  # shards of an input
LINE = "input_line"
"""The key, last in each result of a shard, that says which line of the input it answers."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` shards, `index` from 0 on. An id alone decides whose row it is, whatever else is in the input."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From "i/n". Raises ValueError."""
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip(), re.ASCII)
        if found is None:
            raise ValueError(f"{text!r} is not i/n, such as 0/4")
        index, count = int(found[1]), int(found[2])
        if not 1 <= count <= MOST:
            raise ValueError(f"there can be 1 to {MOST:,} shards, not {count:,}")
        if index >= count:
            raise ValueError(f"shards are counted from 0: 0/{count} to {count - 1}/{count}")
        return cls(index, count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def holds(self, id: Id) -> bool:
        """Whether the row with that id is in this shard; a line without an id has its number for one."""
        return int.from_bytes(sha256(json.dumps(id).encode()).digest()[:8], "big") % self.count == self.index


class Inventory:
    """Counts the rows of a shard while the input is read, and hashes all of the input: shards of different inputs do
    not belong together."""

    def __init__(self, shard: Shard) -> None:
        self._shard, self._digest = shard, sha256()
        self._n_rows = self._last_line = 0

    def watch(self, lines: Iterable[Line]) -> Iterator[Line]:
        for number, line in lines:
            self._digest.update(b"%d %s\n" % (number, b"?" if line is None else line.strip()))
            self._last_line = number
            yield number, line

    def takes(self, id: Id) -> bool:
        """Whether the shard has the row; to be called once for each."""
        is_ours = self._shard.holds(id)
        self._n_rows += is_ours
        return is_ours

    def as_json(self) -> dict[str, Any]:
        """Of an input that has been read to its end."""
        return {"digest": self._digest.hexdigest()[:32], "lines": self._last_line, "rows": self._n_rows}
