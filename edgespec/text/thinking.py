"""Separates a model's reasoning (`<think>...</think>`) from its answer, also while the text streams."""

from __future__ import annotations

from typing import Literal

OPEN, CLOSE = "<think>", "</think>"

Kind = Literal["thinking", "answer"]
Part = tuple[Kind, str]


class ThinkingStream:
    """Splits a text that arrives in pieces. Only reasoning at the beginning counts: `<think>` later on is part of the
    text."""

    def __init__(self) -> None:
        self._held = ""  # what may yet become a mark
        self._kind: Kind | None = None

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
                self._held = start.removeprefix(OPEN)
        if self._kind == "thinking":
            thought, mark, rest = self._held.partition(CLOSE)
            kept = "" if mark else _mark_begun(thought)
            settled = thought.removesuffix(kept)
            if settled:
                parts.append(("thinking", settled))
            self._held = kept
            if not mark:
                return parts
            self._kind, self._held = "answer", rest
        if self._held:
            parts.append(("answer", self._held))
            self._held = ""
        return parts

    def end(self) -> list[Part]:
        """The held-back text, once the stream has ended."""
        held, self._held = self._held, ""
        return [(self._kind or "answer", held)] if held else []


def split(content: str) -> list[Part]:
    """Reasoning and answer of a whole message, without marks and the blank lines between them."""
    stream = ThinkingStream()
    parts = [*stream.push(content), *stream.end()]
    if len(parts) > 1 or (parts and parts[0][0] == "thinking"):
        parts = [(kind, text.strip("\n")) for kind, text in parts]
    return [(kind, text) for kind, text in parts if text]


def without_thinking(content: str) -> str:
    """The answer alone."""
    return "".join(text for kind, text in split(content) if kind == "answer")


def _mark_begun(text: str) -> str:
    """The end of `text` that may become the closing mark."""
    return next((CLOSE[:n] for n in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:n])), "")
