"""Reads the calls of tools in answers that arrive in pieces."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from edgespec.dialects.source import WAIT, Begun, Source, Step, Steps, UnfinishedError, begun

NAME = re.compile(r"[\w.:/-]{1,128}\Z")
"""Names of tools."""

Schemas = Mapping[str, Mapping[str, object]]
"""The parameters of each tool, by its name."""


def tool_schemas(functions: Iterable[Mapping[str, object]]) -> Schemas:
    """Return the parameters of functions that are given as OpenAI's objects, by their names. Others are left out."""
    named = [function.get("function", function) for function in functions if isinstance(function, dict)]
    return {
        str(function["name"]): function.get("parameters") or {}
        for function in named
        if isinstance(function, dict) and "name" in function
    }


@dataclass(frozen=True, slots=True)
class CallPiece:
    """The next piece of the arguments of a call that has not ended. The first piece of a call has no text."""

    name: str
    text: str = ""
    number: int = 0
    id: str = ""


@dataclass(frozen=True, slots=True)
class AnyCall:
    """A call of a tool with the text of its arguments, which is that of its pieces, its number in the answer and its
    id."""

    name: str
    arguments: str
    number: int = 0
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToolCall(AnyCall):
    """A complete call: `arguments` are a JSON object. `span` is the part of the answer's text that has the call."""

    span: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class CutCall(AnyCall):
    """A call that has begun but cannot be run, since the answer ended in it, or what follows is not a call. `arguments`
    are never a complete object. `text` is the part of the answer that has the call, with the blanks before it."""

    text: str = ""


AnswerPart = tuple[Literal["thinking", "answer"], str] | CallPiece | ToolCall | CutCall
"""A part of an answer: reasoning, content, or a call: its pieces, followed by the whole."""

CallReader = Callable[[Source, Schemas], Steps[None]]
"""Reads the calls at the beginning of a text."""


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
    read: CallReader
    bare: bool = False
    short_ids: bool = False


Read = str | CallPiece | ToolCall | CutCall
"""Content, or a part of a call."""

_BARE = re.compile(r"[\s;]*(\{|\Z)")


class ToolParser:
    """Separates the calls of one answer from its text. A call is certain when its arguments have begun and its tool is
    known; then they are returned in pieces. Before that, a text that only looks like a call stays text. Afterwards it
    is a `CutCall` if it does not become a complete one. Calls after the first `most` are left out, since the client
    does not expect them; `n_calls` have been found before."""

    def __init__(self, format: Format, schemas: Schemas, most: int | None = None, n_calls: int = 0) -> None:
        self._format, self._schemas, self._most = format, schemas, most
        self._held = ""
        self._n_read = 0  # characters before those that are held
        self._n_calls = n_calls
        self._next_id = ""
        self._has_text = False
        self._section: _Section | None = None  # of calls that are read now; it then has the text

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts that begin a call."""
        return self._format.marks

    def feed(self, text: str) -> list[Read]:
        """Take more text. Return the text and the parts of calls that are certain by now."""
        if self._section is None:
            self._held += text
        else:
            self._section.source.text += text
        return self._parts(ended=False)

    def end(self) -> list[Read]:
        """Return the rest at the end of the answer. Never raises: a call that cannot be parsed is text."""
        return self._parts(ended=True)

    def _parts(self, *, ended: bool) -> list[Read]:
        made: list[Read] = []
        while self._section is not None or self._held:
            if self._section is None:
                start, mark = self._found()
                if mark is None:
                    made += self._text(start if not ended else len(self._held))
                    break
                before = len(self._held[:start].rstrip())
                made += self._text(before)
                source = Source(self._held, start - before)
                self._section = _Section(source, mark, self._format.read(source, self._schemas), self._n_read)
            section = self._section
            for part in section.read(ended=ended):
                made += self._wanted(part)
            if not section.is_over:
                break
            self._section, self._held = None, section.source.text[section.end :]
            self._n_read += section.end
            if not section.end:
                made += self._text(section.source.start + max(1, len(section.mark)))
        return made

    def _wanted(self, part: CallPiece | ToolCall | CutCall) -> list[Read]:
        """Return a part with its number and id, unless the client does not expect it."""
        if self._most is not None and self._n_calls >= self._most:
            return []
        part = replace(part, number=self._n_calls, id=self._id())
        if isinstance(part, AnyCall):
            self._n_calls += 1
            self._next_id = ""
            self._has_text |= isinstance(part, CutCall)  # the rest of it is not another call without a mark
        return [part]

    def _id(self) -> str:
        """Return the id of the call that is read now."""
        if not self._next_id:
            self._next_id = secrets.token_hex(5)[:9] if self._format.short_ids else "call_" + secrets.token_hex(12)
        return self._next_id

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

    def _text(self, length: int) -> list[Read]:
        """Return the first characters as text, except for blanks after a call."""
        text, self._held = self._held[:length], self._held[length:]
        self._n_read += length
        if not text or (self._n_calls and not text.strip()):
            return []
        self._has_text |= not text.isspace()
        return [text]


class _Section:
    """The calls in a text that begins with `mark`. Once they are over, `end` is that of the last one; 0 without a call.
    The source has `offset` characters of the answer before it."""

    def __init__(self, source: Source, mark: str, steps: Steps[None], offset: int) -> None:
        self.source, self.mark, self.end, self.is_over = source, mark, 0, False
        self._steps, self._offset = steps, offset
        self._name = ""  # of the call that has begun
        self._pieces: list[str] = []
        self._new: list[str] = []  # pieces that have not been returned
        self._last: ToolCall | None = None  # returned when it is known which marks follow

    def read(self, *, ended: bool) -> Iterator[CallPiece | ToolCall | CutCall]:
        """Yield the parts of calls that are certain by now."""
        self.source.is_over = ended
        try:
            for step in self._steps:
                if step is WAIT:
                    yield from self._piece()
                    return
                yield from self._take(step)
            self.end = self.source.at
        except (UnfinishedError, ValueError, RecursionError) as error:
            if self._name:
                yield from self._piece()
                begin, self.end = self.end, self.source.at
                if isinstance(error, UnfinishedError):
                    self.end = len(self.source.text)
                yield CutCall(self._name, "".join(self._pieces), text=self.source.text[begin : self.end])
        yield from self._complete(self.end)
        self.is_over = True

    def _take(self, step: Step) -> Iterator[CallPiece | ToolCall]:
        if isinstance(step, Begun):
            yield from self._complete(self.end)
            self._name, self._pieces = step.name, []
            yield CallPiece(step.name)
        elif isinstance(step, str):
            self._new.append(step)
        else:
            yield from self._piece()
            span = (self._offset + (self.end or self.source.start), 0)
            self._last = ToolCall(self._name, "".join(self._pieces), span=span)
            self._name, self.end = "", self.source.at

    def _piece(self) -> Iterator[CallPiece]:
        if text := "".join(self._new):
            self._pieces.append(text)
            yield CallPiece(self._name, text)
        self._new = []

    def _complete(self, end: int) -> Iterator[ToolCall]:
        """Yield the last call, which ends here."""
        if self._last is not None:
            yield replace(self._last, span=(self._last.span[0], self._offset + end))
        self._last = None
