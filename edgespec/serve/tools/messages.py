"""Calls and results of tools in the messages of a chat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edgespec.batch.bad_input import BadInputError, UnsupportedError, wrong
from edgespec.serve.bodies import parsed
from edgespec.serve.errors import ApiError
from edgespec.settings import shown


def extra_of(where: str, given: Mapping[str, Any]) -> str:
    """Return the fields of a message that a chat template reads in addition to role and content, as JSON. Raises
    BadInputError."""
    if given.get("function_call"):
        raise UnsupportedError(f"{where}.function_call", "use tool_calls")
    extra: dict[str, Any] = {}
    for name in ("tool_call_id", "name") if given.get("role") == "tool" else ("name",):
        value = given.get(name)
        if value is not None and not isinstance(value, str):
            raise wrong(f"{where}.{name}", "be a string", value)
        if value is not None:
            extra[name] = value
    calls = given.get("tool_calls")
    if calls:
        if given.get("role") != "assistant" or not isinstance(calls, list):
            raise BadInputError(f"{where}.tool_calls must be a list, and the assistant's", f"{where}.tool_calls")
        extra["tool_calls"] = [_call(f"{where}.tool_calls[{index}]", call) for index, call in enumerate(calls)]
    return json.dumps(extra, ensure_ascii=False) if extra else ""


def _call(where: str, given: Any) -> dict[str, Any]:
    function = given.get("function") if isinstance(given, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    id = given.get("id") if isinstance(given, dict) else None
    if not isinstance(name, str) or not isinstance(id, str | None) or not isinstance(function, dict):
        raise BadInputError(f"{where} must have an id, and a function with name and arguments", where)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:  # templates write the object
            read = parsed(arguments.encode())
        except ApiError:
            read = None
        arguments = read if isinstance(read, dict) else arguments
    elif not isinstance(arguments, dict):
        raise BadInputError(f"arguments of {where} must be the text of a JSON object, not {shown(arguments)}", where)
    return {"id": id or "", "type": "function", "function": {"name": name, "arguments": arguments}}
