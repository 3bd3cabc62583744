"""The content of the store of chats as plain data, how answers are packed into rows, and the errors of the store."""

from __future__ import annotations

import hashlib
import json
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from edgespec.errors import EdgespecError, UsageError

Order = Literal["newest", "pinned", "folders"]
"""The order of chats in a list: the newest first; or pinned chats before the others; or after the pinned chats those in
folders."""

ENDS = {
    "interrupted": "interrupted",
    "generating": "not finished yet",
    "cancelled": "stopped by you",
    "length": "cut off at the token limit",
    "repetition": "ended because it repeats itself",
    "error": "stopped by an error",
}
FULL = "cut off because the context is full"


class StoreError(EdgespecError):
    """The store of chats cannot be read or written now; its content is unchanged."""


class UnwritableError(StoreError):
    """The disk is full or read-only, or the file belongs to another user."""


class UnreadableError(StoreError):
    """The file or its folder cannot be opened at all, because of the error `cause`."""

    def __init__(self, what: str, cause: OSError, hint: str) -> None:
        super().__init__(what, why=cause.strerror or str(cause), hint=hint)
        self.cause = cause


class UnknownChatError(StoreError, UsageError):
    """There is no such chat or message, or a short name fits several chats."""


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One token of an answer as it was shown: `text` is "" while bytes are held back, `source` the drafter that
    proposed it or "" for the target itself, `round` the number of the target pass of this answer."""

    id: int
    text: str
    source: str = ""
    round: int = 0


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """The settings and statistics with which an assistant's message was generated, as plain JSON.

    Attributes:
        finish_reason: stop, length, repetition, cancelled, error, interrupted (the program died) or generating.
        ids: The generated tokens, in the vocabulary `vocabulary`.
    """

    model: str = ""
    draft_model: str | None = None
    finish_reason: str = "stop"
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: str = ""
    ids: tuple[int, ...] = ()

    @property
    def is_full(self) -> bool:
        """True if the answer ended because the context was full."""
        size = self.settings.get("ctx_size", 0)
        return self.finish_reason == "length" and 0 < size <= self.stats.get("context_used", 0)

    @property
    def calls(self) -> Sequence[tuple[int, int]]:
        """Where the calls of tools are in the text, from the first to the last."""
        spans = self.settings.get("calls", ())
        return spans if isinstance(spans, list | tuple) else ()

    @property
    def end(self) -> str:
        """How an incomplete answer ended, in words; "" if it is complete."""
        return FULL if self.is_full else ENDS.get(self.finish_reason, "")


@dataclass(frozen=True, slots=True)
class Turn:
    """A message, which never changes. `key` is a hash of `parent` (or the chat, for a first message), role, content."""

    key: str
    parent: str | None
    role: str
    content: str
    created_s: float
    answer: AnswerRecord | None = None

    @property
    def said(self) -> str:
        """The text without the calls of tools that are in it."""
        text = self.content
        for start, end in reversed(self.answer.calls if self.answer else ()):
            text = text[:start].rstrip() + text[end:]
        return text


@dataclass(frozen=True, slots=True)
class ChatInfo:
    """A chat in a list. `n_turns` counts the open path, whose last message is `head`."""

    id: str
    title: str
    created_s: float
    updated_s: float
    head: str | None
    n_turns: int
    model: str
    is_pinned: bool = False
    folder: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A message that a search found; in `snippet`, which is one line, matches are between \x02 and \x03."""

    chat: str
    title: str
    key: str
    role: str
    snippet: str
    created_s: float


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch of a chat, identified by its last message."""

    leaf: str
    n_turns: int
    preview: str
    updated_s: float
    is_current: bool


def turn_of(
    chat: str,
    parent: str | None,
    role: str,
    content: str,
    answer: AnswerRecord | None = None,
    created_s: float | None = None,
) -> Turn:
    """Return a message in the form in which it is stored, created now unless a time is given."""
    role, content = valid_text(role), valid_text(content)
    now = time.time() if created_s is None else created_s
    key = hashlib.blake2b(json.dumps([parent or chat, role, content]).encode(), digest_size=16).hexdigest()
    return Turn(key, parent, role, content, now, answer)


def valid_text(text: str) -> str:
    """Return `text` without lone surrogates, which no file can hold."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def first_line(text: str, length: int = 60) -> str:
    """Return the first line that is not empty, shortened."""
    line = " ".join(next((line for line in text.splitlines() if line.strip()), "").split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def pack_answer(answer: AnswerRecord) -> tuple[str, bytes]:
    """Return `about` and `ids` of a row."""
    about = asdict(answer)
    ids = about.pop("ids")
    return json.dumps(about), struct.pack(f"<{len(ids)}I", *ids)  # uint32, little end first


def unpack_answer(about: str, ids: bytes) -> AnswerRecord:
    """Return the answer of a row, without damaged parts."""
    known, n_ids = unpack_object(about), len(ids) // 4
    values = {item.name: known[item.name] for item in fields(AnswerRecord) if item.name in known}
    return AnswerRecord(**values | {"ids": struct.unpack_from(f"<{n_ids}I", ids)})


def pack_pieces(pieces: Sequence[TokenRecord]) -> bytes:
    """Return the pieces of an answer for its row: column by column, which compresses best."""
    columns = [[getattr(piece, name) for piece in pieces] for name in ("id", "text", "source", "round")]
    return zlib.compress(json.dumps(columns, separators=(",", ":")).encode()) if pieces else b""


def unpack_pieces(packed: bytes) -> list[TokenRecord]:
    """Return the pieces of a row; none if the row is damaged."""
    try:
        columns = json.loads(zlib.decompress(packed)) if packed else []
        return [TokenRecord(*values) for values in zip(*columns, strict=True)]
    except (zlib.error, ValueError, TypeError):
        return []


def unpack_object(text: str) -> dict[str, Any]:
    """Parse a JSON object; return an empty one for damaged text."""
    try:
        value = json.loads(text)
    except (ValueError, TypeError):
        return {}
    return value if isinstance(value, dict) else {}
