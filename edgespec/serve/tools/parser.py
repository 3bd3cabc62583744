"""Finds tool calls in an answer that arrives in pieces."""

from __future__ import annotations

import re
import secrets

from edgespec.serve.chat import Piece, ToolDelta
from edgespec.serve.tools.formats import Format, Schemas, UnfinishedError

_BARE = re.compile(r"[\s;]*(\{|\Z)")


class ToolParser:
    """Separates the calls of one answer from its text. A call is sent when it is complete. A text that only looks like
    a call stays text. Calls after the first `most` are left out, since the client does not expect them."""

    def __init__(self, format: Format, schemas: Schemas, most: int | None = None) -> None:
        self._format, self._schemas, self._most = format, schemas, most
        self._held = ""
        self._n_calls = 0
        self._has_text = False

    def feed(self, index: int, text: str) -> list[Piece]:
        self._held += text
        return self._pieces(index, ended=False)

    def end(self, index: int) -> list[Piece]:
        made = self._pieces(index, ended=True)
        self._held = ""
        return made

    def _pieces(self, index: int, *, ended: bool) -> list[Piece]:
        made: list[Piece] = []
        while self._held:
            start, mark = self._found()
            if mark is None:
                self._tell(index, start if not ended else len(self._held), made)
                break
            try:
                calls, length = self._format.read(self._held[start:], self._schemas, ended)
            except (UnfinishedError, ValueError) as error:
                if isinstance(error, UnfinishedError) and not ended:
                    self._tell(index, len(self._held[:start].rstrip()), made)
                    break
                self._tell(index, start + max(1, len(mark)), made)
                continue
            rest = self._held[start + length :]
            self._tell(index, len(self._held[:start].rstrip()), made)
            self._held = rest
            for call in calls if self._most is None else calls[: max(0, self._most - self._n_calls)]:
                delta = ToolDelta(self._n_calls, self._new_id(), call.name, call.arguments)
                made.append(Piece(index, tool=delta))
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

    def _tell(self, index: int, length: int, made: list[Piece]) -> None:
        """Send the first characters as text, except for blanks after a call."""
        text, self._held = self._held[:length], self._held[length:]
        if self._n_calls and not text.strip():
            return
        if text:
            self._has_text |= not text.isspace()
            made.append(Piece(index, text))

    def _new_id(self) -> str:
        return secrets.token_hex(5)[:9] if self._format.short_ids else "call_" + secrets.token_hex(12)


def _overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    return next((n for n in range(len(mark) - 1, 0, -1) if text.endswith(mark[:n])), 0)
