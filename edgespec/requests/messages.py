"""Reads the messages of a chat, and what the messages of all formats have in common."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from edgespec.requests.bad_input import BadInputError, object_in, wrong
from edgespec.requests.documents import with_texts
from edgespec.requests.fields import Fields, content_of
from edgespec.requests.images import parts_of
from edgespec.settings import Image, Message
from edgespec.text.strict_json import parsed
from edgespec.text.thinking import CLOSE, OPEN

MOST_MESSAGES = 4096
ROLES = ("system", "developer", "user", "assistant", "tool")


def chat_messages(given: object) -> tuple[Message, ...]:
    """Read the messages of OpenAI's chats. Raises BadInputError."""
    if not isinstance(given, list) or not given:
        raise BadInputError("messages must be a list of at least one message", "messages")
    given = with_texts("messages", given)
    return tuple(message_in(f"messages[{index}]", message) for index, message in enumerate(given))


def check_count(messages: Sequence[object], most: int) -> None:
    """Raise BadInputError if there are too many messages for a context of `most` tokens, or for a request."""
    if len(messages) > most:
        raise BadInputError(f"{len(messages)} messages do not fit into a context of {most} tokens", "messages")
    if len(messages) > MOST_MESSAGES:
        raise BadInputError(f"a request may have {MOST_MESSAGES:,} messages, not {len(messages):,}", "messages")


def role_in(fields: Fields, where: str) -> str:
    """Take the role of a message. Raises BadInputError."""
    role = fields.take("role")
    if role not in ROLES:
        raise wrong(f"{where}.role", "be system, developer, user, assistant or tool", role)
    return str(role)


def message_of(
    role: str,
    content: str,
    images: Sequence[Image] = (),
    *,
    reasoning: str = "",
    tokens: Sequence[int] = (),
    **extra: object,
) -> Message:
    """Return a message. `extra` are fields that a chat template reads in addition, without those that are empty. The
    reasoning of an earlier answer precedes its text, between marks that templates know."""
    if reasoning:
        content = f"{OPEN}\n{reasoning}\n{CLOSE}\n\n{content}"
    more = {name: value for name, value in extra.items() if value}
    as_text = json.dumps(more, ensure_ascii=False) if more else ""
    return Message("system" if role == "developer" else role, content, tuple(tokens), as_text, tuple(images))


def call_of(where: str, id: str, function: Fields) -> dict[str, object]:
    """Return a tool call of an earlier answer; `function` has its name and its arguments. Raises BadInputError.

    Templates write the object that the text of arguments has. Other texts, which a model may have written, and other
    values are kept as a text.
    """
    if "name" not in function:
        raise BadInputError(f"{where} must have an id, and a function with name and arguments", where)
    name, arguments = function.text("name"), function.take("arguments", {})
    if isinstance(arguments, str):
        read = None
        with suppress(ValueError, RecursionError):
            read = parsed((arguments.strip() or "{}").encode())
        arguments = read if isinstance(read, dict) else arguments
    elif not isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def message_in(where: str, given: object) -> Message:
    """Read a message of OpenAI's chats. Raises BadInputError."""
    if not isinstance(given, dict):
        raise BadInputError(f"{where} must be an object with role and content", where)
    fields = Fields(given, where=where)
    role = role_in(fields, where)
    extra: dict[str, Any] = {"tool_call_id": fields.text("tool_call_id")} if role == "tool" else {}
    extra["name"] = fields.text("name")
    if calls := fields.take("tool_calls"):
        if role != "assistant" or not isinstance(calls, list):
            raise BadInputError(f"{where}.tool_calls must be a list, and the assistant's", f"{where}.tool_calls")
        extra["tool_calls"] = [_call(f"{where}.tool_calls[{index}]", call) for index, call in enumerate(calls)]
    content = fields.take("content", fields.take("refusal") if role == "assistant" else None)
    content = "" if content is None and (any(extra.values()) or role in ("assistant", "tool")) else content
    if role != "assistant":
        return message_of(role, *parts_of(f"{where}.content", content), **extra)
    content = content_of(f"{where}.content", content)
    reasoning, tokens = fields.take("reasoning_content") or fields.take("reasoning"), fields.take("tokens") or ()
    if not isinstance(tokens, list | tuple) or not all(type(id) is int for id in tokens):
        raise wrong(f"{where}.tokens", "be a list of token ids", tokens)
    return message_of(role, content, reasoning=reasoning if isinstance(reasoning, str) else "", tokens=tokens, **extra)


def _call(where: str, given: object) -> dict[str, object]:
    fields = Fields(object_in(given), where=where)
    if fields.take("type") == "custom":
        custom = fields.within("custom")
        given = {"name": custom.take("name"), "arguments": {"input": custom.text("input")}}
        return call_of(where, fields.text("id"), Fields(given, where=where))
    return call_of(where, fields.text("id"), fields.within("function"))
