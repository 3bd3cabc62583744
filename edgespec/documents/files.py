"""Reads files of the user, of bounded size and never waiting for a pipe or a device."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from edgespec.documents.texts import check_size
from edgespec.errors import UsageError, told_as

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOCTTY", 0)


def first_bytes(name: str, path: Path, n: int) -> bytes:
    """Return the first `n` bytes of a file, all of them if there are fewer. Raises UsageError."""
    with told_as(UsageError, f"{name} cannot be read"), _opened(name, path) as opened:
        return opened.read(n)


def read_bytes(name: str, path: Path, most: int) -> bytes:
    """Return the content of a file of at most `most` bytes. Raises UsageError."""
    with told_as(UsageError, f"{name} cannot be read"), _opened(name, path) as opened:
        check_size(name, os.fstat(opened.fileno()).st_size, most)
        data = opened.read(most + 1)
    check_size(name, len(data), most)  # it may have grown
    return data


def _opened(name: str, path: Path) -> BinaryIO:
    if not stat.S_ISREG(path.stat().st_mode):  # opening a device could already do something
        raise UsageError(f"{name} is not a file", why="it is a folder, a device or a pipe")
    return open(os.open(path, _FLAGS), "rb")  # noqa: PTH123 - Path.open would wait for a pipe made meanwhile
