"""Errors name the fields that the client sent: the formats of other clients are read as chats, in which fields have
other names and messages other numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from edgespec.errors import EdgespecError
from edgespec.serve.errors import ApiError, api_error
from edgespec.serve.fields import ALIASES

Names = Mapping[str, str]
"""The names of fields as they are read, and the names as they were sent; [] stands for any number in brackets."""

TEXT_NAMES: Names = {"messages": "prompt"}
COMPLETION_NAMES: Names = {"messages": "prompt", "logprobs": "n_probs", "n": "n_cmpl"}
MESSAGE_NAMES: Names = {
    "stop": "stop_sequences",
    "tools[].function.parameters": "tools[].input_schema",
    "tools[].function": "tools[]",
    "enable_thinking": "thinking",
}
RESPONSE_NAMES: Names = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "tools[].function": "tools[]",
    "enable_thinking": "reasoning.effort",
}
SCHEMAS = {
    "response_format": "response_format",
    "text": "text.format",
    "output_config": "output_config.format",
    "tools": "tools",
}
"""Fields that may hold a schema for the answer, and the names of the schema in them."""

ORIGIN = "sent as"
"""A key of a message that is made from other fields: what the parts of the message were sent as."""


@contextmanager
def sent_as(names: Names) -> Iterator[None]:
    """Let the errors of this block name fields as they were sent. An error of the engine becomes an ApiError."""
    try:
        yield
    except ApiError as error:
        _rename(error, names)
        raise
    except EdgespecError as error:
        renamed = api_error(error)
        _rename(renamed, names)
        raise renamed from error


def names_in(body: Mapping[str, Any], names: Names) -> Names:
    """What the fields are called that a body has under another name, in a format with these `names`."""
    aliases = {known: alias for alias, known in ALIASES.items() if alias in body}
    schema = next((name for field, name in SCHEMAS.items() if body.get(field)), "json_schema")
    known = {**names, **aliases, "json_schema": schema}
    return {read: sent for read, sent in known.items() if read not in body}


def origins(messages: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Take the origins out of messages, and return the names of their fields."""
    names = {}
    for index, message in enumerate(messages):
        for part, origin in message.pop(ORIGIN, {}).items():
            names[f"messages[{index}]{part}"] = origin
    return names


def _rename(error: ApiError, names: Names) -> None:
    """Replace the name in an error by the one that was sent; the longest name with which it begins counts."""
    read = error.param or ""
    number = re.search(r"\[\d+\]", read)
    index = number[0] if number else "[]"
    known = {name.replace("[]", index): sent.replace("[]", index) for name, sent in names.items()}
    begins = [name for name in known if read == name or read.startswith((f"{name}.", f"{name}["))]
    if not begins:
        return
    name = max(begins, key=len)
    error.param = sent = known[name] + read[len(name) :]
    error.message = re.sub(rf"(?<![\w.]){re.escape(read)}(?!\w)", lambda _: sent, error.message)
