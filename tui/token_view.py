"""Shows which drafter proposed each token of an answer, and where each step of the model begins.

Each drafter has its own colour and text style (underlined, bold, reversed), so that they can also be
distinguished without colours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.content import Content

from edgespec.drafters.registry import REGISTRY
from edgespec.history import Piece
from edgespec.text.printable import printable
from edgespec.tui.lines import Text

STEP = ("╎", "dim")
OTHER = "italic $text-success"  # for any other drafter


class TokenText:
    """The tokens of an answer as lines, also while they stream."""

    def __init__(self) -> None:
        self.sources: set[str] = set()
        self._n_complete = 0  # lines that are complete
        self._line: list[tuple[str, str]] = []
        self._step: int | None = None

    def add(self, pieces: Iterable[Piece]) -> tuple[int, list[Text]]:
        """Add tokens; return how many of the previous lines stay, and the lines after them."""
        keep = self._n_complete
        blocks: list[Text] = []
        for piece in pieces:
            style = _style(piece.source) if piece.source else ""
            if piece.source:
                self.sources.add(piece.source)
            if piece.round != self._step:
                if self._step is not None:
                    self._line.append(STEP)
                self._step = piece.round
            *ended, rest = printable(piece.text.replace("\r\n", "\n")).split("\n")
            for text in ended:
                self._line.append((f"{text}↵", style))
                blocks.append(self._block())
                self._line.clear()
                self._n_complete += 1
            if rest:
                self._line.append((rest, style))
        if self._line:
            blocks.append(self._block())
        return keep, blocks

    def _block(self) -> Text:
        return Text(Content.assemble(*self._line))


def legend(sources: Sequence[str]) -> Content:
    """Return the meaning of the marks, with the name of each drafter in its style."""
    named = [part for source in sources for part in (" · ", (source, _style(source)))][1:]
    drafted = ["  drafted by ", *named] if named else []
    return Content.assemble("plain: target model", *drafted, "  ", STEP, " new model step")


def _style(source: str) -> str:
    """The style of a drafter's tokens; an answer of an earlier version may name a drafter that is gone."""
    return REGISTRY[source].style if source in REGISTRY else OTHER
