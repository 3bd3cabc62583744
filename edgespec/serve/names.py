"""Names of fields in errors, as the client sent them.

Every format is converted to that of chats, in which fields have other names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from edgespec.batch.bad_input import BadInputError
from edgespec.batch.known import ALIASES
from edgespec.errors import EdgespecError
from edgespec.serve.errors import ApiError, error_for

Names = Mapping[str, str]
"""Names of the converted fields, each with the name that was sent; [] matches any number in brackets."""

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
"""Fields that may contain a schema for the answer, each with the name of the schema in an error."""


@contextmanager
def sent_as(names: Names) -> Iterator[None]:
    """Turn errors of this block into ApiErrors, in which fields have the names that were sent."""
    try:
        yield
    except (ApiError, BadInputError, EdgespecError) as error:
        told = error_for(error)
        _rename(told, names)
        try:
            raise told from (error.__cause__ if told is error else error)
        finally:
            del told  # its traceback refers to this frame, and so would keep a body in memory until the next collection


def names_in(body: Mapping[str, Any], names: Names) -> Names:
    """Return the names of a format, and the aliases that a body uses, without fields that the body sets directly."""
    aliases = {known: alias for alias, known in ALIASES.items() if alias in body}
    schema = next((name for field, name in SCHEMAS.items() if body.get(field)), "json_schema")
    known = {**names, **aliases, "json_schema": schema}
    return {read: sent for read, sent in known.items() if read not in body}


def _rename(error: ApiError, names: Names) -> None:
    """Replace the name of the field in an error: the longest known name with which the name begins."""
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
