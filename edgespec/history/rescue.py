"""Read stores of chats that SQLite does not open: copy what is readable in a damaged one to a new one, and one that
cannot be written, because the disk is full or read-only, to memory.

A damaged table is read from both ends up to the damage. Messages whose chat is lost get a new chat.
"""

from __future__ import annotations

import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from edgespec.history.data import Turn
from edgespec.history.rows import chat_number, insert_turn
from edgespec.history.schema import migrate, transaction

Row = tuple[Any, ...]
Types = tuple[type | tuple[type, ...], ...]

_OPTIONAL = (int, type(None))
# A table, the columns to read, and their types. The columns come first by which the table is sorted.
_CHAT = (
    "chat",
    "number, id, title, settings, model, created_s, updated_s, head",
    (int, str, str, str, str, float, float, _OPTIONAL),
)
_PLACE = ("chat", "id, is_pinned, folder", (str, int, str))  # not in files of earlier versions
_MESSAGE = ("message", "number, parent, key, role, content, created_s", (int, _OPTIONAL, str, str, str, float))
_MEMBER = ("member", "chat, message", (int, int))
_ANSWER = ("answer", "message, about, ids, pieces", (int, str, bytes, bytes))
_MAKING = (
    "making",
    "id, chat, parent, pid, started_s, grown_s, about, ids, content, pieces",
    (str, int, _OPTIONAL, int, float, float, str, bytes, str, bytes),
)
_PREFERENCE = ("preference", "name, value", (str, str))


def rescue(source: sqlite3.Connection, target: sqlite3.Connection) -> tuple[int, int]:
    """Copy the readable content of `source` to `target`, to which other programs may have written already.

    Returns the number of messages and chats copied. Raises sqlite3.Error for `target` only.
    """
    source.execute("PRAGMA writable_schema = ON")  # a truncated file can be read only with this
    with transaction(target):
        chats = {row[0]: row[1:] for row in _rows(source, *_CHAT)}
        turns: dict[int | None, Turn] = {}
        parents: dict[int, int | None] = {}
        for number, parent, key, role, content, created_s in _rows(source, *_MESSAGE):
            above = turns.get(parent)  # a message whose parent is lost starts a path
            parents[number] = parent if above else None
            turns[number] = Turn(key, above.key if above else None, role, content, created_s)
        members = _members(source, parents, chats)
        newest = {chat: number for number, known in members.items() for chat in known}
        for chat in newest.keys() - chats.keys():
            chats[chat] = (secrets.token_hex(5), "", "{}", "", time.time(), time.time(), newest[chat])
        for row in chats.values():
            _insert(target, "chat", "id, title, settings, model, created_s, updated_s", row[:-1])
        numbers: dict[int | None, int] = {}
        for number, turn in turns.items():
            for chat in members[number]:
                insert_turn(target, chats[chat][0], turn, b"", is_head=False)
            query = "SELECT number FROM message WHERE key = ?"
            numbers[number] = target.execute(query, (turn.key,)).fetchone()[0]
        for chat, (name, *_, head) in chats.items():
            if head is not None and chat not in members.get(head, ()):
                head = newest.get(chat)
            # A program that has written to the chat meanwhile has opened another path.
            target.execute("UPDATE chat SET head = coalesce(head, ?) WHERE id = ?", (numbers.get(head), name))
        for name, *place in _rows(source, *_PLACE):
            target.execute("UPDATE chat SET is_pinned = ?, folder = ? WHERE id = ?", (*place, name))
        for message, *answer in _rows(source, *_ANSWER):
            if message in numbers:
                _insert(target, *_ANSWER[:2], (numbers[message], *answer))
        for id, chat, parent, *rest in _rows(source, *_MAKING):
            if chat in (chats if parent is None else members.get(parent, ())):
                number = chat_number(target, chats[chat][0])
                _insert(target, *_MAKING[:2], (id, number, numbers.get(parent), *rest))
        for preference in _rows(source, *_PREFERENCE):
            _insert(target, *_PREFERENCE[:2], preference)
    return len(turns), len(chats)


def _members(
    source: sqlite3.Connection, parents: dict[int, int | None], chats: dict[int, Row]
) -> dict[int | None, set[int]]:
    """Return the chats of each message: those that list it or a later message, else its parent's, else a new one."""
    members: dict[int | None, set[int]] = {number: set() for number in parents}
    for chat, message in _rows(source, *_MEMBER):
        if message in members:
            members[message].add(chat)
    unused = count(max((*chats, *(chat for known in members.values() for chat in known)), default=0) + 1)
    for number, parent in parents.items():
        members[number] = members[number] or set(members.get(parent, ())) or {next(unused)}
    for number, parent in reversed(parents.items()):
        if parent is not None:
            members[parent] |= members[number]
    return members


def _rows(source: sqlite3.Connection, table: str, columns: str, types: Types) -> Iterator[Row]:
    """Yield the undamaged rows of a table in order; those between two damaged places are left out."""
    key = columns.split(", ")[: 2 if table == "member" else 1]
    query, last = f"SELECT {columns} FROM {table} ORDER BY ", ()
    try:
        for row in source.execute(query + ", ".join(key)):
            last = row[: len(key)]
            if _is_sound(row, types):
                yield row
    except sqlite3.Error:
        rest: list[Row] = []
        with suppress(sqlite3.Error):
            for row in source.execute(query + ", ".join(f"{name} DESC" for name in key)):
                if row[: len(key)] == last:
                    break
                rest.append(row)
        yield from (row for row in reversed(rest) if _is_sound(row, types))


def _is_sound(row: Row, types: Types) -> bool:
    return all(isinstance(value, kind) for value, kind in zip(row, types, strict=True))


def _insert(target: sqlite3.Connection, table: str, columns: str, row: Row) -> None:
    """Insert a row unless it exists."""
    places = ", ".join("?" * len(row))
    target.execute(f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({places})", row)


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
