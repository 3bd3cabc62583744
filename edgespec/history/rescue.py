"""Copy what is readable in a damaged store of chats to a new one.

A table is read from both ends up to the damage. Messages whose chat is lost get a new chat.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

Row = tuple[Any, ...]


def rescue(source: sqlite3.Connection, target: sqlite3.Connection) -> tuple[int, int]:
    """Copy the readable content of `source` to `target`, where others may have begun to write; returns the number of
    messages and chats copied. Raises sqlite3.Error for `target` only."""
    source.execute("PRAGMA writable_schema = ON")  # a truncated file can be read only with this
    target.execute("BEGIN IMMEDIATE")
    try:
        chats = {
            row[0]: row for row in _rows(source, "chat", _CHAT, (int, str, str, str, str, _OPTIONAL, float, float))
        }
        places = {row[0]: row[1:] for row in _rows(source, "chat", _PLACE, (str, str, int, str))}
        numbers, parents = _copy_messages(source, target)
        members = _members(source, parents, chats)
        chat_numbers = _copy_chats(target, chats, members, numbers)
        for chat, place in places.items():
            target.execute("UPDATE chat SET title_by = ?, is_pinned = ?, folder = ? WHERE id = ?", (*place, chat))
        for message, *answer in _rows(source, "answer", _ANSWER, (int, str, bytes, bytes)):
            if message in numbers:
                _insert(target, "answer", _ANSWER, (numbers[message], *answer))
        for row, chat, parent, *rest in _rows(source, "making", _MAKING, _MAKING_TYPES):
            if chat in (chats if parent is None else members.get(parent, ())):
                _insert(target, "making", _MAKING, (row, chat_numbers[chat], numbers.get(parent), *rest))
        for preference in _rows(source, "preference", _PREFERENCE, (str, str)):
            _insert(target, "preference", _PREFERENCE, preference)
        target.execute("COMMIT")
    except BaseException:
        if target.in_transaction:
            target.execute("ROLLBACK")
        raise
    return len(numbers), len(chats)


_CHAT = "number, id, title, settings, model, head, created_s, updated_s"
_PLACE = "id, title_by, is_pinned, folder"  # which files of earlier versions do not have
_MESSAGE = "number, parent, depth, key, role, created_s, content"
_MEMBER = "chat, message"
_ANSWER = "message, about, ids, pieces"
_MAKING = "id, chat, parent, pid, started_s, grown_s, about, ids, content, pieces"
_PREFERENCE = "name, value"
_OPTIONAL = (int, type(None))
_MAKING_TYPES = (str, int, _OPTIONAL, int, float, float, str, bytes, str, bytes)


def _copy_messages(
    source: sqlite3.Connection, target: sqlite3.Connection
) -> tuple[dict[int | None, int], dict[int, int | None]]:
    """The new number of each message, and the old number of its parent; one whose parent is lost starts a path."""
    numbers: dict[int | None, int] = {}
    parents: dict[int, int | None] = {}
    depths: dict[int | None, int] = {None: 0}
    for number, parent, _, key, *rest in _rows(
        source, "message", _MESSAGE, (int, _OPTIONAL, int, str, str, float, str)
    ):
        parent = parent if parent in parents else None
        parents[number], depths[number] = parent, depths[parent] + 1
        _insert(target, "message", _MESSAGE, (None, numbers.get(parent), depths[number], key, *rest))
        numbers[number] = target.execute("SELECT number FROM message WHERE key = ?", (key,)).fetchone()[0]
    return numbers, parents


def _members(
    source: sqlite3.Connection, parents: dict[int, int | None], chats: dict[int, Row]
) -> dict[int | None, set[int]]:
    """The chats of each message: those that list it or its descendants, else its parent's, else a new one."""
    members: dict[int | None, set[int]] = {number: set() for number in parents}
    for chat, message in _rows(source, "member", _MEMBER, (int, int)):
        if message in members:
            members[message].add(chat)
    unused = count(max((*chats, *(chat for known in members.values() for chat in known)), default=0) + 1)
    for number, parent in parents.items():
        members[number] = members[number] or set(members.get(parent, ())) or {next(unused)}
    for number, parent in reversed(parents.items()):
        if parent is not None:
            members[parent] |= members[number]
    return members


def _copy_chats(
    target: sqlite3.Connection,
    chats: dict[int, Row],
    members: dict[int | None, set[int]],
    numbers: dict[int | None, int],
) -> dict[int, int]:
    """Write the chats and their members, add lost ones to `chats`; returns their new numbers. A lost head becomes the
    newest message."""
    newest = {chat: message for message, known in members.items() for chat in known}
    for chat in newest.keys() - chats.keys():
        chats[chat] = (chat, secrets.token_hex(5), "", "{}", "", newest[chat], time.time(), time.time())
    found = {}
    for chat, (_, name, *about, head, created_s, updated_s) in chats.items():
        if head is not None and chat not in members.get(head, ()):
            head = newest.get(chat)
        _insert(target, "chat", _CHAT, (None, name, *about, numbers.get(head), created_s, updated_s))
        found[chat] = target.execute("SELECT number FROM chat WHERE id = ?", (name,)).fetchone()[0]
    for message, known in members.items():
        for chat in known:
            _insert(target, "member", _MEMBER, (found[chat], numbers[message]))
    return found


def _rows(source: sqlite3.Connection, table: str, columns: str, types: tuple[Any, ...]) -> Iterator[Row]:
    """The undamaged rows of a table in order; those between two damaged places are left out."""
    key = columns.split(", ")[: 2 if table == "member" else 1]
    last: Row = ()
    try:
        for row in source.execute(f"SELECT {columns} FROM {table} ORDER BY {', '.join(key)}"):
            last = row[: len(key)]
            if _is_sound(row, types):
                yield row
        return
    except sqlite3.Error:
        pass
    rest: list[Row] = []
    try:
        for row in source.execute(
            f"SELECT {columns} FROM {table} ORDER BY {', '.join(f'{name} DESC' for name in key)}"
        ):
            if row[: len(key)] == last:
                break
            rest.append(row)
    except sqlite3.Error:
        pass
    yield from (row for row in reversed(rest) if _is_sound(row, types))


def _is_sound(row: Row, types: tuple[Any, ...]) -> bool:
    return all(isinstance(value, kind) for value, kind in zip(row, types, strict=True))


def _insert(target: sqlite3.Connection, table: str, columns: str, row: Row) -> None:
    """Insert unless it exists."""
    places = ", ".join("?" * len(row))
    target.execute(f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({places})", row)
