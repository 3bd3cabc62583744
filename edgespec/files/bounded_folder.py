"""A private folder of files that can be made again, bounded in size: the least recently used are deleted first."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from edgespec.files.paths import free_in
from edgespec.files.unfinished import becoming

LEAST_FREE = 1 << 30  # bytes that stay free on the disk
PART = ".part"  # the suffix of `becoming`
STALE_S = 3600.0  # an older unfinished file is left from a process that was killed


class BoundedFolder:
    """Files of at most `most_bytes` together, each of at most half of it. The folder is created with the first file."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder, self.most_bytes = folder, most_bytes

    def files(self) -> list[tuple[Path, int]]:
        """Return the files and their sizes in bytes, the least recently used first."""
        found = []
        with suppress(OSError):
            for file in self.folder.iterdir():
                with suppress(OSError):
                    stat = file.stat()
                    found.append((stat.st_mtime, file, stat.st_size))
        return [(file, size) for _, file, size in sorted(found)]

    @property
    def n_bytes(self) -> int:
        return sum(size for _, size in self.files())

    def remove(self, file: Path) -> None:
        """Delete a file, if it exists and can be deleted."""
        with suppress(OSError):
            file.unlink()

    def clear(self) -> int:
        """Delete all files; returns how many bytes they had. Raises OSError."""
        n_bytes = 0
        for file, size in self.files():
            file.unlink(missing_ok=True)
            n_bytes += size
        return n_bytes

    @contextmanager
    def writing(self, file: Path, n_bytes: int) -> Iterator[BinaryIO]:
        """Write `file`, of `n_bytes`, atomically. The least recently used files are deleted to make room.

        Raises OSError, also if there is no room.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._make_room(file, n_bytes)
        with becoming(file) as scratch:
            descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
            with os.fdopen(descriptor, "wb") as opened:
                yield opened

    def _make_room(self, wanted: Path, n_bytes: int) -> None:
        if n_bytes > self.most_bytes // 2:
            raise OSError(f"{n_bytes} bytes are more than half of {self.most_bytes}")
        for file, _ in self.files():
            with suppress(OSError):
                if file.suffix == PART and time.time() - file.stat().st_mtime > STALE_S:
                    self.remove(file)
        others = [(file, size) for file, size in self.files() if file != wanted and file.suffix != PART]
        given = sum(size for _, size in others)
        lacking = max(given + n_bytes - self.most_bytes, n_bytes + LEAST_FREE - free_in(self.folder))
        if lacking > given:
            raise OSError("the disk is nearly full")
        while lacking > 0:
            file, size = others.pop(0)
            lacking -= size
            self.remove(file)


def used(file: Path) -> None:
    """Record that a file was used now, so that it is kept longer."""
    with suppress(OSError):
        os.utime(file)
