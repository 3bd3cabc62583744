"""A private folder of files that can be made again: bounded in size, what was not used for longest goes first."""

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
STALE_S = 3600.0  # an unfinished file as old as that belongs to nobody


class BoundedFolder:
    """Files of at most `most_bytes` together, and of half as many each. The folder is created with the first one."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder, self.most_bytes = folder, most_bytes

    def files(self) -> list[tuple[Path, int]]:
        """The files and their sizes in bytes, those used last at the end."""
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
        """Delete a file, if it is there and can be."""
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
        """Write `file`, of so many bytes, which is there as a whole or not at all. Files that were not used for longest
        give way. Raises OSError, also where there is no room."""
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
            if file.suffix == PART and _is_left(file):
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


def _is_left(file: Path) -> bool:
    """Whether an unfinished file is of a process that was killed."""
    import psutil

    *_, pid = file.stem.rpartition(".")
    with suppress(OSError):
        return not (pid.isdigit() and psutil.pid_exists(int(pid))) or time.time() - file.stat().st_mtime > STALE_S
    return False


def used(file: Path) -> None:
    """Note that a file was of use, so that it stays."""
    with suppress(OSError):
        os.utime(file)
