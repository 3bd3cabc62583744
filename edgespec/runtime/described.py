"""Tools, their calls and their results as texts, for chat templates that have no place for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from edgespec.settings import Message, joined, moved

_RESPONSE = "<tool_response>\n"
_INTRODUCTION = (
    "You may call functions to help with the user's request. Their signatures are within <tools></tools>:\n"
    "<tools>\n{}\n</tools>\n\nFor each call return a JSON object with the name of the function and its arguments "
    'within <tool_call></tool_call>:\n<tool_call>\n{{"name": <name>, "arguments": <arguments>}}\n</tool_call>'
)


def calls_in(message: Message) -> list[dict[str, object]]:
    """Return the tool calls of a message."""
    if '"tool_calls"' not in message.extra:
        return []
    found = json.loads(message.extra).get("tool_calls")
    return [call for call in found if isinstance(call, dict)] if isinstance(found, list) else []


def described(messages: Sequence[Message], functions: Sequence[Mapping[str, object]]) -> tuple[Message, ...]:
    """Return messages whose system prompt describes the functions, with calls and results as text."""
    if not functions and not any(message.role == "tool" or calls_in(message) for message in messages):
        return tuple(messages)
    told: list[Message] = []
    for message in messages:
        text = _as_text(message)
        if message.role == "tool" and told and told[-1].role == "user":
            told[-1] = joined((told[-1], text), "\n")
        else:
            told.append(text)
    if functions:
        said = _INTRODUCTION.format("\n".join(json.dumps(function, ensure_ascii=False) for function in functions))
        if told and told[0].role == "system":
            told[0] = replace(told[0], content=f"{told[0].content}\n\n{said}".lstrip())
        else:
            told.insert(0, Message("system", said))
    return tuple(told)


def _as_text(message: Message) -> Message:
    if message.role == "tool":
        images = moved(message.images, len(_RESPONSE))
        return Message("user", f"{_RESPONSE}{message.content}\n</tool_response>", images=images)
    return with_calls(message)


def with_calls(message: Message) -> Message:
    """Return a message with its calls at the end of its text."""
    if not (calls := calls_in(message)):
        return message
    extra = {name: value for name, value in json.loads(message.extra).items() if name != "tool_calls"}
    functions = [call.get("function", call) for call in calls]
    written = [f"<tool_call>\n{json.dumps(function, ensure_ascii=False)}\n</tool_call>" for function in functions]
    left = json.dumps(extra, ensure_ascii=False) if extra else ""  # the name of the speaker
    return replace(message, content="\n".join(filter(None, [message.content, *written])), extra=left, tokens=())
