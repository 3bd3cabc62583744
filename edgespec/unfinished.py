"""Files in the making: whole at the end, or gone, however the program leaves (but for kill -9)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_unfinished: set[Path] = set()


@contextmanager
def becoming(file: Path) -> Iterator[Path]:
    """A file beside `file` to write to, which takes its place when the block has ended well. Raises OSError."""
    scratch = file.with_name(f"{file.name}.{os.getpid()}.part")
    _unfinished.add(scratch)
    try:
        yield scratch
        scratch.replace(file)
    finally:
        scratch.unlink(missing_ok=True)
        _unfinished.discard(scratch)


def remove_unfinished() -> None:
    """For whoever ends the process without unwinding it."""
    for scratch in list(_unfinished):
        with suppress(OSError):
            scratch.unlink()
