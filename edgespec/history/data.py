"""The content of the store of chats, as plain data, and how answers are packed into rows."""

from __future__ import annotations

import hashlib
import json
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Order = Literal["newest", "pinned", "folders"]
"""Of chats in a list: the newest first; before them the pinned ones; between these and the rest those in folders."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of an answer as it was shown: `text` is "" while bytes are held back, `source` the drafter that
    proposed it or "" for the target itself, `round` the number of the target pass of this answer."""

    id: int
    text: str
    source: str = ""
    round: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """The settings and statistics with which an assistant's message was generated, as plain JSON.

    Attributes:
        finish_reason: stop, length, cancelled, error, interrupted (the program died) or generating.
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


@dataclass(frozen=True, slots=True)
class Turn:
    """A message, which never changes. `key` is a hash of `parent` (or the chat, for a first message), role, content."""

    key: str
    parent: str | None
    role: str
    content: str
    created_s: float
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class ChatInfo:
    """A chat in a list. `n_turns` counts the open path, whose last message is `head`. The title is the user's, the
    model's or the first line of the chat, as `title_by` says ("user", "model", "line"; "" is unknown)."""

    id: str
    title: str
    created_s: float
    updated_s: float
    head: str | None
    n_turns: int
    model: str
    title_by: str = ""
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


def key_of(before: str, role: str, content: str) -> str:
    """The key of a message; `before` is its parent's key, or the chat's id for a first message."""
    return hashlib.blake2b(json.dumps([before, role, content]).encode(), digest_size=16).hexdigest()


def valid_text(text: str) -> str:
    """`text` without lone surrogates, which no file can hold."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def first_line(text: str, length: int = 60) -> str:
    """The first line that is not empty, shortened."""
    line = " ".join(next((line for line in text.splitlines() if line.strip()), "").split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def pack_answer(answer: Answer) -> tuple[str, bytes]:
    """`about` and `ids` of a row."""
    about = {
        "model": answer.model,
        "draft_model": answer.draft_model,
        "finish_reason": answer.finish_reason,
        "seed": answer.seed,
        "settings": dict(answer.settings),
        "stats": dict(answer.stats),
        "vocabulary": answer.vocabulary,
    }
    return json.dumps(about), pack_ids(answer.ids)


def unpack_answer(about: str, ids: bytes) -> Answer:
    """The answer of a row; damaged parts are left out."""
    known = unpack_object(about)
    return Answer(**{name: known[name] for name in _ABOUT if name in known}, ids=tuple(_unpacked(ids)))


def pack_ids(ids: Sequence[int]) -> bytes:
    """uint32, little end first."""
    return _little_end_first(array("I", ids)).tobytes()


def pack_pieces(pieces: Sequence[Piece]) -> bytes:
    """Column by column, which compresses best."""
    columns = [[getattr(piece, name) for piece in pieces] for name in ("id", "text", "source", "round")]
    return zlib.compress(json.dumps(columns, separators=(",", ":")).encode()) if pieces else b""


def unpack_pieces(packed: bytes) -> list[Piece]:
    """The pieces of a row, none if it is damaged."""
    try:
        return [Piece(*values) for values in zip(*json.loads(zlib.decompress(packed)), strict=True)] if packed else []
    except (zlib.error, ValueError, TypeError):
        return []


def unpack_object(text: str) -> dict[str, Any]:
    """A JSON object, empty where it is damaged."""
    try:
        value = json.loads(text)
    except (ValueError, TypeError):
        return {}
    return value if isinstance(value, dict) else {}


_ABOUT = ("model", "draft_model", "finish_reason", "seed", "settings", "stats", "vocabulary")


def _unpacked(packed: bytes) -> array[int]:
    ids = array("I")
    ids.frombytes(packed[: len(packed) // 4 * 4])
    return _little_end_first(ids)


def _little_end_first(ids: array[int]) -> array[int]:
    if sys.byteorder == "big":
        ids.byteswap()
    return ids
