"""The statistics of an answer: counted from its tokens, and shown as a panel or as one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Self

from textual.content import Content
from textual.widget import Widget

from edgespec.core.stats import Stats
from edgespec.events import TokenEvent
from edgespec.text.figures import faster, percent, rate

GAUGE = 10  # cells of the gauge in a line
ABOVE = 8  # lines of the panel above the context
BARS = "▁▂▃▄▅▆▇█"
Part = str | tuple[str, str]


class LiveStatistics:
    """The statistics since `started_s`, None for no answer. Times are in seconds, `context_used` and `context_size` in
    tokens."""

    def __init__(self, started_s: float | None = None, context_used: int = 0, context_size: int = 0) -> None:
        self.context_used, self.context_size = context_used, context_size
        self.stats = Stats()  # without times until the answer is complete
        self.draft_lengths: list[int] = []  # the draft length of each step
        self.elapsed_s = 0.0
        self._started_s = started_s or 0.0
        self._is_live = started_s is not None
        self._first_s, self._n_first = 0.0, 0  # the time of the first tokens, and their number
        self._last_s = 0.0
        self._round: int | None = None

    def add(self, events: Iterable[TokenEvent], now_s: float, context_used: int) -> None:
        """Count new events, possibly none."""
        self.elapsed_s, self.context_used, stats = now_s - self._started_s, context_used, self.stats
        before = stats.generated_tokens
        for event in events:
            if event.id < 0:
                continue
            stats.generated_tokens += 1
            stats.accepted += event.from_draft
            if event.round != self._round:
                self._round = event.round
                stats.rounds += 1
                stats.proposed += event.proposed
                self.draft_lengths.append(event.proposed)
        if stats.generated_tokens > before:
            self._last_s = now_s
            if not before:
                self._first_s, self._n_first = now_s, stats.generated_tokens

    def finish(self, stats: Stats | None) -> Self:
        """Take over the statistics of the complete answer, if there are any."""
        self._is_live = False
        if stats is not None:
            self.stats, self.elapsed_s = stats, stats.prompt_s + stats.generation_s
        return self

    @property
    def is_empty(self) -> bool:
        """True before the first answer of a chat."""
        return not (self._is_live or self.stats.generated_tokens or self.context_used)

    @property
    def is_waiting(self) -> bool:
        """True before the first token."""
        return self._is_live and not self.stats.generated_tokens

    @property
    def tokens_per_s(self) -> float | None:
        """The rate after the first tokens, which belong to the pass of the prompt; None before there are others."""
        if self.stats.generation_s:
            return self.stats.tokens_per_s if self.stats.generated_tokens > 1 else None
        took_s = self._last_s - self._first_s
        return (self.stats.generated_tokens - self._n_first) / took_s if took_s > 0 else None

    def words(self) -> list[str]:
        """Return the known figures in words, the most important first: the speed, and the gain of drafting."""
        stats, speed = self.stats, self.tokens_per_s
        parts = [f"{rate(speed)} tok/s" if speed is not None else "", self.gain]
        if stats.proposed:
            parts += [
                f"{percent(stats.acceptance_rate)} of drafts accepted",
                f"{stats.tokens_per_round:.1f} tokens per step",
            ]
        return [*filter(None, parts)]

    @property
    def gain(self) -> str:
        """The speed-up over plain decoding in words; empty until the answer is complete."""
        return faster(self.stats.speedup, self.stats.generated_tokens) if self.stats.generation_s else ""

    @property
    def context_fill(self) -> float | None:
        """The used part of the context, from 0 to 1; None if its size is unknown."""
        return min(1.0, self.context_used / self.context_size) if self.context_size else None


class Figures(Widget):
    """Shows the statistics of an answer. Has the class `-empty` without any."""

    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, classes="-empty")
        self.figures = LiveStatistics()

    def show(self, figures: LiveStatistics) -> None:
        """Show these statistics as they are now."""
        self.figures = figures
        self.set_class(figures.is_empty, "-empty")
        self.refresh()


class StatisticsLine(Figures):
    """Shows how full the context is; on narrow screens the other figures are below the answer."""

    def render(self) -> Content:
        figures = self.figures
        if figures.context_fill is None:
            return Content("")
        text = f" {percent(figures.context_fill)} of {figures.context_size:,} tokens"
        return Content.assemble("context ", *_gauge(figures.context_fill, GAUGE), text)


class AllFigures(Figures):
    """Shows all statistics and a history of draft lengths. The height is constant, so that nothing jumps."""

    def render(self) -> Content:
        figures, width = self.figures, max(4, self.content_size.width)
        lines: list[list[Part]] = [[] for _ in range(ABOVE)]
        if figures.is_waiting:
            lines[0] = [(f"reading, {figures.elapsed_s:.1f} s", "dim")]
        elif figures.stats.generated_tokens:
            known = [*self._known()]
            lines[: len(known)] = known
            if figures.draft_lengths:  # unknown of an answer of an earlier start
                longest = max(figures.draft_lengths[-width:])
                lines[-2] = [f"draft length, up to {longest}" if longest else "draft length"]
                lines[-1] = [(bars(figures.draft_lengths, width), "$text-success")]
        lines += [
            [],
            ["context", *([f" {percent(figures.context_fill)}"] if figures.context_fill is not None else [])],
            _gauge(figures.context_fill or 0.0, width),
            [(f"{figures.context_used:,} of {figures.context_size:,}" if figures.context_size else "", "dim")],
        ]
        return Content("\n").join(Content.assemble(*line) for line in lines)

    def _known(self) -> Iterator[list[Part]]:
        """Yield a line for each known figure."""
        figures, stats = self.figures, self.figures.stats
        if figures.tokens_per_s is not None:
            yield [(rate(figures.tokens_per_s), "bold"), " tok/s"]
        if stats.proposed:
            yield [(f"{stats.tokens_per_round:.1f}", "bold"), " tokens per step"]
            yield [(percent(stats.acceptance_rate), "bold"), " of drafts accepted"]
            if gain := figures.gain:
                yield [(gain, "$text-success" if gain[0].isdigit() else "")]
        n_tokens = stats.generated_tokens
        yield [(f"{n_tokens:,} token{'s' * (n_tokens != 1)}, {figures.elapsed_s:.1f} s", "dim")]


class StatisticsPanel(AllFigures):
    """The statistics next to the messages."""


class StatisticsBelow(AllFigures):
    """The statistics below the list of chats, where there are no columns for them next to the messages."""


def bars(lengths: Sequence[int], width: int) -> str:
    """Return the last `width` lengths as bars, scaled to the longest of them."""
    shown = lengths[-width:]
    longest = max(shown, default=0)
    if not longest:
        return BARS[0] * len(shown)
    return "".join(BARS[round(length / longest * (len(BARS) - 1))] for length in shown)


def _gauge(fill: float, width: int) -> list[Part]:
    """Return a thick line for the filled part and a thin one for the free part; a nearly full one is highlighted."""
    n = min(width, round(fill * width))
    return [("━" * n, "$text-warning" if fill > 0.9 else "$text-primary"), ("─" * (width - n), "dim")]
