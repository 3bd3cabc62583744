"""Separates a model's reasoning (`<think>...</think>`) from its answer, also while the text streams."""

from __future__ import annotations

from typing import Literal

OPEN, CLOSE = "<think>", "</think>"

Kind = Literal["thinking", "answer"]
Part = tuple[Kind, str]


class ThinkingStream:
    """Splits a text that arrives in pieces. Only reasoning at the beginning counts: `<think>` later on is part of the
    text. With `opened` the text begins after the opening mark; `trims` leaves out blank lines around the marks."""

    def __init__(self, *, opened: bool = False, trims: bool = False) -> None:
        self._held = ""  # what may yet become a mark, or blank lines that may be the end of the reasoning
        self._kind: Kind | None = "thinking" if opened else None
        self._trims, self._is_new = trims, opened

    @property
    def is_inside(self) -> bool:
        """True while the text is reasoning."""
        return self._kind == "thinking"

    def push(self, text: str) -> list[Part]:
        """The parts that are certain by now, without marks."""
        self._held += text
        parts: list[Part] = []
        if self._kind is None:
            start = self._held.lstrip()
            if OPEN.startswith(start):
                return parts  # nothing yet, or the beginning of a mark
            self._kind = "thinking" if start.startswith(OPEN) else "answer"
            if self._kind == "thinking":
                self._held, self._is_new = start.removeprefix(OPEN), True
        if self._kind == "thinking":
            thought, mark, rest = self._begun(self._held).partition(CLOSE)
            settled = self._ended(thought if mark else thought.removesuffix(_mark_begun(thought)))
            if settled:
                parts.append(("thinking", settled))
                self._is_new = False
            self._held = thought[len(settled) :]
            if not mark:
                return parts
            self._kind, self._held, self._is_new = "answer", rest, True
        if text := self._begun(self._held):
            parts.append(("answer", text))
            self._is_new = False
        self._held = ""
        return parts

    def end(self) -> list[Part]:
        """The held-back text, once the stream has ended."""
        held, self._held = self._ended(self._held) if self._kind == "thinking" else self._held, ""
        return [(self._kind or "answer", held)] if held else []

    def _begun(self, text: str) -> str:
        return text.lstrip("\n") if self._trims and self._is_new else text

    def _ended(self, text: str) -> str:
        return text.rstrip("\n") if self._trims else text


def split(content: str) -> list[Part]:
    """Reasoning and answer of a whole message, without marks and the blank lines between them."""
    stream = ThinkingStream(trims=True)
    return [*stream.push(content), *stream.end()]


def is_open(content: str) -> bool:
    """Return whether a message ends inside of reasoning."""
    stream = ThinkingStream()
    stream.push(content)
    return stream.is_inside


def without_thinking(content: str) -> str:
    """The answer alone."""
    return "".join(text for kind, text in split(content) if kind == "answer")


def _mark_begun(text: str) -> str:
    """The end of `text` that may become the closing mark."""
    return next((CLOSE[:n] for n in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:n])), "")
