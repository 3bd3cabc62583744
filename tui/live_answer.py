"""A streaming answer as blocks; also as tokens, marked with the drafter of each and the steps of the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from time import perf_counter

from textual.content import Content

from edgespec.chat.attachments import Attachment, described
from edgespec.drafters.registry import REGISTRY
from edgespec.events import TokenEvent
from edgespec.history import Piece
from edgespec.text.figures import clock
from edgespec.text.printable import one_line, printable
from edgespec.text.thinking import ThinkingStream
from edgespec.tui.lines import Block, Text, clickable, quoted
from edgespec.tui.markdown import GrowingMarkdown

STEP = ("╎", "dim")
OTHER = "italic $text-success"  # for any other drafter


class TokenText:
    """The tokens of an answer as lines, also while they stream.

    Each drafter has its own colour and text style (underlined, bold, reversed), so that they can also be distinguished
    without colours.
    """

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


class LiveAnswer:
    """Collects tokens and returns the blocks that have changed; the complete part of an answer stays as it is."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._stream = ThinkingStream()
        self.is_thinking = False
        self._thought, self._n_thought = "", 0
        self._thinking_s: tuple[float, float] | None = None  # when the reasoning began, and when its last token arrived
        self._markdown, self._new_text = GrowingMarkdown(), ""
        self._answer: list[Block] = []
        self._tokens, self._n_taken = TokenText(), 0
        self._shown_as: tuple[object, ...] = ()

    def add(self, events: Iterable[TokenEvent]) -> None:
        for event in events:
            if event.id >= 0:
                self.pieces.append(Piece(event.id, event.text, event.source if event.from_draft else "", event.round))
            parts = self._stream.push(event.text)
            for kind, text in parts:
                self.is_thinking = kind == "thinking"
                if self.is_thinking:
                    self._thought += text
                    now_s = perf_counter()
                    self._thinking_s = (self._thinking_s or (now_s, now_s))[0], now_s
                else:
                    self._new_text += shown(text)
            self._n_thought += _is_thought(parts)

    @property
    def sources(self) -> set[str]:
        """The drafters of the tokens that are shown."""
        return self._tokens.sources

    def blocks(self, *, as_tokens: bool, opens_thought: bool) -> tuple[int, list[Block]]:
        """Return how many blocks of the last call stay, and the blocks after them."""
        if as_tokens:
            if self._shown_as != (True,):
                self._tokens, self._n_taken = TokenText(), 0
            self._shown_as = (True,)
            new, self._n_taken = self.pieces[self._n_taken :], len(self.pieces)
            keep, lines = self._tokens.add(new)
            return keep, list(lines)
        keep = len(self._answer)
        if self._new_text:
            keep, blocks = self._markdown.append(self._new_text)
            self._answer[keep:] = blocks
            self._new_text = ""
        thought: list[Block] = []
        if self._thought:
            began_s, last_s = self._thinking_s or (0.0, 0.0)
            length = thought_length(last_s - began_s, self._n_thought)
            thought = thought_blocks(self._thought, length, is_open=opens_thought, goes_on=self.is_thinking)
        shown_as = (False, opens_thought, self.is_thinking, len(thought))
        if self.is_thinking or shown_as != self._shown_as:
            self._shown_as = shown_as
            return 0, [*thought, *self._answer]
        return len(thought) + keep, self._answer[keep:]


def thought_length(seconds: float, n_tokens: int) -> str:
    """Return the duration and the number of tokens of reasoning, in words."""
    took = f"{seconds:.0f} s" if seconds < 60 else clock(seconds)
    return f"{took}, {n_tokens:,} tokens" if seconds >= 1 else f"{n_tokens:,} tokens"


def thought_blocks(thought: str, length: str, *, is_open: bool, goes_on: bool = False) -> list[Block]:
    """Return the line that unfolds the reasoning, and the reasoning if it is unfolded."""
    said = f"{'▾' if is_open else '▸'} {'thinking' if goes_on else 'thought for'} {length}{' …' if goes_on else ''}"
    blocks: list[Block] = [Text(clickable(Content.styled(said, "italic dim"), "open"), is_text=False)]
    if is_open:
        blocks.append(quoted(shown(thought).strip("\n")))
    return blocks


def file_blocks(files: Sequence[Attachment], opened: Collection[int], limit: int) -> list[Block]:
    """Return a line for each file of a message, which unfolds it, and up to `limit` characters of the `opened` ones."""
    blocks: list[Block] = []
    for index, file in enumerate(files):
        is_open = index in opened
        name = f"{'▾' if is_open else '▸'} {one_line(file.name)}"
        line = Content.assemble((name, "bold"), (f"  {described([file])}", "dim"))
        blocks.append(Text(clickable(line, f"open_file({index})")))
        if is_open:
            text = shown(file.text)
            more = f"\n… {len(text) - limit:,} more characters" if len(text) > limit else ""
            blocks.append(quoted(text[:limit] + more))
    return blocks


def count_thought(pieces: Iterable[Piece]) -> int:
    """Return how many tokens of an answer are reasoning."""
    stream = ThinkingStream()
    return sum(_is_thought(stream.push(piece.text)) for piece in pieces)


def _is_thought(parts: Sequence[tuple[str, str]]) -> bool:
    return any(kind == "thinking" for kind, _ in parts)


def shown(text: str) -> str:
    """Return a text without control characters."""
    return printable(text.replace("\r\n", "\n"))
