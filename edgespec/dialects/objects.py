"""Calls as objects of JSON."""

from __future__ import annotations

import json
import re
import secrets
from typing import Any

from edgespec.dialects.calls import Schemas, ToolCall
from edgespec.dialects.dialect import Calls
from edgespec.dialects.parameters import UnfinishedError
from edgespec.text.strict_json import parsed, refuse_constant

BETWEEN = " \t\r\n,;"  # between values
_VALUE = re.compile(r"[\s,;]*[{\[]")
LONGEST_WORD = len("-Infinity")  # an error so close to the end may be a word or an escape that is not complete
_DECODER = json.JSONDecoder(strict=False, parse_constant=refuse_constant)


def value_at(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that begins at `start`, and its end."""
    try:
        return _DECODER.raw_decode(text, start)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated") or error.pos > len(text) - LONGEST_WORD:
            raise UnfinishedError from None
        raise


def loads(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def calls_at(text: str, start: int, schemas: Schemas, ended: bool, form: Calls) -> tuple[list[ToolCall], int]:
    """Return the calls in the JSON values that begin at `start`, objects or lists, and the end of the values."""
    calls, end = list[ToolCall](), start
    while found := _VALUE.match(text, end):
        try:
            value, after = value_at(text, found.end() - 1)
            more = [call_of(part, schemas, form) for part in (value if isinstance(value, list) else [value])]
        except (UnfinishedError, ValueError) as error:
            if not calls or (isinstance(error, UnfinishedError) and not ended):
                raise
            break
        calls, end = calls + more, after
    if not ended and not text[end:].strip(BETWEEN):
        raise UnfinishedError
    return calls, end


def call_of(value: Any, schemas: Schemas, form: Calls) -> ToolCall:
    """Return an object as a call. Raises ValueError."""
    if isinstance(value, dict) and isinstance(nested := value.get(form.wrapper or "function"), dict):
        value = nested
    if not isinstance(value, dict):
        raise ValueError("no call")
    name_key, key, _ = form.keys
    if not name_key:
        if len(value) != 1:
            raise ValueError("no call")
        ((name, arguments),) = value.items()
    else:
        name = value.get(name_key, value.get("name"))
        arguments = next((value[each] for each in (key, "arguments", "parameters") if each in value), None)
    if isinstance(arguments, str):
        arguments = loads(arguments)
    return ToolCall(known_name(name, schemas), arguments_text({} if arguments is None else arguments))


def known_name(name: Any, schemas: Schemas) -> str:
    if not isinstance(name, str) or name not in schemas:
        raise ValueError("no such tool")
    return name


def arguments_text(arguments: Any) -> str:
    """Return arguments as JSON for clients. Raises ValueError for arguments that are nested too deeply; single
    surrogates are replaced."""
    if not isinstance(arguments, dict):
        raise ValueError("arguments are no object")
    try:
        text = json.dumps(arguments, ensure_ascii=False).encode("utf-8", "replace").decode()
        parsed(text.encode())
    except (ValueError, RecursionError) as error:
        raise ValueError("nested too deeply") from error
    return text


def after_blanks(text: str, start: int) -> int:
    """Return the end of the blanks that begin at `start`."""
    return len(text) - len(text[start:].lstrip())


def object_call(name: str, text: str, schemas: Schemas) -> ToolCall | None:
    """Return the call of a tool whose arguments are this text; None if there is no such tool."""
    try:
        return ToolCall(known_name(name, schemas), arguments_text(loads(text)), id="call_" + secrets.token_hex(12))
    except ValueError:
        return None
