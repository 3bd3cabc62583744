"""A copy in memory of chats whose file can be read, but not opened for writing: the disk is full or read-only."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from edgespec.history.schema import migrate


def copied(file: Path) -> sqlite3.Connection:
    """Copy the chats in `file` to memory, with the newest tables; a missing file is an empty store.

    Raises OSError and sqlite3.Error if the file cannot be read.
    """
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
    """Open the file without writing next to it.

    SQLite needs an index of the file's log, which it creates in the same folder. If it cannot create the index, a file
    without a log is read as it is, and a file with a log from a temporary folder.
    """
    file.open("rb").close()  # SQLite does not say that the permission is missing
    log = file.with_name(f"{file.name}-wal")
    with ExitStack() as opened:
        try:
            source = opened.enter_context(_connection(f"{file.absolute().as_uri()}?mode=ro"))
            source.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.OperationalError:
            if _size(log):
                folder = opened.enter_context(TemporaryDirectory())
                for part in (file, log):
                    shutil.copyfile(part, Path(folder, part.name))
                source = opened.enter_context(_connection(Path(folder, file.name).as_uri()))
            else:
                source = opened.enter_context(_connection(f"{file.absolute().as_uri()}?immutable=1"))
        yield source


def _connection(uri: str) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(uri, uri=True))


def _size(file: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist. Raises OSError."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
