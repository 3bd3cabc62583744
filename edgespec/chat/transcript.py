"""Exports and imports of chats: Markdown for readers, and JSON lines in the format of OpenAI's messages."""

from __future__ import annotations

import json
import math
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.documents.document import fenced
from edgespec.errors import UsageError
from edgespec.files.paths import write_whole
from edgespec.history import ChatInfo, Store, Turn, UnknownChatError
from edgespec.history.data import valid_text
from edgespec.text.figures import iso
from edgespec.text.markdown import parser
from edgespec.text.strict_json import json_line
from edgespec.text.thinking import CLOSE, OPEN, split
from edgespec.tools.results import ToolResult

if TYPE_CHECKING:
    from edgespec.chat.conversation import Conversation

MARKDOWN_MAGIC = b"<!-- a chat exported by edgespec -->\n"
"""The beginning of exported files."""

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


@dataclass(frozen=True, slots=True)
class ImportedChat:
    """A chat from a file."""

    title: str
    system: str  #: the system prompt
    turns: tuple[tuple[str, str, float | None], ...]  #: (role, content, time) of the other messages
    id: str  #: its id in the store that exported it, else a hash of the content: a second import finds the chat
    folder: str = ""
    is_pinned: bool = False


def to_markdown(info: ChatInfo, turns: Sequence[Turn]) -> str:
    """Return a document with a heading for the chat and for each message; reasoning is folded."""
    about = [iso(info.created_s), *([info.model] if info.model else [])]
    blocks = [MARKDOWN_MAGIC.decode() + f"# {info.title or info.id}", " · ".join(about)]
    for turn in turns:
        if turn.role == "tool":
            blocks += _call_blocks(ToolResult.of(turn.content))
            continue
        blocks.append(f"## {turn.role.capitalize()}")
        for kind, text in split(turn.said) if turn.role == "assistant" else [("answer", turn.content)]:
            closed = _with_closed_fence(text)
            if kind == "thinking":
                closed = f"<details>\n<summary>Thinking</summary>\n\n{closed}\n\n</details>"
            blocks.append(closed)
        if turn.answer and turn.answer.end:
            blocks.append(f"*({turn.answer.end})*")
    return "\n\n".join(blocks) + "\n"


def _call_blocks(result: ToolResult) -> list[str]:
    """Return a heading for a call of a tool, its arguments, and its result or what happened instead."""
    text = result.summary if result.outcome in ("denied", "stopped") else result.text
    return [f"## Tool {result.label}".rstrip(), *map(fenced, filter(None, (result.shown_arguments, text)))]


def to_jsonl(info: ChatInfo, turns: Sequence[Turn]) -> str:
    """Return one line with its newline: the chat's id, title, times, model and messages."""
    row = {
        "chat": info.id,
        "title": info.title,
        "created": iso(info.created_s),
        "times": [iso(turn.created_s) for turn in turns],
        "model": info.model,
        **({"folder": info.folder} if info.folder else {}),
        **({"pinned": True} if info.is_pinned else {}),
        "messages": [{"role": turn.role, "content": turn.content} for turn in turns],
    }
    return json_line(row) + "\n"


def messages_of(store: Store, chat: ChatInfo) -> list[Turn]:
    """Return the messages of the open branch, with the system prompt as the first."""
    return with_system(store.chat_settings(chat.id).get("system"), store.path(chat.head))


def with_system(system: object, turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns of a chat, with its system prompt as the first."""
    first = [Turn("", None, "system", str(system), turns[0].created_s if turns else 0.0)] if system else []
    return [*first, *turns]


def rescue(chat: Conversation) -> Path | None:
    """Write a chat that the store does not accept to a file, which `import_chat` can read; None if that fails, too."""
    text = to_jsonl(chat.info(), with_system(chat.system, chat.turns))
    for folder in (Path.cwd(), Path(tempfile.gettempdir())):
        file = folder / f"edgespec-chat-{chat.id}.jsonl"
        with suppress(OSError):
            write_whole(file, text)
            return file
    return None


def read_jsonl(text: str) -> Iterator[ImportedChat]:
    """Yield the chats in the text of a file, with `{"messages": [...]}` on each line.

    Raises UsageError with the line of a mistake.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield _chat(json.loads(line.lstrip("\ufeff")))
            except (ValueError, RecursionError) as error:
                hint = 'a chat is {"messages": [{"role": "user", "content": "..."}, ...]}, on one line'
                why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
                raise UsageError(f"line {number} is not a chat", why=why, hint=hint) from error


def import_chat(store: Store, imported: ImportedChat) -> str:
    """Store a chat and return its id. If the store has the chat, new messages are added as a branch.

    Raises StoreError.
    """
    chat = imported.id
    if (stored := _longest_branch(store, imported)) is None:
        first_s = next((time_s for *_, time_s in imported.turns if time_s is not None), None)
        store.create(chat, {"system": imported.system}, title=imported.title, created_s=first_s)
        if imported.folder:
            store.move(chat, imported.folder)
        if imported.is_pinned:
            store.pin(chat, True)
    shared = stored or []
    parent = shared[-1].key if shared else None
    for role, content, time_s in imported.turns[len(shared) :]:
        parent = store.append(chat, parent, role, content, created_s=time_s).key
    return chat


def is_stored(store: Store, imported: ImportedChat) -> bool:
    """Return whether the store has this chat with all of these messages."""
    stored = _longest_branch(store, imported)
    return stored is not None and len(stored) == len(imported.turns)


def _longest_branch(store: Store, imported: ImportedChat) -> list[Turn] | None:
    """Return the longest common beginning with a branch of the stored chat; None if the store has no such chat."""
    try:
        branches = store.branches(imported.id)
    except UnknownChatError:
        return None
    longest: list[Turn] = []
    for branch in branches:
        path = zip(store.path(branch.leaf), imported.turns, strict=False)
        same = takewhile(lambda pair: (pair[0].role, pair[0].content) == pair[1][:2], path)
        longest = max(longest, [turn for turn, _ in same], key=len)
    return longest


def _chat(value: object) -> ImportedChat:
    """Read a chat. Raises ValueError."""
    about = value if isinstance(value, dict) else {}
    given, created_s = about.get("messages"), _time_of(about.get("created"))
    if not isinstance(given, list) or not given:
        raise ValueError("messages must be a non-empty list")
    messages, times = [_message(each) for each in given], about.get("times")
    if not isinstance(times, list) or len(times) != len(given):
        times = [None] * len(given)
    title, folder = (text if isinstance(text := about.get(name), str) else "" for name in ("title", "folder"))
    id = about.get("chat")
    if not isinstance(id, str) or not re.fullmatch("[0-9a-f]{10}", id):
        id = sha256(json.dumps([title, messages]).encode()).hexdigest()[:10]
    turns = [
        (role, valid_text(text), created_s if (time_s := _time_of(given)) is None else time_s)
        for (role, text), given in zip(messages, times, strict=True)
    ]
    system = turns.pop(0)[1] if turns[0][0] == "system" else ""
    return ImportedChat(title, system, tuple(turns), id, folder, about.get("pinned") is True)


def _time_of(value: object) -> float | None:
    """Return the time of a text in ISO 8601, or of a number of seconds since 1970; None for anything else."""
    try:
        if isinstance(value, str):
            time_s = datetime.fromisoformat(value).timestamp()
        else:
            time_s = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        return time_s if 0 <= time_s <= time.time() else None
    except (ValueError, OverflowError, OSError):
        return None


def _message(value: object) -> tuple[str, str]:
    """Return the role and content of a message. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError("a message is not a JSON object")
    role, content = value.get("role"), value.get("content")
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(
            f"the role {role!r} is not one of {', '.join(ROLES)}" if "role" in value else "there is no role"
        )
    if value.get("function_call"):
        raise ValueError("a message has a function_call, which is not supported")
    if content is None and role in ("assistant", "tool"):
        content = ""
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        known = [text for text in texts if isinstance(text, str)]
        content = "\n".join(known) if len(known) == len(texts) else content
    if not isinstance(content, str):
        raise ValueError("content is not a text" if "content" in value else "there is no content")
    reasoning = value.get("reasoning_content")
    if role == "assistant" and isinstance(reasoning, str) and reasoning:
        content = f"{OPEN}\n{reasoning}\n{CLOSE}\n\n{content}"
    calls = value.get("tool_calls") or []
    written = [_call(call) for call in (calls if isinstance(calls, list) else [calls])]
    return ROLES[role], "\n".join(filter(None, [content, *written]))


def _call(value: object) -> str:
    """Return a call of a tool as models write it. Raises ValueError."""
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ValueError("a message calls tools without a function")
    arguments = function.get("arguments")
    with suppress(ValueError, RecursionError):
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    call = {"name": function["name"], "arguments": {} if arguments is None else arguments}
    return f"<tool_call>\n{json_line(call)}\n</tool_call>"


def _with_closed_fence(text: str) -> str:
    """Return a text with the end of a code block that was cut off."""
    last = next(reversed(parser.parse(text)), None)
    if last is None or last.type != "fence" or last.map is None:
        return text
    *before, end = text.rstrip().split("\n")
    is_closed = len(before) > last.map[0] and end.strip().startswith(last.markup) and not end.strip(f" {last.markup}")
    return text if is_closed else f"{text}\n{last.markup}"
