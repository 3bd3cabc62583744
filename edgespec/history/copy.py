"""A copy in memory of chats whose file can be read, but not opened for writing: the disk is full or read-only."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from edgespec.history.schema import migrate


def copied(file: Path) -> sqlite3.Connection:
    """Copy the chats in `file` to memory, with the newest tables; a missing file is an empty store. Raises OSError and
    sqlite3.Error if the file cannot be read."""
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        if _size(file):
            with _read(file) as source:
                source.backup(copy)
        migrate(copy)
    except BaseException:
        copy.close()
        raise
    return copy


@contextmanager
def _read(file: Path) -> Iterator[sqlite3.Connection]:
    """Open the file without writing next to it. SQLite needs an index of the file's log, which it creates in the same
    folder; where it cannot, a file without a log is read as it is, and one with a log from a temporary folder."""
    file.open("rb").close()  # SQLite does not say that the permission is missing
    if (source := _opened(file, "mode=ro")) is not None:
        with closing(source):
            yield source
        return
    log = file.with_name(f"{file.name}-wal")
    if not _size(log):
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?immutable=1", uri=True)) as source:
            yield source
        return
    with TemporaryDirectory() as folder:
        for part in (file, log):
            shutil.copyfile(part, Path(folder, part.name))
        with closing(sqlite3.connect(Path(folder, file.name))) as source:
            yield source


def _opened(file: Path, how: str) -> sqlite3.Connection | None:
    """A connection that can read; None if there is none."""
    source = sqlite3.connect(f"{file.absolute().as_uri()}?{how}", uri=True)
    try:
        source.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.OperationalError:
        source.close()
        return None
    return source


def _size(file: Path) -> int:
    """The size of a file in bytes; 0 if it does not exist. Raises OSError."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
