"""The formats in which models write tool calls, and a parser for answers that arrive in pieces.

The chat template shows which format a model uses.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgespec.text.strict_json import parsed, refuse_constant
from edgespec.tools.parameters import UnfinishedError, parameters_at, typed

NAME = re.compile(r"[\w.:/-]{1,128}\Z")
"""Names of tools."""

Schemas = Mapping[str, Any]
"""The parameters of each tool, by its name."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool with `arguments`, the text of a JSON object, its number in the answer and its id. `span` is the
    part of the answer's text that has the call."""

    name: str
    arguments: str
    number: int = 0
    id: str = ""
    span: tuple[int, int] = (0, 0)


Reader = Callable[[str, Schemas, bool], tuple[list[ToolCall], int]]
"""Reads the calls at the beginning of a text. Returns them, and the number of their characters. The flag is True at the
end of an answer. Raises UnfinishedError, or ValueError for a text that is not a call."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format of tool calls.

    Attributes:
        marks: The texts that begin a call.
        read: Reads the calls.
        words: Texts that may be control tokens, which have no text in an answer.
        bare: A call at the beginning of an answer needs no mark.
        short_ids: The ids of calls have nine characters.
    """

    marks: tuple[str, ...]
    read: Reader
    words: tuple[str, ...] = ()
    bare: bool = False
    short_ids: bool = False


def format_of(template: str) -> Format:
    """Return the format that a chat template shows to its model, or that of Hermes if it shows none."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    if "<tool_call>" not in template and ("<|python_tag|>" in template or '"parameters":' in template):
        return LLAMA
    return TAGS


# --- Hermes and Qwen: <tool_call>{"name": ..., "arguments": ...}</tool_call>, or Qwen-Coder's XML in it ---------------

OPEN, CLOSE, FUNCTION = "<tool_call>", "</tool_call>", "<function="
_FUNCTION = re.compile(r"<function=([^<>\s]+)(>?)")


def _read_tags(text: str, schemas: Schemas, ended: bool) -> tuple[list[ToolCall], int]:
    start = _after(text, len(OPEN) if text.startswith(OPEN) else 0)
    if text.startswith(FUNCTION, start):
        return _read_function(text, start, schemas, ended)
    body = text[start : start + len(FUNCTION)]
    if body[:1] not in ("{", "["):
        raise UnfinishedError if FUNCTION.startswith(body) else ValueError("no call")
    calls, end = _values(text, start, schemas, ended)
    return calls, _closed(text, end, ended)


def _read_function(text: str, start: int, schemas: Schemas, ended: bool) -> tuple[list[ToolCall], int]:
    function = _FUNCTION.match(text, start)
    if function is None or not function[2]:
        if text[start + len(FUNCTION) :] in ("", function and function[1]):
            raise UnfinishedError
        raise ValueError("no call")
    name = _known(function[1], schemas)
    texts, end = parameters_at(text, function.end(), schemas[name], ended)
    call = ToolCall(name, _text(typed(texts, schemas[name], _loads)))
    return [call], _closed(text, end, ended)


def _closed(text: str, end: int, ended: bool) -> int:
    """Return the end of a call with the mark that closes it, if the mark is there."""
    rest = text[_after(text, end) :]
    if rest.startswith(CLOSE):
        return _after(text, end) + len(CLOSE)
    if CLOSE.startswith(rest) and not ended:
        raise UnfinishedError
    return end


TAGS = Format((OPEN, FUNCTION), _read_tags, (OPEN, CLOSE))


# --- Mistral: [TOOL_CALLS][{...}], or since 2025 [TOOL_CALLS]name[ARGS]{...} -----------------------------------------

TOOL_CALLS = "[TOOL_CALLS]"
_NAMED = re.compile(r"([\w.-]+)\s*(?:\[CALL_ID\]\w*\s*)?(?:\[ARGS\]\s*)?(?={)")
_NAME_BEGUN = re.compile(r"[\w.-]*\s*(?:\[[\w\]]*\s*)*\Z")


def _read_mistral(text: str, schemas: Schemas, ended: bool) -> tuple[list[ToolCall], int]:
    start = _after(text, len(TOOL_CALLS))
    if text[start : start + 1] in ("[", "{"):
        return _values(text, start, schemas, ended)
    found = _NAMED.match(text, start)
    if found is None:
        raise UnfinishedError if _NAME_BEGUN.match(text, start) else ValueError("no call")
    value, end = _json(text, found.end())
    return [ToolCall(_known(found[1], schemas), _text(value))], end


MISTRAL = Format((TOOL_CALLS,), _read_mistral, (TOOL_CALLS, "[CALL_ID]", "[ARGS]"), short_ids=True)


# --- Llama 3: an object with name and parameters, with or without <|python_tag|>; a ; separates several -------------

PYTHON = "<|python_tag|>"
_FIRST_KEY = re.compile(r'\{\s*("\w*"?)?')
_KEYS = ('"name"', '"type"', '"function"', '"parameters"', '"arguments"')


def _read_llama(text: str, schemas: Schemas, ended: bool) -> tuple[list[ToolCall], int]:
    start = len(PYTHON) if text.startswith(PYTHON) else 0
    start += len(text[start:]) - len(text[start:].lstrip(" \t\r\n;"))
    if start == len(text):
        raise UnfinishedError
    first = _FIRST_KEY.match(text, start)
    if first is None or not any(key.startswith(first[1] or "") for key in _KEYS):
        raise ValueError("no call")
    value, end = _json(text, start)
    return [_call(value, schemas)], end


LLAMA = Format((PYTHON,), _read_llama, (PYTHON,), bare=True)
FORCED = Format((), _read_llama, bare=True)

WORDS = (*TAGS.words, *MISTRAL.words, *LLAMA.words)


# --- JSON ------------------------------------------------------------------------------------------------------------


BETWEEN = " \t\r\n,;"  # between values
_VALUE = re.compile(r"[\s,;]*[{\[]")
LONGEST_WORD = len("-Infinity")  # an error so close to the end may be a word or an escape that is not complete
_DECODER = json.JSONDecoder(strict=False, parse_constant=refuse_constant)


def _json(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that begins at `start`, and its end."""
    try:
        return _DECODER.raw_decode(text, start)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated") or error.pos > len(text) - LONGEST_WORD:
            raise UnfinishedError from None
        raise


def _loads(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _values(text: str, start: int, schemas: Schemas, ended: bool) -> tuple[list[ToolCall], int]:
    """Return the calls in the JSON values that begin at `start`, objects or lists, and the end of the values."""
    calls, end = list[ToolCall](), start
    while found := _VALUE.match(text, end):
        try:
            value, after = _json(text, found.end() - 1)
            more = [_call(part, schemas) for part in (value if isinstance(value, list) else [value])]
        except (UnfinishedError, ValueError) as error:
            if not calls or (isinstance(error, UnfinishedError) and not ended):
                raise
            break
        calls, end = calls + more, after
    if not ended and not text[end:].strip(BETWEEN):
        raise UnfinishedError
    return calls, end


def _call(value: Any, schemas: Schemas) -> ToolCall:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        raise ValueError("no call")
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        arguments = _loads(arguments)
    return ToolCall(_known(value.get("name"), schemas), _text({} if arguments is None else arguments))


def _known(name: Any, schemas: Schemas) -> str:
    if not isinstance(name, str) or name not in schemas:
        raise ValueError("no such tool")
    return name


def _text(arguments: Any) -> str:
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


def _after(text: str, start: int) -> int:
    """Return the end of the blanks that begin at `start`."""
    return len(text) - len(text[start:].lstrip())


# --- the calls in an answer -------------------------------------------------------------------------------------------

_BARE = re.compile(r"[\s;]*(\{|\Z)")


class ToolParser:
    """Separates the calls of one answer from its text. A call is sent when it is complete. A text that only looks like
    a call stays text. Calls after the first `most` are left out, since the client does not expect them."""

    def __init__(self, format: Format, schemas: Schemas, most: int | None = None) -> None:
        self._format, self._schemas, self._most = format, schemas, most
        self._held = ""
        self._n_read = 0  # characters before those that are held
        self._n_calls = 0
        self._has_text = False

    def feed(self, text: str) -> list[str | ToolCall]:
        """Take more text. Return the text and the calls that are certain by now."""
        self._held += text
        return self._parts(ended=False)

    def end(self) -> list[str | ToolCall]:
        """Return the rest at the end of the answer. Never raises: a call that cannot be parsed is text."""
        return self._parts(ended=True)

    def _parts(self, *, ended: bool) -> list[str | ToolCall]:
        made: list[str | ToolCall] = []
        while self._held:
            start, mark = self._found()
            if mark is None:
                made += self._text(start if not ended else len(self._held))
                break
            try:
                calls, length = self._format.read(self._held[start:], self._schemas, ended)
            except (UnfinishedError, ValueError) as error:
                if isinstance(error, UnfinishedError) and not ended:
                    made += self._text(len(self._held[:start].rstrip()))
                    break
                made += self._text(start + max(1, len(mark)))
                continue
            rest, span = self._held[start + length :], (self._n_read + start, self._n_read + start + length)
            made += self._text(len(self._held[:start].rstrip()))
            self._held, self._n_read = rest, span[1]
            for call in calls if self._most is None else calls[: max(0, self._most - self._n_calls)]:
                made.append(replace(call, number=self._n_calls, id=self._new_id(), span=span))
                self._n_calls += 1
        return made

    def _found(self) -> tuple[int, str | None]:
        """Return where a call may begin, and its mark; or the length of the text that cannot be a call, and None."""
        text = self._held
        if self._format.bare and not self._has_text and (bare := _BARE.match(text)):
            return (0, "") if bare[1] else (0, None)
        starts = [(start, mark) for mark in self._format.marks if (start := text.find(mark)) >= 0]
        if starts:
            return min(starts)
        begun = max((_overlap(text, mark) for mark in self._format.marks), default=0)
        return len(text[: len(text) - begun].rstrip()), None

    def _text(self, length: int) -> list[str]:
        """Return the first characters as text, except for blanks after a call."""
        text, self._held = self._held[:length], self._held[length:]
        self._n_read += length
        if not text or (self._n_calls and not text.strip()):
            return []
        self._has_text |= not text.isspace()
        return [text]

    def _new_id(self) -> str:
        return secrets.token_hex(5)[:9] if self._format.short_ids else "call_" + secrets.token_hex(12)


def _overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)
