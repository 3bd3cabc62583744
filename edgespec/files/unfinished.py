"""Files being written: complete at the end, or removed, however the program ends (except by kill -9)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from edgespec.errors import UsageError

_to_undo: set[Callable[[], object]] = set()


def check_destination(file: Path, sources: Iterable[Path], magic: bytes) -> None:
    """Raise UsageError if a file made from `sources`, which begins with `magic`, cannot be written there, or would
    replace another kind of file."""
    if not file.parent.is_dir():
        raise UsageError(f"cannot write {file}", why=f"there is no folder {file.parent}")
    if file.is_dir():
        raise UsageError(f"cannot write {file}", why="it is a folder", hint="give a file name in it")
    if file.exists() and any(file.samefile(source) for source in sources):
        raise UsageError(f"cannot overwrite {file} with itself", hint="use another output file")
    if not file.is_file():
        return
    with file.open("rb") as there:
        start = there.read(len(magic))
    if start and start != magic:
        raise UsageError(f"{file} is another kind of file", why="it would be overwritten", hint="use another file name")


@contextmanager
def becoming(file: Path) -> Iterator[Path]:
    """Yield a file next to `file` to write to, which replaces `file` when the block succeeds. Raises OSError."""
    scratch = file.with_name(f"{file.name}.{os.getpid()}.part")
    with undoing(partial(scratch.unlink, missing_ok=True)):
        yield scratch
        scratch.replace(file)


@contextmanager
def undoing(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` at the end of the block, or if the process ends inside it. Raises OSError as `undo` does."""
    _to_undo.add(undo)
    try:
        yield
    finally:
        undo()
        _to_undo.discard(undo)


def remove_unfinished() -> None:
    """Clean up before the process ends without unwinding."""
    for undo in list(_to_undo):
        with suppress(OSError):
            undo()
