"""Queries for chats and messages within one transaction of the store."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import replace

from edgespec.history.data import (
    ChatInfo,
    Order,
    Turn,
    UnknownChatError,
    first_line,
    pack_answer,
    unpack_answer,
    valid_text,
)


def chat_number(db: sqlite3.Connection, chat: str) -> int:
    """Return the number of a chat. Raises UnknownChatError."""
    found = db.execute("SELECT number FROM chat WHERE id = ?", (chat,)).fetchone()
    if found is None:
        raise UnknownChatError(f"there is no chat {chat!r}", hint="'edgespec history list' shows those there are")
    return int(found[0])


def member_number(db: sqlite3.Connection, chat: int, key: str) -> int:
    """Return the number of a message of a chat. Raises UnknownChatError."""
    query = "SELECT number FROM message JOIN member ON message = number WHERE key = ? AND chat = ?"
    found = db.execute(query, (key, chat)).fetchone()
    if found is None:
        raise UnknownChatError(f"there is no message {key!r} in this chat")
    return int(found[0])


def read_chats(db: sqlite3.Connection, limit: int | None = None, order: Order = "newest") -> dict[int, ChatInfo]:
    """Return the first chats in this order, by number."""
    query = f"""SELECT chat.number, id, title, chat.created_s, updated_s, key, coalesce(depth, 0), model,
        is_pinned, folder FROM chat LEFT JOIN message ON message.number = head
        ORDER BY {_ORDER[order]} updated_s DESC, chat.number DESC LIMIT ?"""
    found = db.execute(query, (-1 if limit is None else limit,))
    return {number: ChatInfo(*about) for number, *about in found}


def insert_chat(db: sqlite3.Connection, chat: str, settings: str, title: str, created_s: float | None = None) -> None:
    """Create a chat unless it exists."""
    now, title = time.time() if created_s is None else created_s, one_line(title)
    db.execute(
        """INSERT OR IGNORE INTO chat (id, title, settings, model, created_s, updated_s)
        VALUES (?, ?, ?, '', ?, ?)""",
        (chat, title, settings, now, now),
    )


def insert_turn(db: sqlite3.Connection, chat: str, turn: Turn, pieces: bytes, *, is_head: bool) -> Turn:
    """Add a message to the chat; an existing one keeps its time. Raises UnknownChatError."""
    in_chat = chat_number(db, chat)
    parent = None if turn.parent is None else member_number(db, in_chat, turn.parent)
    db.execute(
        """INSERT OR IGNORE INTO message (parent, depth, key, role, created_s, content)
        VALUES (?, 1 + coalesce((SELECT depth FROM message WHERE number = ?), 0), ?, ?, ?, ?)""",
        (parent, parent, turn.key, turn.role, turn.created_s, turn.content),
    )
    number, created_s = db.execute("SELECT number, created_s FROM message WHERE key = ?", (turn.key,)).fetchone()
    db.execute("INSERT OR IGNORE INTO member VALUES (?, ?)", (in_chat, number))
    db.execute("UPDATE chat SET updated_s = max(updated_s, ?) WHERE number = ?", (turn.created_s, in_chat))
    if is_head:
        db.execute("UPDATE chat SET head = ? WHERE number = ?", (number, in_chat))
    if turn.role == "user":
        db.execute("UPDATE chat SET title = ? WHERE number = ? AND title = ''", (first_line(turn.content), in_chat))
    if turn.answer is not None:
        # A stored answer says more than one that is not complete, or has no pieces.
        known = "IGNORE" if turn.answer.finish_reason == "interrupted" or not pieces else "REPLACE"
        db.execute(f"INSERT OR {known} INTO answer VALUES (?, ?, ?, ?)", (number, *pack_answer(turn.answer), pieces))
        db.execute("UPDATE chat SET model = ? WHERE number = ?", (turn.answer.model, in_chat))
    return replace(turn, created_s=created_s)


def delete_chat(db: sqlite3.Connection, chat: str) -> bool:
    """Delete a chat and the messages that no other chat shares; return whether it existed."""
    found = db.execute("SELECT number FROM chat WHERE id = ?", (chat,)).fetchone()
    if found is None:
        return False
    db.execute(
        """DELETE FROM message WHERE number IN (SELECT message FROM member WHERE chat = ?)
        AND NOT EXISTS (SELECT 1 FROM member WHERE message = number AND chat <> ?)""",
        (*found, *found),
    )
    db.execute("DELETE FROM member WHERE chat = ?", found)
    db.execute("DELETE FROM making WHERE chat = ?", found)
    db.execute("DELETE FROM chat WHERE number = ?", found)
    return True


def contents_with(db: sqlite3.Connection, text: str, chat: str | None = None) -> list[str]:
    """Return the contents with this text among all messages, or among those of a chat."""
    query = "SELECT CAST(content AS TEXT) FROM message WHERE instr(content, :text)"
    if chat is not None:
        query += " AND number IN (SELECT message FROM member, chat ON chat.number = chat WHERE id = :chat)"
    return [content for (content,) in db.execute(query, {"text": text, "chat": chat})]


def read_path(db: sqlite3.Connection, head: str) -> list[Turn]:
    """Return the messages from the first one to `head`; none if there is no such message."""
    query = f"""{UP} SELECT number, key, role, CAST(content AS TEXT), message.created_s,
        CAST(about AS TEXT), CAST(ids AS BLOB) -- in a damaged file values may have another type
        FROM up JOIN message USING (number) LEFT JOIN answer ON answer.message = number"""
    found = db.execute(query, {"head": head}).fetchall()
    turns: list[Turn] = []
    for _, key, role, content, created_s, about, ids in sorted(found):  # SQLite would copy the texts to sort them
        answer = None if about is None else unpack_answer(about, ids)
        turns.append(Turn(key, turns[-1].key if turns else None, role, content, created_s, answer))
    return turns


def update_chat(db: sqlite3.Connection, chat: str, **values: object) -> None:
    """Change columns of a chat. Raises UnknownChatError."""
    changes = ", ".join(f"{name} = :{name}" for name in values)
    db.execute(f"UPDATE chat SET {changes} WHERE number = :number", values | {"number": chat_number(db, chat)})


_ORDER: dict[Order, str] = {"newest": "", "pinned": "is_pinned DESC,", "folders": "is_pinned DESC, folder <> '' DESC,"}


def one_line(text: str) -> str:
    """Return a text that can be stored, on one line."""
    return " ".join(valid_text(text).split())


# The path to a message. The condition prevents endless loops: in a damaged file a message might follow itself.
UP = """WITH RECURSIVE up (number, parent) AS (
    SELECT number, parent FROM message WHERE key = :head
    UNION ALL SELECT above.number, above.parent FROM up JOIN message AS above ON above.number = up.parent
    WHERE above.number < up.number
)"""
