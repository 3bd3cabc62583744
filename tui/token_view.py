"""The tokens of an answer in the colours of their drafters, over the answer as it is shown: with its Markdown."""

from __future__ import annotations

import colorsys
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
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
NEAR, FAR = 40, 400  # characters between two words that are not shown: marks; the address of a link
WORD = re.compile(r"\w+")
Palette = Literal["tints", "ansi", "none"]
"""The marks of drafters: a tint of the background; one of 16 colours and a text style; or a text style alone."""
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
        self._text, self._new = "", list[str]()  # of the answer; the texts that are not in it yet
        self._n = 0  # characters of both
        self._ends: list[int] = []  # where each token ends in the text
        self._styles: list[str] = []
        self._places: list[int] = []  # where the answer continues after each block
        self._at = 0  # where the next characters are looked for

    def add(self, text: str, style: str) -> None:
        if text := shown(text):
            self._new.append(text)
            self._n += len(text)
            self._ends.append(self._n)
            self._styles.append(style)

    @property
    def text(self) -> str:
        """The answer so far."""
        if self._new:
            self._text += "".join(self._new)
            self._new.clear()
        return self._text

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
        """Yield a span for each token in a shown text, and continue after it in the answer."""
        for start, end, first, last in segments(text, self.text, self._at):
            index = bisect_right(self._ends, first)
            self._at = last
            while first < last and index < len(self._ends):
                n = min(self._ends[index], last) - first
                if self._styles[index]:
                    yield Span(start, min(end, start + n), self._styles[index])
                start, first, index = start + n, first + n, index + 1


def segments(text: str, answer: str, at: int) -> list[Segment]:
    """Return where the characters of a shown text are in an answer, from `at` on.

    Markdown leaves out marks and addresses, and may show other characters in place of some. Then each word is looked
    for a little further on, and the characters between two words that were found belong together.
    """
    if (found := answer.find(text, at, at + len(text) + FAR)) >= 0:
        return [(0, len(text), found, found + len(text))]
    result: list[Segment] = []
    end = 0  # of the characters that were looked for

    def add(start: int, end: int, first: int) -> None:
        if result and (result[-1][1], result[-1][3]) == (start, first):
            start, _, first, _ = result.pop()
        result.append((start, end, first, first + end - start))

    def add_between(stop: int, last: int) -> None:
        """Add the characters before a word: those of the text are a part of those of the answer."""
        nonlocal at
        for index in range(end, stop):
            place = answer.find(text[index], at, min(last, at + NEAR))
            if place >= 0:
                add(index, index + 1, place)
                at = place + 1

    words = [*WORD.finditer(text)]
    for word, following in zip_longest(words, words[1:]):
        place = _find(word[0], answer, at, NEAR)
        if place < 0:  # after an address, or the word is there by chance
            place = _find(word[0], answer, at, FAR)
            if following is not None and _find(following[0], answer, place + len(word[0]), NEAR) < 0:
                place = -1
        if place >= 0:
            add_between(word.start(), place)
            add(word.start(), word.end(), place)
            end, at = word.end(), place + len(word[0])
    add_between(len(text), len(answer))
    return result


def _find(word: str, answer: str, at: int, within: int) -> int:
    """Return where a word begins within some characters; -1 if it does not. A part of a longer word does not count."""
    stop = at + within + len(word)
    while (place := answer.find(word, at, stop)) >= 0:
        at = place + 1
        if not (answer[place - 1 : place].isalnum() or answer[place + len(word) : place + len(word) + 1].isalnum()):
            return place
    return -1
