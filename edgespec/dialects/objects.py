"""Values and calls in JSON, read as they arrive."""

from __future__ import annotations

import json
import re

from edgespec.dialects.calls import Schemas
from edgespec.dialects.dialect import Calls
from edgespec.dialects.source import ENDED, Begun, Source, Steps, UnfinishedError, collected
from edgespec.text.strict_json import MAX_DEPTH, parsed, refuse_constant

_DECODER = json.JSONDecoder(strict=False, parse_constant=refuse_constant)
_BETWEEN = re.compile(r"[ \t\r\n,;]*")  # values
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_WORD = re.compile(r"[-+.\w]+")
_LOW_SURROGATE = re.compile(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}")
CLOSING = {"{": "}", "[": "]"}
_BARE_KEYS = ("name", "type", "function", "parameters", "arguments", "tool_name")  # which a call may begin with


def loads(text: str) -> object:
    try:
        return _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def as_json(value: object) -> str:
    """Return a value as JSON for clients; single surrogates are replaced. Raises ValueError for a value that is nested
    too deeply."""
    try:
        text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
        parsed(text.encode())
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError("no JSON") from error
    return text


def quoted(text: str) -> str:
    """Return a part of a text as JSON has it between quotes."""
    return as_json(text)[1:-1]


def known_name(name: object, schemas: Schemas) -> str:
    if not isinstance(name, str) or name not in schemas:
        raise ValueError("no such tool")
    return name


# --- values -----------------------------------------------------------------------------------------------------------


def value(source: Source, depth: int = 1) -> Steps[None]:
    """Yield the value that begins here as `json.dumps` writes it."""
    character = yield from source.visible()
    if character == '"':
        yield from string(source)
    elif character in CLOSING:
        yield from _items(source, character, depth)
        yield CLOSING[character]
    else:
        yield from _word(source)


def members(source: Source) -> Steps[None]:
    """Yield an object up to the brace that closes it, which is passed but not yielded."""
    yield from _items(source, "{", 1)


def _items(source: Source, opening: str, depth: int) -> Steps[None]:
    """Yield an object or a list up to the bracket that closes it, which is passed but not yielded."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    is_first = True
    yield opening
    while (yield from _follows(source, CLOSING[opening], is_first=is_first)):
        if not is_first:
            yield ", "
        is_first = False
        if opening == "{":
            yield from string(source)
            yield from _colon(source)
            yield ": "
        yield from value(source, depth + 1)


def _follows(source: Source, closing: str, *, is_first: bool) -> Steps[bool]:
    """Return whether an item follows, and go to it, or else to the end of the object or list. Its opening bracket is
    passed before the first item."""
    source.at += is_first
    character = yield from source.visible()
    if character == closing:
        source.at += 1
        return False
    if not is_first:
        if character != ",":
            raise ValueError("no comma")
        source.at += 1
        yield from source.visible()
    return True


def _colon(source: Source) -> Steps[None]:
    if (yield from source.visible()) != ":":
        raise ValueError("no colon")
    source.at += 1


def string(source: Source) -> Steps[None]:
    """Yield a text with its quotes."""
    if source.text[source.at] != '"':
        raise ValueError("no text")
    source.at += 1
    yield '"'
    while True:
        if (plain := _PLAIN.match(source.text, source.at)) is not None:
            source.at = plain.end()
            yield plain[0]
        character = yield from source.peek(1)
        if not character:
            yield from source.wait()
        elif character == "\\":
            escape = yield from _escape(source)
            read = loads(f'"{escape}"')
            source.at += len(escape)
            yield as_json(read)[1:-1]
        else:
            source.at += 1
            if character == '"':
                yield '"'
                return
            yield quoted(character)


def _escape(source: Source) -> Steps[str]:
    """Return the escape that begins here. Two surrogates are one character."""
    escape = yield from source.peek(2)
    if escape == "\\u":
        escape = yield from source.peek(6)
        if escape[2:4].lower() in ("d8", "d9", "da", "db") and (yield from source.peek(8))[6:] == "\\u":
            both = yield from source.peek(12)
            return both if _LOW_SURROGATE.fullmatch(both[6:]) else escape
    return escape


def _word(source: Source) -> Steps[None]:
    """Yield a number, true, false or null. At the end of the text so far it may be the beginning of a longer one."""
    while True:
        found = _WORD.match(source.text, source.at)
        if found is None:
            raise ValueError("no value")
        if found.end() < len(source.text):
            break
        yield from source.wait()
    word = as_json(loads(found[0]))
    source.at = found.end()
    yield word


# --- calls ------------------------------------------------------------------------------------------------------------


def object_calls(source: Source, schemas: Schemas, form: Calls, *, is_bare: bool, is_single: bool) -> Steps[None]:
    """Read the calls in the JSON values that begin here: objects, and lists of them.

    Args:
        is_bare: No mark is before them, so that their first field must be one of those of calls.
        is_single: There is one value.
    """
    while (character := (yield from _next(source))) in ("{", "["):
        if character == "[":
            is_first = True
            while (yield from _follows(source, "]", is_first=is_first)):
                is_first = False
                yield from _Call(source, schemas, form, is_bare=is_bare).steps()
        else:
            yield from _Call(source, schemas, form, is_bare=is_bare).steps()
        if is_single:
            return


def _next(source: Source) -> Steps[str]:
    """Return the character with which the next value begins, and go to it if there is one."""
    place = source.at
    try:
        character = yield from source.visible(_BETWEEN)
    except UnfinishedError:
        character = ""
    source.at = source.at if character in ("{", "[") else place
    return character


class _Call:
    """Reads an object that is a call."""

    def __init__(self, source: Source, schemas: Schemas, form: Calls, *, is_bare: bool) -> None:
        self._source, self._schemas, self._form, self._is_bare = source, schemas, form, is_bare
        self._name = ""
        self._arguments: str | None = None  # before the name is known
        self._has_begun = False

    def steps(self) -> Steps[None]:
        yield from self._fields()
        if not self._name:
            raise ValueError("no name")
        if not self._has_begun:
            yield Begun(self._name)
            yield self._arguments or "{"
        yield "}"  # only now: what is cut off before is never a complete object
        yield ENDED

    def _fields(self) -> Steps[None]:
        source, (name_key, key, _) = self._source, self._form.keys
        if source.text[source.at] != "{":
            raise ValueError("no call")
        is_first = True
        while (yield from _follows(source, "}", is_first=is_first)):
            is_first = False
            field = loads((yield from collected(string(source))))
            if self._is_bare and field not in _BARE_KEYS:
                raise ValueError("no call")
            self._is_bare = False
            yield from _colon(source)
            character = yield from source.visible()
            if field == (self._form.wrapper or "function") and character == "{":
                yield from self._fields()
            elif not name_key and not self._name:
                self._name = known_name(field, self._schemas)
                yield from self._read_arguments()
            elif name_key and field in (name_key, "name") and not self._name:
                self._name = known_name(loads((yield from collected(value(source)))), self._schemas)
            elif name_key and field in (key, "arguments", "parameters") and not self._has_arguments:
                yield from self._read_arguments()
            elif not name_key:
                raise ValueError("no call")
            else:
                yield from collected(value(source))

    @property
    def _has_arguments(self) -> bool:
        return self._has_begun or self._arguments is not None

    def _read_arguments(self) -> Steps[None]:
        """Read the arguments: an object, the text of one, or null."""
        character = self._source.text[self._source.at]
        if character == "{" and self._name:
            self._has_begun = True
            yield Begun(self._name)
            yield from members(self._source)
        elif character == "{":
            self._arguments = yield from collected(members(self._source))
        else:
            given = loads((yield from collected(value(self._source))))
            given = loads(given) if isinstance(given, str) else {} if given is None else given
            if not isinstance(given, dict):
                raise ValueError("arguments are no object")
            self._arguments = as_json(given)[:-1]
