"""Reads answers that are several messages, each with a header that says what it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from edgespec.dialects.calls import AnswerPart, AnyCall, Format, Schemas, ToolParser
from edgespec.dialects.dialect import Dialect, Kind
from edgespec.dialects.forms import Arguments, format_of
from edgespec.dialects.source import begun


class PartsReader(ABC):
    """Reads an answer that arrives in pieces. `_kind` is what is read now; None: it is not known, or a header."""

    def __init__(self, kind: Kind | None = None) -> None:
        self._held = ""  # what is not certain yet
        self._kind = kind
        self._is_new = True  # nothing of the part has been returned

    @property
    def is_inside(self) -> bool:
        """True while the text is reasoning."""
        return self._kind == "thinking"

    def push(self, text: str) -> list[AnswerPart]:
        """Take more of the answer. Return the parts that are certain by now."""
        self._held += text
        return [*self._parts(is_over=False)]

    def end(self) -> list[AnswerPart]:
        """Return the rest at the end of the answer. Nothing in an answer is an error."""
        return [*self._parts(is_over=True)]

    @abstractmethod
    def _parts(self, *, is_over: bool) -> Iterator[AnswerPart]: ...


class MessagesReader(PartsReader):
    """Reads messages. A call is the body of a message to a known tool: JSON, or a call with marks."""

    def __init__(self, dialect: Dialect, schemas: Schemas | None, begun: str | None, most: int | None) -> None:
        super().__init__()
        assert dialect.messages is not None
        self._form, self._schemas, self._most = dialect.messages, schemas or {}, most
        self._dialect = dialect
        self._calls: ToolParser | None = None  # of a message that calls a tool
        self._n_calls = 0
        if begun is not None:
            self.push(begun.rpartition(self._form.start)[2])

    def _parts(self, *, is_over: bool) -> Iterator[AnswerPart]:
        while True:
            if self._kind is None:
                header, mark, rest = self._held.partition(self._form.header_end)
                if not mark:
                    is_header = "<|" in self._held or "to=" in self._held
                    if is_over and self._held.strip() and not is_header:
                        yield "answer", self._held
                        self._held = ""
                    return
                self._kind, tool = self._form.classify(header)
                self._calls = self._parser(tool) if self._kind == "drop" else None
                self._held, self._is_new = rest, True
            marks = [(at, mark) for mark in self._form.ends if (at := self._held.find(mark)) >= 0]
            at, mark = min(marks, default=(len(self._held), ""))
            if not mark and not is_over:
                at -= max((begun(self._held, each) for each in self._form.ends), default=0)
            text, self._held = self._held[:at], self._held[at:]
            if self._is_new:
                text = text.lstrip("\n")
            if text:
                self._is_new = False
                if self._kind != "drop":
                    yield self._kind, text
                elif self._calls is not None:
                    yield from self._of(self._calls.feed(text))
            if (mark or is_over) and self._calls is not None:
                yield from self._of(self._calls.end())
                self._calls = None
            if not mark:
                return
            self._held = self._held.removeprefix(mark).removeprefix(self._form.start)
            self._kind = None

    def _parser(self, tool: str) -> ToolParser:
        calls = self._dialect.calls
        format = Format((), Arguments(tool), bare=True)
        if calls is not None and calls.form == "tagged":
            format = format_of(calls)
        return ToolParser(format, self._schemas, self._most, self._n_calls)

    def _of(self, parts: Iterable[AnswerPart | str]) -> Iterator[AnswerPart]:
        """Yield the calls of a message, without a text around them."""
        for part in parts:
            if isinstance(part, AnyCall):
                self._n_calls += 1
            if not isinstance(part, str):
                yield part
