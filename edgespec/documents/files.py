"""Reads files of the user, of bounded size and never waiting for a pipe or a device."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from edgespec.documents.texts import check_size
from edgespec.errors import UsageError, told_as

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOCTTY", 0)


def read_bytes(name: str, path: Path, most: int, start: int = 0) -> bytes:
    """Return the content of a file of at most `most` bytes, or with `start` its first bytes. Raises UsageError."""
    with told_as(UsageError, f"{name} cannot be read"):
        if not stat.S_ISREG(path.stat().st_mode):  # opening a device could already do something
            raise UsageError(f"{name} is not a file", why="it is a folder, a device or a pipe")
        with open(os.open(path, _FLAGS), "rb") as opened:  # noqa: PTH123 - Path.open would wait for a pipe made meanwhile
            status = os.fstat(opened.fileno())
            if not start:
                check_size(name, status.st_size, most)
            data = opened.read(start or most + 1)
    if not start:
        check_size(name, len(data), most)  # it may have grown
    return data
