"""Reads the calls of tools in answers that arrive in pieces."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from edgespec.dialects.parameters import UnfinishedError

NAME = re.compile(r"[\w.:/-]{1,128}\Z")
"""Names of tools."""

Schemas = Mapping[str, Any]
"""The parameters of each tool, by its name."""


def tool_schemas(functions: Iterable[Mapping[str, Any]]) -> Schemas:
    """Return the parameters of functions that are given as OpenAI's objects, by their names."""
    named = [function.get("function", function) for function in functions]
    return {function["name"]: function.get("parameters") or {} for function in named}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool with `arguments`, the text of a JSON object, its number in the answer and its id. `span` is the
    part of the answer's text that has the call."""

    name: str
    arguments: str
    number: int = 0
    id: str = ""
    span: tuple[int, int] = (0, 0)


Part = tuple[Literal["thinking", "answer"], str] | ToolCall
"""A part of an answer: reasoning, content, or a call."""

Reader = Callable[[str, Schemas, bool], tuple[list[ToolCall], int]]
"""Reads the calls at the beginning of a text. Returns them, and the number of their characters. The flag is True at the
end of an answer. Raises UnfinishedError, or ValueError for a text that is not a call."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format of tool calls.

    Attributes:
        marks: The texts that begin a call.
        read: Reads the calls.
        bare: A call at the beginning of an answer needs no mark.
        short_ids: The ids of calls have nine characters.
    """

    marks: tuple[str, ...]
    read: Reader
    bare: bool = False
    short_ids: bool = False


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

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts that begin a call."""
        return self._format.marks

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
            except (UnfinishedError, ValueError, RecursionError) as error:
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
        held = max((begun(text, mark) for mark in self._format.marks), default=0)
        return len(text[: len(text) - held].rstrip()), None

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


def begun(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)
