"""Separates the reasoning, the content and the calls of an answer that arrives in pieces."""

from __future__ import annotations

from collections.abc import Iterator

from edgespec.dialects.calls import AnswerPart, Schemas, ToolParser
from edgespec.dialects.dialect import Dialect
from edgespec.dialects.forms import format_of, or_bare
from edgespec.dialects.messages import MessagesReader, PartsReader
from edgespec.dialects.source import begun


def reader(
    dialect: Dialect,
    schemas: Schemas | None = None,
    *,
    opened: str | None = None,
    most: int | None = None,
    is_forced: bool = False,
) -> PartsReader:
    """Return a reader of an answer.

    Args:
        schemas: The parameters of the tools; None: calls are not looked for.
        opened: What the prompt has written of the answer's reasoning; None: the answer is not inside of reasoning.
        most: The most calls that the client expects.
        is_forced: The answer has to call a tool, and may do that in JSON without marks.
    """
    if dialect.messages is not None:
        return MessagesReader(dialect, schemas, opened, most)
    return AnswerReader(dialect, schemas, opened, most, is_forced=is_forced)


class AnswerReader(PartsReader):
    """Reads answers with marks: reasoning at the beginning, then content and calls."""

    def __init__(
        self,
        dialect: Dialect,
        schemas: Schemas | None,
        opened: str | None,
        most: int | None,
        *,
        is_forced: bool = False,
    ) -> None:
        self._open, self._close = dialect.reasoning or ("", "")
        is_open = opened is not None and bool(self._close)
        super().__init__("thinking" if is_open else None if self._close else "answer")
        self._calls = None
        if schemas is not None and dialect.calls is not None:
            format = format_of(dialect.calls)
            self._calls = ToolParser(or_bare(format) if is_forced else format, schemas, most)
        begins = (dialect.content[0], *(self._calls.marks if self._calls else ()))
        self._begins = tuple(filter(None, begins))
        self._drops = tuple(filter(None, (*dialect.content, *dialect.silent)))
        self._held = opened.lstrip("\n") if opened else ""
        self._is_new = is_open

    def _parts(self, *, is_over: bool) -> Iterator[AnswerPart]:
        if self._kind is None:
            start = self._held.lstrip()
            if (self._open.startswith(start) or self._close.startswith(start)) and not is_over and start != self._close:
                return
            if start.startswith(self._close):  # some write only the mark that ends it
                start = self._open + start
            self._kind = "thinking" if self._open and start.startswith(self._open) else "answer"
            if self._kind == "thinking":
                self._held, self._is_new = start.removeprefix(self._open), True
        if self._kind == "thinking":
            yield from self._thought(is_over=is_over)
        if self._kind == "answer":
            yield from self._said(is_over=is_over)

    def _thought(self, *, is_over: bool) -> Iterator[AnswerPart]:
        text = self._held.lstrip("\n") if self._is_new else self._held
        marks = [(place, mark) for mark in (self._close, *self._begins) if (place := text.find(mark)) >= 0]
        place, mark = min(marks, default=(len(text), ""))
        thought = text[:place]
        if not mark and not is_over:
            held = max((begun(text, each) for each in (self._close, *self._begins)), default=0)
            thought = text[: len(text) - held]
        settled = thought.rstrip("\n")
        if settled:
            yield "thinking", settled
            self._is_new = False
        self._held = text[len(settled) :]
        if mark:
            self._kind, self._is_new = "answer", True
            self._held = text[place + len(mark) :] if mark == self._close else text[place:]
        elif is_over:
            self._held = ""

    def _said(self, *, is_over: bool) -> Iterator[AnswerPart]:
        text = self._held.lstrip("\n") if self._is_new else self._held
        for mark in self._drops:
            text = text.replace(mark, "")
        held = 0 if is_over else max((begun(text, mark) for mark in self._drops), default=0)
        said, self._held = text[: len(text) - held], text[len(text) - held :]
        if said:
            self._is_new = False
        parts = self._calls.feed(said) if self._calls else [said] if said else []
        if is_over and self._calls:
            parts += self._calls.end()
        for part in parts:
            yield ("answer", part) if isinstance(part, str) else part
