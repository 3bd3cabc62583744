"""The SQLite file of the chats, which may be locked, full, read-only, newer than this program or damaged.

A damaged file is moved aside and its readable content goes into a new one. Another process that has it open detects the
move, and uses the new one too. A file that cannot be opened for writing is read from a copy in memory.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from edgespec.closable import Closable
from edgespec.errors import EdgespecError
from edgespec.files.paths import free_in, free_name
from edgespec.history.data import StoreError, UnreadableError, UnwritableError
from edgespec.history.rescue import copied, rescue
from edgespec.history.schema import MIGRATIONS, migrate, transaction, version_of

T = TypeVar("T")

IN_MEMORY = Path(":memory:")
LOCK_S = 1.0  # a screen blocks that long
LEAST_FREE = 1 << 16  # bytes: SQLite writes nothing where there are fewer


class StoreFile(Closable):
    """A file of chats, created if missing. Any thread may use it, one at a time. Raises StoreError.

    `unwritable` is the reason if the file could not be opened for writing. Then a copy in memory is read. A write
    changes the copy, so that the open chat can be read, and raises the reason; the next write tries the file again.
    """

    def __init__(self, file: Path, note: Callable[[str], None]) -> None:
        self.path = file
        self._note = note
        self._lock = threading.RLock()
        self._place: tuple[int, int] | None = None
        self._connection: sqlite3.Connection
        self._is_open = False
        self._copy: sqlite3.Connection | None = None
        self.unwritable: UnwritableError | None = None
        try:
            self._mended(self._reopen)
        except UnwritableError as error:
            self._copy, self.unwritable = self._copied(error), error

    def run(self, work: Callable[[sqlite3.Connection], T], *, write: bool = False) -> T:
        """Do `work` in one transaction. If the file is damaged, `work` is repeated on a new one. Raises StoreError."""

        def done_in(db: sqlite3.Connection) -> T:
            with transaction(db, write=write):
                return work(db)

        with self._lock:
            if self._copy is None:
                return self._mended(lambda: done_in(self._current()))
            try:
                if not write:
                    return done_in(self._copy)
                try:
                    done = self._mended(lambda: done_in(self._current()))
                except UnwritableError as error:
                    self.unwritable = error
                    done_in(self._copy)
                    raise
            except sqlite3.Error as error:  # the copy has the damage of the file
                raise self._explained(error) from error
            self._copy.close()
            self._copy = self.unwritable = None
            return done

    def close(self) -> None:
        with self._lock:
            if self._is_open:
                self._connection.close()  # every later use is an error
            if self._copy is not None:
                self._copy.close()

    def _copied(self, error: UnwritableError) -> sqlite3.Connection:
        """Copy the chats to memory. Raises StoreError if they cannot be read."""
        try:
            copy = copied(self.path)
        except OSError as unreadable:
            raise UnreadableError(f"the chats in {self.path} cannot be read", unreadable, _READABLE) from unreadable
        except sqlite3.Error:
            raise error from None
        self._check_version(copy)
        copy.text_factory = _text
        return copy

    def _mended(self, attempt: Callable[[], T]) -> T:
        try:
            return attempt()
        except EdgespecError:
            raise
        except Exception as error:
            if self.path == IN_MEMORY or not self._shows_damage(error):
                raise self._explained(error) from error
            reason = str(error)
        try:
            self._begin_anew(reason)
            return attempt()
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def _shows_damage(self, error: Exception) -> bool:
        """Return whether the file is damaged, has other tables, or holds impossible values (SQLite allows them)."""
        if isinstance(error, sqlite3.Error):
            code, text = _code(error), str(error)
            not_ours = text.startswith(("no such table", "no such column"))
            return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or not_ours
        if not self._is_open:
            return isinstance(error, UnicodeDecodeError)  # where a message quotes what is damaged
        try:
            return bool(self._connection.execute("PRAGMA integrity_check (1)").fetchone() != ("ok",))
        except (sqlite3.Error, UnicodeDecodeError):
            return True

    def _current(self) -> sqlite3.Connection:
        """Return a connection to the file that is at the path now."""
        if not self._is_open or (self.path != IN_MEMORY and _place(self.path) != self._place):
            self._reopen()
        return self._connection

    def _reopen(self) -> None:
        self._leave()
        if self.path != IN_MEMORY:
            self._make()
            self._place = _place(self.path)
        db = sqlite3.connect(self.path, timeout=LOCK_S, isolation_level=None, check_same_thread=False)
        try:
            db.text_factory = _text
            self._check_version(db)
            _share(db)
            migrate(db)
        except BaseException:
            db.close()
            raise
        self._connection, self._is_open = db, True

    def _leave(self) -> None:
        if self._is_open:
            self._is_open = False
            self._connection.close()

    def _check_version(self, db: sqlite3.Connection) -> None:
        if version_of(db) > len(MIGRATIONS):
            what = f"the chats in {self.path} were written by a newer version of edgespec"
            raise StoreError(what, hint="update edgespec (pip install -U edgespec); the file is left as it is")

    def _make(self) -> None:
        """Create an empty file that no other user may read, unless there is a file."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                self.path.touch(mode=0o600, exist_ok=False)
        except OSError as error:
            what, hint = f"the chats in {self.path} cannot be opened", _ROOM if error.errno in _FULL else _WRITABLE
            if error.errno not in _UNWRITABLE:
                raise UnreadableError(what, error, hint) from error
            raise UnwritableError(what, why=error.strerror or str(error), hint=hint) from error
        if not os.access(self.path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            what = f"the chats in {self.path} cannot be written"
            raise UnwritableError(what, why="the file is read-only", hint=_WRITABLE)

    def _begin_anew(self, reason: str) -> None:
        """Move the damaged file aside, and copy its readable content to a new one.

        Raises StoreError, and sqlite3.Error if the new file cannot be written.
        """
        from filelock import FileLock, Timeout

        damaged, opened = self.path, self._place
        self._leave()
        try:
            with FileLock(damaged.with_name(f"{damaged.name}.lock"), timeout=LOCK_S):
                if _place(damaged) != opened:  # another process was faster
                    return
                stem = f"{damaged.stem}-damaged-{time.strftime('%Y-%m-%d-%H%M%S')}"
                aside = free_name(str(damaged.with_name(stem)), damaged.suffix)
                for end in ("-wal", "-shm", ""):
                    with suppress(FileNotFoundError):
                        damaged.with_name(damaged.name + end).rename(aside.with_name(aside.name + end))
        except (OSError, Timeout) as error:
            why, hint = f"{reason}, and it cannot be moved aside: {error}", "close other programs that use it"
            raise StoreError(f"the chats in {damaged} are damaged", why=why, hint=hint) from error
        self._reopen()
        with closing(sqlite3.connect(aside, timeout=LOCK_S, isolation_level=None)) as source:
            source.text_factory = _text
            n_messages, n_chats = rescue(source, self._connection)
        kept = f"{n_messages} messages of {n_chats} chats could be read and are kept"
        saved = kept if n_chats else "nothing in it could be read"
        self._note(f"the chats in {damaged} were damaged ({reason}): moved to {aside.name}; {saved}")

    def _explained(self, error: Exception) -> Exception:
        """Return the error for users; a bug of the program is returned unchanged."""
        if not isinstance(error, sqlite3.Error):
            return error
        code, file = _code(error), f"the chats in {self.path}"
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            why = "another program keeps writing to them"
            return StoreError(f"{file} are locked", why=why, hint="close it and try again")
        is_failure = code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)  # of files that SQLite creates
        if code == sqlite3.SQLITE_FULL or (is_failure and free_in(self.path.parent) < LEAST_FREE):
            return UnwritableError(f"{file} cannot be written", why="the disk is full", hint=_ROOM)
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
            return UnwritableError(f"{file} cannot be written", why=str(error), hint=_WRITABLE)
        return StoreError(f"{file} cannot be read or written", why=str(error))


_ROOM = "free some space; saved chats are kept"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNWRITABLE = (*_FULL, errno.EROFS, errno.EACCES, errno.EPERM)
_READABLE = "make the file and its folder readable, or set EDGESPEC_HOME to another folder"
_WRITABLE = "make the file and its folder writable, or set EDGESPEC_HOME to another folder"


def _code(error: sqlite3.Error) -> int:
    """Return the primary result code; 0 if Python itself raised the error."""
    return int(getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def _place(file: Path) -> tuple[int, int] | None:
    """Return what identifies the file that is at this path now."""
    with suppress(OSError):
        found = file.stat()
        return found.st_dev, found.st_ino
    return None


def _share(db: sqlite3.Connection) -> None:
    """Let readers and one writer work at once; a killed program loses no committed data."""
    patience_ends = time.monotonic() + LOCK_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:  # two at once do not wait for each other by themselves
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > patience_ends:
                raise
            time.sleep(0.01)
    db.execute("PRAGMA synchronous = NORMAL")


def _text(data: bytes) -> str:
    """Decode text; that of a damaged page may be anything."""
    return data.decode("utf-8", "replace")
