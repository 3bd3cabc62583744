"""Describes tools in the system prompt, for chat templates without tools, in the format of Hermes' models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgespec.settings import Message

_INTRODUCTION = (
    "You may call functions to help with the user's request. Their signatures are within <tools></tools>:\n"
    "<tools>\n{}\n</tools>\n\nFor each call return a JSON object with the name of the function and its arguments "
    'within <tool_call></tool_call>:\n<tool_call>\n{{"name": <name>, "arguments": <arguments>}}\n</tool_call>'
)


def described(messages: Sequence[Message], functions: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Return messages whose system prompt describes the functions, with calls and results as text."""
    told = [_as_text(message) for message in messages]
    if functions:
        said = _INTRODUCTION.format("\n".join(json.dumps(function, ensure_ascii=False) for function in functions))
        if told[0].role == "system":
            told[0] = replace(told[0], content=f"{told[0].content}\n\n{said}".lstrip())
        else:
            told.insert(0, Message("system", said))
    merged: list[Message] = []
    for message, original in zip(told, [None] * (len(told) - len(messages)) + list(messages), strict=True):
        if original is not None and original.role == "tool" and merged and merged[-1].role == "user":
            merged[-1] = replace(merged[-1], content=f"{merged[-1].content}\n{message.content}")
        else:
            merged.append(message)
    return tuple(merged)


def _as_text(message: Message) -> Message:
    if message.role == "tool":
        return Message("user", f"<tool_response>\n{message.content}\n</tool_response>")
    extra = json.loads(message.extra) if message.extra else {}
    calls = extra.pop("tool_calls", [])
    written = [f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>" for call in calls]
    left = json.dumps(extra, ensure_ascii=False) if extra else ""  # the name of the speaker
    return replace(message, content="\n".join(filter(None, [message.content, *written])), extra=left)
