"""Reads the messages of a chat, and what the messages of all formats have in common."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from edgespec.batch.bad_input import BadInputError, UnsupportedError, wrong
from edgespec.batch.documents import with_texts
from edgespec.batch.fields import Fields, content_of
from edgespec.batch.images import parts_of
from edgespec.serve.bodies import parsed
from edgespec.serve.errors import ApiError
from edgespec.settings import Image, Message, shown
from edgespec.text.thinking import CLOSE, OPEN

MOST_MESSAGES = 4096


def chat_messages(given: Any) -> tuple[Message, ...]:
    """Read the messages of OpenAI's chats. Raises BadInputError."""
    if not isinstance(given, list) or not given:
        raise BadInputError("messages must be a list of at least one message", "messages")
    given = with_texts("messages", given)
    return tuple(_message(f"messages[{index}]", message) for index, message in enumerate(given))


def check_count(messages: Sequence[Any], most: int) -> None:
    """Raise BadInputError if there are too many messages for a context of `most` tokens, or for a request."""
    if len(messages) > most:
        raise BadInputError(f"{len(messages)} messages do not fit into a context of {most} tokens", "messages")
    if len(messages) > MOST_MESSAGES:
        raise BadInputError(f"a request may have {MOST_MESSAGES:,} messages, not {len(messages):,}", "messages")


def role_in(fields: Fields, where: str) -> str:
    """Take the role of a message. Raises BadInputError."""
    role = fields.take("role")
    if role not in ("system", "developer", "user", "assistant", "tool"):
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


def call_of(where: str, id: str, function: Fields) -> dict[str, Any]:
    """Return a tool call of an earlier answer; `function` has its name and its arguments. Raises BadInputError."""
    if "name" not in function:
        raise BadInputError(f"{where} must have an id, and a function with name and arguments", where)
    name, arguments = function.text("name"), function.take("arguments") or {}
    if isinstance(arguments, str):
        with suppress(ApiError):  # templates write the object
            read = parsed(arguments.encode())
            arguments = read if isinstance(read, dict) else arguments
    elif not isinstance(arguments, dict):
        raise BadInputError(f"arguments of {where} must be the text of a JSON object, not {shown(arguments)}", where)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _message(where: str, given: Any) -> Message:
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
    content = "" if any(extra.values()) and content is None else content
    if role != "assistant":
        return message_of(role, *parts_of(f"{where}.content", content), **extra)
    content = content_of(f"{where}.content", content)
    reasoning, tokens = fields.take("reasoning_content") or fields.take("reasoning"), fields.take("tokens") or ()
    if not isinstance(tokens, list | tuple) or not all(type(id) is int for id in tokens):
        raise wrong(f"{where}.tokens", "be a list of token ids", tokens)
    return message_of(role, content, reasoning=reasoning if isinstance(reasoning, str) else "", tokens=tokens, **extra)


def _call(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    fields = Fields(given if isinstance(given, dict) else {}, where=where)
    return call_of(where, fields.text("id"), fields.within("function"))


def take_functions(fields: Fields, kinds: Collection[Any], parameters: str) -> dict[str, Any]:
    """Take `tools`, and return them as those of a chat. Raises BadInputError.

    `kinds` are the types of tools that can be called; None stands for a missing type. `parameters` is the name of the
    field with the schema.
    """
    tools = fields.take("tools", [])
    if not isinstance(tools, list):
        raise wrong("tools", "be a list", tools)
    made = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise wrong(where, "be an object", tool)
        if tool.get("type") not in kinds:
            raise UnsupportedError(where, f"tools of type {shown(tool.get('type'))} do not exist here")
        function = {name: tool.get(name) for name in ("name", "description", "strict")}
        made.append({"type": "function", "function": function | {"parameters": tool.get(parameters)}})
    return {"tools": made} if made else {}
