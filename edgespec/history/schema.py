"""The tables of the store of chats, as numbered steps from an empty file to the newest version.

A message belongs to every chat that lists it as a member, so branches and forks share what they have in common. Its
number is always greater than its parent's, so that numbers are the order of creation and of depth at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE chat (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            title TEXT NOT NULL,
            settings TEXT NOT NULL, -- JSON
            model TEXT NOT NULL, -- file name of who answered last
            head INTEGER, -- message that the open path ends with
            created_s REAL NOT NULL,
            updated_s REAL NOT NULL
        )""",
        """CREATE TABLE message (
            number INTEGER PRIMARY KEY,
            parent INTEGER,
            depth INTEGER NOT NULL, -- messages from the first one to here
            key TEXT NOT NULL UNIQUE,
            role TEXT NOT NULL,
            created_s REAL NOT NULL,
            content TEXT NOT NULL
        )""",
        "CREATE INDEX message_by_parent ON message (parent)",
        "CREATE TABLE member (chat INTEGER, message INTEGER, PRIMARY KEY (chat, message)) WITHOUT ROWID",
        "CREATE INDEX member_by_message ON member (message)",
        """CREATE TABLE answer (
            message INTEGER PRIMARY KEY,
            about TEXT NOT NULL, -- JSON
            ids BLOB NOT NULL, -- uint32, little end first
            pieces BLOB NOT NULL -- compressed JSON
        )""",
        """CREATE TABLE making (
            id TEXT PRIMARY KEY,
            chat INTEGER NOT NULL,
            parent INTEGER,
            pid INTEGER NOT NULL, -- of the process that writes it
            started_s REAL NOT NULL, -- when that process began
            grown_s REAL NOT NULL,
            about TEXT NOT NULL,
            ids BLOB NOT NULL,
            content TEXT NOT NULL,
            pieces BLOB NOT NULL
        )""",
        "CREATE TABLE preference (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        """CREATE VIRTUAL TABLE message_words USING fts5(
            content, content = 'message', content_rowid = 'number', prefix = '1 2',
            tokenize = 'unicode61 remove_diacritics 2'
        )""",
        """CREATE TRIGGER message_added AFTER INSERT ON message BEGIN
            INSERT INTO message_words (rowid, content) VALUES (new.number, new.content);
        END""",
        """CREATE TRIGGER message_removed AFTER DELETE ON message BEGIN
            INSERT INTO message_words (message_words, rowid, content) VALUES ('delete', old.number, old.content);
            DELETE FROM answer WHERE message = old.number;
        END""",
    ),
    (  # chats can be put in order
        "ALTER TABLE chat ADD COLUMN title_by TEXT NOT NULL DEFAULT ''",  # not used
        "ALTER TABLE chat ADD COLUMN is_pinned INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE chat ADD COLUMN folder TEXT NOT NULL DEFAULT ''",
    ),
)


def version_of(db: sqlite3.Connection) -> int:
    """Return the version of the tables in the file; 0 for an empty file."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def migrate(db: sqlite3.Connection, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> None:
    """Migrate the tables to the newest version, each step atomically. Raises sqlite3.Error."""
    for version, statements in enumerate(migrations, start=1):
        if version_of(db) >= version:
            continue
        with transaction(db):
            if version_of(db) < version:  # else another process was faster
                for statement in statements:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {version}")


@contextmanager
def transaction(db: sqlite3.Connection, *, write: bool = True) -> Iterator[None]:
    """Make all changes of this block at once, or none of them if it fails. Raises sqlite3.Error."""
    db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
