"""The tokens of an answer in the colours of their drafters, over the answer as it is shown: with its Markdown."""

from __future__ import annotations

import colorsys
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Literal

from textual.app import App
from textual.color import Color
from textual.content import Content, Span

from edgespec.drafters.registry import REGISTRY, Entry
from edgespec.text.thinking import CLOSE, OPEN
from edgespec.tui.lines import Block, WrappedText, shown
from edgespec.tui.markdown import Code, Table

TINT = "30%"  # how much of a drafter's colour is mixed into the background
HUES = ("red", "yellow", "green", "cyan", "blue", "magenta")  # of terminals with 16 colours
GONE = Entry("", "")  # stands for a drafter that an answer of an earlier version names
SLACK = 200  # characters of an answer between two blocks that are not shown: marks, addresses of links
WORD = re.compile(r"\w+")
Palette = Literal["tints", "ansi", "none"]
"""How drafters are told apart: by the tint of the background, by 16 colours and the face of the text, or by the face
alone."""
Segment = tuple[int, int, int, int]
"""The same characters in a shown text and in the answer: where they begin and end in the one, and in the other."""


def palette_of(app: App[object]) -> Palette:
    """Return how an app can show the colours of drafters."""
    return "none" if app.no_color else "ansi" if app.current_theme.ansi else "tints"


def style_of(source: str, palette: Palette = "tints") -> str:
    """Return the style of a drafter's tokens; "" for the target model's own tokens."""
    if not source:
        return ""
    entry = REGISTRY.get(source, GONE)
    if palette == "tints":
        return f"on {entry.colour} {TINT}"
    if palette == "none":
        return entry.face
    red, green, blue = Color.parse(entry.colour).normalized
    hue = colorsys.rgb_to_hls(red, green, blue)[0]
    return f"{entry.face} ansi_{HUES[round(hue * len(HUES)) % len(HUES)]}"


def named(sources: Iterable[str], palette: Palette = "tints") -> Content:
    """Return the names of drafters in their styles."""
    return Content(" ").join(Content.styled(f" {source} ", style_of(source, palette)) for source in sources)


def legend(sources: Iterable[str], palette: Palette = "tints") -> Content:
    """Return the meaning of the colours."""
    names = named(sources, palette)
    drafted = Content.assemble("drafted by ", names, "  ") if names else Content("")
    return Content.assemble(drafted, ("target model: no colour", "dim"))


class TokenColours:
    """The text of an answer as it grows, with a style for each token; finds the tokens in blocks that show the text."""

    def __init__(self) -> None:
        self.text = ""
        self._ends: list[int] = []  # where each token ends in the text
        self._styles: list[str] = []
        self._places: list[int] = []  # where the answer continues after each block
        self._at = 0  # where the next characters are looked for

    def add(self, text: str, style: str) -> None:
        if text := shown(text):
            self.text += text
            self._ends.append(len(self.text))
            self._styles.append(style)

    def coloured(self, keep: int, blocks: Sequence[Block]) -> list[Block]:
        """Return blocks of the answer with the styles of their tokens. They follow the first `keep` blocks of earlier
        calls."""
        if not self._ends:
            return [*blocks]
        del self._places[keep:]
        result = []
        for block in blocks:
            self._at = self._places[-1] if self._places else self._n_thought
            result.append(self._coloured(block))
            self._places.append(self._at)
        return result

    def over_thought(self, blocks: Sequence[Block]) -> list[Block]:
        """Return the blocks of the reasoning with the styles of their tokens."""
        self._at = 0
        return [self._coloured(block) if block.is_text and self._ends else block for block in blocks]

    @property
    def _n_thought(self) -> int:
        """The characters of the reasoning, which precedes the answer."""
        return self.text.find(CLOSE) + len(CLOSE) if self.text.lstrip().startswith(OPEN) and CLOSE in self.text else 0

    def _coloured(self, block: Block) -> Block:
        if isinstance(block, WrappedText):
            return replace(block, content=self._over(block.content))
        if isinstance(block, Code):
            return replace(block, marks=(*self._spans(block.shown),))
        if isinstance(block, Table):
            return replace(block, rows=tuple(tuple(map(self._over, row)) for row in block.rows))
        return block

    def _over(self, content: Content) -> Content:
        return content.add_spans([*self._spans(content.plain)])

    def _spans(self, text: str) -> Iterator[Span]:
        """Yield a span for each token in a shown text, and go on after it in the answer."""
        for start, end, first, last in segments(text, self.text, self._at):
            index = bisect_right(self._ends, first)
            begin = first
            while begin < last and index < len(self._ends):
                stop = min(self._ends[index], last)
                if self._styles[index]:
                    span = start + begin - first, min(end, start + stop - first)
                    if span[0] < span[1]:
                        yield Span(*span, self._styles[index])
                begin, index = stop, index + 1
            self._at = last


def segments(text: str, answer: str, at: int) -> list[Segment]:
    """Return where the characters of a shown text are in an answer, from `at` on.

    Markdown leaves out marks and addresses, and may show other characters in place of some. Then the words are
    compared, and what is between two common words belongs together.
    """
    most = at + 2 * len(text) + SLACK
    if (found := answer.find(text, at, most)) >= 0:
        return [(0, len(text), found, found + len(text))]
    shown_words, words = [*WORD.finditer(text)], [*WORD.finditer(answer, at, most)]
    matcher = SequenceMatcher(None, [word[0] for word in shown_words], [word[0] for word in words], autojunk=False)
    result: list[Segment] = []

    def add(start: int, end: int, first: int, last: int) -> None:
        if result and (result[-1][1], result[-1][3]) == (start, first):
            start, _, first, _ = result.pop()
        result.append((start, end, first, last))

    def add_between(end: int, last: int) -> None:
        """Add the characters up to the next common word: those of the text are a part of those of the answer."""
        start, first = (result[-1][1], result[-1][3]) if result else (0, at)
        for index in range(start, end):
            place = answer.find(text[index], first, last)
            if place >= 0:
                add(index, index + 1, place, place + 1)
                first = place + 1

    for i, j, n in matcher.get_matching_blocks():
        for mine, theirs in zip(shown_words[i : i + n], words[j : j + n], strict=True):
            add_between(mine.start(), theirs.start())
            add(*mine.span(), *theirs.span())
    add_between(len(text), most)
    return result
