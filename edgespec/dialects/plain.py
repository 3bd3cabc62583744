"""Writes answers of any dialect as text with the same marks: `<think>` around reasoning, `<tool_call>` around calls."""

from __future__ import annotations

from collections.abc import Iterable

from edgespec.dialects.calls import AnswerPart, AnyCall, CallPiece, Schemas, ToolCall
from edgespec.dialects.dialect import HERMES, THINK, Dialect
from edgespec.dialects.reader import reader

_OPEN, _CLOSE = THINK


class PlainText:
    """The text of one answer, which arrives in pieces.

    Reasoning is written between `<think>` marks at the beginning, also if the prompt has opened it. The calls in an
    answer of several messages are written as JSON between `<tool_call>` marks. Other calls stay in the form of the
    model.

    Args:
        opened: What the prompt has begun of the answer, as `Dialect.opened` returns it.
        begun: The part of the answer that exists already, as the model writes it.
        schemas: The parameters of the tools.
        hides: Leave out the reasoning: what follows it is for a program.
    """

    def __init__(
        self, dialect: Dialect, opened: str | None, begun: str, schemas: Schemas, *, hides: bool = False
    ) -> None:
        has_marks = dialect.reasoning not in (None, THINK) or any(dialect.content) or bool(dialect.silent)
        self._reader = None
        self._is_thinking = False
        self._before = ""  # the reasoning that the prompt has opened
        self._hides = hides
        if dialect.messages is not None or has_marks or hides:
            self._reader = reader(dialect, schemas if dialect.messages is not None else None, opened=opened)
            self._written(self._reader.push(begun))
            self._is_thinking = self._reader.is_inside if begun else False
        elif opened is not None and not begun:
            self._before = f"{_OPEN}{opened or chr(10)}"

    def push(self, text: str) -> str:
        """Take more of the answer. Return the text that is certain by now."""
        if self._reader is not None:
            return self._written(self._reader.push(text))
        text, self._before = self._before + text, ""
        return text

    def end(self) -> str:
        """Return the rest of the text at the end of the answer."""
        if self._reader is None:
            return ""
        is_inside = self._reader.is_inside
        rest = self._written(self._reader.end())
        return rest + (self._closed() if not is_inside else "")

    def _written(self, parts: Iterable[AnswerPart]) -> str:
        text = ""
        for part in parts:
            if isinstance(part, CallPiece):
                continue  # the whole call follows
            if isinstance(part, AnyCall):
                open, close = HERMES.call
                text += f'{self._closed()}{open}\n{{"name": "{part.name}", "arguments": {part.arguments}'
                text += f"}}\n{close}" if isinstance(part, ToolCall) else ""
            elif part[0] == "thinking":
                if self._hides:
                    continue
                text += part[1] if self._is_thinking else f"{_OPEN}\n{part[1]}"
                self._is_thinking = True
            else:
                text += self._closed() + part[1]
        return text

    def _closed(self) -> str:
        """Return the end of the reasoning if it is open in the text."""
        was_thinking, self._is_thinking = self._is_thinking, False
        return f"\n{_CLOSE}\n\n" if was_thinking else ""
