"""Chats that are never lost: all messages, how each answer was generated, and all branches, in one SQLite file.

A message is identified by a hash of its content and its predecessor. So editing, regenerating and forking copy nothing,
and every write may be repeated. An answer that is being generated has a separate row. If its program dies, the next
program that opens the store turns the row into a message marked "interrupted".
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, wraps
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from edgespec.closable import Closable
from edgespec.files.paths import data_dir
from edgespec.history import rows
from edgespec.history.data import (
    AnswerRecord,
    Branch,
    ChatInfo,
    Hit,
    Order,
    StoreError,
    TokenRecord,
    Turn,
    UnknownChatError,
    UnwritableError,
    first_line,
    pack_answer,
    pack_pieces,
    turn_of,
    unpack_answer,
    unpack_object,
    unpack_pieces,
    valid_text,
)
from edgespec.history.file import IN_MEMORY, StoreFile
from edgespec.history.search import excerpt, folded_words, holds, matches
from edgespec.text.thinking import without_thinking

__all__ = [
    "AnswerRecord",
    "Branch",
    "ChatInfo",
    "Hit",
    "Store",
    "StoreError",
    "TokenRecord",
    "Turn",
    "UnknownChatError",
    "UnwritableError",
]

CLOCK_S = 2.0  # tolerance for the start time of a process
NAMES_SHOWN = 5

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger(__name__)


def new_id() -> str:
    """Return a unique id for a chat."""
    return secrets.token_hex(5)


def default_file() -> Path:
    """Return the file of the user's chats."""
    return data_dir() / "chats.db"


def _reads(
    method: Callable[Concatenate[Store, sqlite3.Connection, P], T], *, write: bool = False
) -> Callable[Concatenate[Store, P], T]:
    """Call a method with a connection, in a transaction."""

    @wraps(method)
    def in_transaction(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._database.run(lambda db: method(self, db, *args, **kwargs), write=write)

    return in_transaction


def _writes(method: Callable[Concatenate[Store, sqlite3.Connection, P], T]) -> Callable[Concatenate[Store, P], T]:
    return _reads(method, write=True)


class Store(Closable):
    """The chats in a file, by default the user's. Any number of threads and processes may use it at once.

    Each method is one transaction (`db`, which callers leave out), and those that write may be repeated. `note`
    receives messages for the user. All may raise StoreError, and UnknownChatError for a chat or message that does not
    exist.
    """

    def __init__(self, file: Path | None = None, note: Callable[[str], None] = log.warning) -> None:
        self._database = StoreFile(file or default_file(), note)
        try:
            if self._is_unsettled():
                self._settle()
        except StoreError as error:  # the content can be read, and the next one to open it tries again
            log.debug("answers of dead programs stay as they are: %s", error)

    @classmethod
    def in_memory(cls) -> Self:
        """Return a store that ends with the program."""
        return cls(IN_MEMORY)

    @property
    def file(self) -> Path | None:
        return None if self._database.path == IN_MEMORY else self._database.path

    @property
    def unwritable(self) -> StoreError | None:
        """Why nothing can be saved now, or None. The chats can be read in both cases."""
        return self._database.unwritable

    def close(self) -> None:
        self._database.close()

    @_writes
    def create(
        self,
        db: sqlite3.Connection,
        chat: str,
        settings: Mapping[str, object] | None = None,
        title: str = "",
        created_s: float | None = None,
    ) -> None:
        """Create a chat; `chat` is a `new_id()`.

        Without a title, the first line of the first user message becomes the title. The default of `created_s` is now.
        """
        rows.insert_chat(db, chat, json.dumps(dict(settings or {})), title, created_s=created_s)

    @_reads
    def chats(
        self, db: sqlite3.Connection, limit: int | None = None, query: str = "", order: Order = "newest"
    ) -> list[ChatInfo]:
        """Return the chats; with `query` those that have all its words in their title or in one message."""
        if not query.strip():
            return list(rows.read_chats(db, limit, order).values())
        messages = set(matches(db, query))
        found = {chat for chat, message in db.execute("SELECT chat, message FROM member") if message in messages}
        chats, words = rows.read_chats(db, order=order).items(), folded_words(query)
        return [chat for number, chat in chats if number in found or holds(chat.title, words)][:limit]

    @_reads
    def find(self, db: sqlite3.Connection, name: str) -> ChatInfo:
        """Return the chat with this id, or the only one whose id begins with `name`; for "last" the newest chat."""
        chats = rows.read_chats(db).values()
        if name == "last" and chats:
            return next(iter(chats))
        fitting = [chat for chat in chats if name and chat.id.startswith(name)]
        if not fitting:
            hint = "'edgespec history list' shows those there are" if chats else ""
            raise UnknownChatError(f"there is no chat {name!r}" if chats else "there is no chat yet", hint=hint)
        if len(fitting) > 1 and fitting[0].id != name:
            known = ", ".join(chat.id for chat in fitting[:NAMES_SHOWN])
            raise UnknownChatError(f"{len(fitting)} chats begin with {name!r}", why=known, hint="use a longer prefix")
        return fitting[0]

    @_reads
    def chat_settings(self, db: sqlite3.Connection, chat: str) -> dict[str, Any]:
        """Return the settings that were saved with a chat."""
        number = rows.chat_number(db, chat)
        return unpack_object(db.execute("SELECT settings FROM chat WHERE number = ?", (number,)).fetchone()[0])

    @_writes
    def save_settings(self, db: sqlite3.Connection, chat: str, settings: Mapping[str, object]) -> None:
        """Save plain JSON with a chat."""
        rows.update_chat(db, chat, settings=json.dumps(dict(settings)))

    @_writes
    def rename(self, db: sqlite3.Connection, chat: str, title: str) -> None:
        """Change a chat's title."""
        rows.update_chat(db, chat, title=rows.one_line(title))

    @_writes
    def pin(self, db: sqlite3.Connection, chat: str, is_pinned: bool) -> None:
        """Pin a chat above the others, or unpin it."""
        rows.update_chat(db, chat, is_pinned=is_pinned)

    @_writes
    def move(self, db: sqlite3.Connection, chat: str, folder: str) -> None:
        """Move a chat into a folder; with "" out of its folder."""
        rows.update_chat(db, chat, folder=rows.one_line(folder))

    @_reads
    def folders(self, db: sqlite3.Connection) -> list[str]:
        """Return the names of the folders that hold chats."""
        query = "SELECT DISTINCT folder FROM chat WHERE folder <> '' ORDER BY folder"
        return [folder for (folder,) in db.execute(query)]

    @_writes
    def remove(self, db: sqlite3.Connection, chats: Iterable[str]) -> int:
        """Delete chats, and their messages unless other chats share them. Returns the number of deleted chats."""
        return sum([rows.delete_chat(db, chat) for chat in chats])

    @_reads
    def contents_with(self, db: sqlite3.Connection, text: str, chat: str | None = None) -> list[str]:
        """Return the contents with this text among all messages, or among those of a chat."""
        return rows.contents_with(db, text, chat)

    @_reads
    def path(self, db: sqlite3.Connection, head: str | None) -> list[Turn]:
        """Return the messages from the first one to `head`."""
        turns = [] if head is None else rows.read_path(db, head)
        if head is not None and not turns:
            raise UnknownChatError(f"there is no message {head!r}")
        return turns

    @_writes
    def append(
        self,
        db: sqlite3.Connection,
        chat: str,
        parent: str | None,
        role: str,
        content: str,
        answer: AnswerRecord | None = None,
        pieces: Sequence[TokenRecord] = (),
        created_s: float | None = None,
    ) -> Turn:
        """Add a message after `parent`, a message of this chat; it becomes the chat's head."""
        turn = turn_of(chat, parent, role, content, answer, created_s)
        return rows.insert_turn(db, chat, turn, pack_pieces(pieces), is_head=True)

    @_writes
    def restore(
        self, db: sqlite3.Connection, chat: str, settings: Mapping[str, object], title: str, turns: Sequence[Turn]
    ) -> None:
        """Save a chat that was lost again, or what is missing of it; `turns`, its open path, keep their keys."""
        rows.insert_chat(db, chat, json.dumps(dict(settings)), title)
        parent: str | None = None
        for turn in turns:
            rows.insert_turn(db, chat, replace(turn, parent=parent), b"", is_head=True)
            parent = turn.key

    @_writes
    def begin(self, db: sqlite3.Connection, chat: str, parent: str | None, answer: AnswerRecord) -> str:
        """Begin to save an answer to `parent` while it is generated; return the id of its row."""
        number = rows.chat_number(db, chat)
        above = None if parent is None else rows.member_number(db, number, parent)
        row, now = secrets.token_hex(8), time.time()
        values = (row, number, above, *_process(os.getpid()), now, *pack_answer(answer))
        db.execute("INSERT INTO making VALUES (?, ?, ?, ?, ?, ?, ?, ?, '', x'')", values)
        return row

    @_writes
    def grow(self, db: sqlite3.Connection, row: str, content: str, pieces: Sequence[TokenRecord]) -> None:
        """Save the part of an answer that has been generated so far, without its ids: they may be ahead of the text."""
        db.execute(
            "UPDATE making SET grown_s = ?, content = ?, pieces = ? WHERE id = ?",
            (time.time(), valid_text(content), pack_pieces(pieces), row),
        )

    @_writes
    def finish(
        self,
        db: sqlite3.Connection,
        row: str | None,
        chat: str,
        parent: str | None,
        content: str,
        answer: AnswerRecord,
        pieces: Sequence[TokenRecord] = (),
    ) -> Turn:
        """Replace the row of an answer by a message, which becomes the chat's head."""
        db.execute("DELETE FROM making WHERE id = ?", (row,))
        turn = turn_of(chat, parent, "assistant", content, answer)
        return rows.insert_turn(db, chat, turn, pack_pieces(pieces), is_head=True)

    @_writes
    def drop(self, db: sqlite3.Connection, row: str) -> None:
        """Delete an unfinished answer."""
        db.execute("DELETE FROM making WHERE id = ?", (row,))

    @_reads
    def pieces(self, db: sqlite3.Connection, key: str) -> list[TokenRecord]:
        """Return the tokens of an answer as they were shown; none if they are unknown."""
        query = "SELECT pieces FROM answer JOIN message ON message = number WHERE key = ?"
        return [piece for (packed,) in db.execute(query, (key,)) for piece in unpack_pieces(packed)]

    @_writes
    def set_head(self, db: sqlite3.Connection, chat: str, key: str | None) -> None:
        """Choose the message that the open path of a chat ends with; with None the path is empty."""
        number = rows.chat_number(db, chat)
        rows.update_chat(db, chat, head=None if key is None else rows.member_number(db, number, key))

    @_reads
    def branches(self, db: sqlite3.Connection, chat: str) -> list[Branch]:
        """Return the branches of a chat, each up to a message without successors in the chat, the newest first.

        None of them is current if the head was moved up.
        """
        query = """SELECT key, depth, content, message.created_s, number = (SELECT head FROM chat WHERE number = :chat)
            FROM member JOIN message ON number = member.message WHERE member.chat = :chat AND NOT EXISTS (
                SELECT 1 FROM message AS next CROSS JOIN member AS within ON within.message = next.number
                WHERE next.parent = member.message AND within.chat = :chat
            ) ORDER BY number DESC"""
        return [
            Branch(key, depth, first_line(without_thinking(content)), created_s, bool(is_current))
            for key, depth, content, created_s, is_current in db.execute(query, {"chat": rows.chat_number(db, chat)})
        ]

    @_reads
    def siblings(self, db: sqlite3.Connection, chat: str, key: str) -> list[str]:
        """Return the versions of message `key` in a chat, in the order of creation."""
        number = rows.chat_number(db, chat)
        query = """SELECT key FROM message JOIN member ON member.message = number AND chat = ?
            WHERE parent IS (SELECT parent FROM message WHERE number = ?) ORDER BY number"""
        return [version for (version,) in db.execute(query, (number, rows.member_number(db, number, key)))]

    @_reads
    def latest_leaf(self, db: sqlite3.Connection, chat: str, key: str) -> str:
        """Return the newest message of a chat after `key`, or `key` itself."""
        number = rows.chat_number(db, chat)
        query = """WITH RECURSIVE below (number) AS (
                SELECT ? UNION ALL
                SELECT next.number FROM below CROSS JOIN message AS next ON next.parent = below.number
                CROSS JOIN member ON member.message = next.number AND chat = ? WHERE next.number > below.number
            ) SELECT key FROM message WHERE number = (SELECT max(number) FROM below)"""
        return str(db.execute(query, (rows.member_number(db, number, key), number)).fetchone()[0])

    @_writes
    def fork(self, db: sqlite3.Connection, chat: str, head: str | None, title: str = "") -> str:
        """Create a chat with the path to `head` and the same settings, and return its id. No message is copied."""
        source, fork = rows.chat_number(db, chat), new_id()
        about = "SELECT settings, title, model, folder FROM chat WHERE number = ?"
        settings, old_title, model, folder = db.execute(about, (source,)).fetchone()
        rows.insert_chat(db, fork, settings, title or old_title)
        number = None if head is None else rows.member_number(db, source, head)
        path = f"{rows.UP} INSERT OR IGNORE INTO member SELECT :chat, number FROM up"
        db.execute(path, {"head": head, "chat": rows.chat_number(db, fork)})
        rows.update_chat(db, fork, model=model, folder=folder, head=number)
        return fork

    @_reads
    def search(self, db: sqlite3.Connection, query: str, limit: int = 50) -> list[Hit]:
        """Return the newest messages that have all words of `query` (see `edgespec.history.search`)."""
        about = """SELECT id, title, key, role, CAST(content AS TEXT), message.created_s FROM message
            JOIN member ON message = message.number JOIN chat ON chat.number = chat
            WHERE message.number = ? ORDER BY chat.number LIMIT 1"""
        return [
            Hit(chat, title, key, role, excerpt(content, query), created_s)
            for number in islice(matches(db, query), limit)
            for chat, title, key, role, content, created_s in db.execute(about, (number,))
        ]

    @_reads
    def preference(self, db: sqlite3.Connection, name: str) -> str | None:
        """Return a saved choice of the user, such as a theme; None if nothing was saved."""
        found = db.execute("SELECT value FROM preference WHERE name = ?", (name,)).fetchone()
        return None if found is None else str(found[0])

    @_writes
    def set_preference(self, db: sqlite3.Connection, name: str, value: str) -> None:
        """Save a choice of the user."""
        db.execute("INSERT OR REPLACE INTO preference VALUES (?, ?)", (name, value))

    @_reads
    def _is_unsettled(self, db: sqlite3.Connection) -> bool:
        return db.execute("SELECT 1 FROM making LIMIT 1").fetchone() is not None

    @_writes
    def _settle(self, db: sqlite3.Connection) -> None:
        """Turn unfinished answers of programs that died into messages, and delete empty ones."""
        making = db.execute(
            """SELECT making.id, pid, started_s, grown_s, about, ids, making.content, pieces, chat.id, key,
            head IS making.parent FROM making JOIN chat ON chat.number = making.chat
            LEFT JOIN message ON message.number = making.parent"""
        ).fetchall()
        for row, pid, started_s, grown_s, about, ids, content, pieces, chat, parent, is_head in making:
            if _is_running(pid, started_s):
                continue
            if content:
                answer = replace(unpack_answer(about, ids), finish_reason="interrupted")
                turn = turn_of(chat, parent, "assistant", content, answer, grown_s)
                rows.insert_turn(db, chat, turn, pieces, is_head=bool(is_head))
            db.execute("DELETE FROM making WHERE id = ?", (row,))


@cache
def _process(pid: int) -> tuple[int, float]:
    """Return what distinguishes a process from a later one with the same number."""
    import psutil

    return pid, psutil.Process(pid).create_time()


def _is_running(pid: int, started_s: float) -> bool:
    import psutil

    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started_s) < CLOCK_S and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # it exists, but belongs to another user
        return True
