"""The statistics of an answer and its drafts, as a panel or as one line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from textual.content import Content
from textual.widget import Widget

from edgespec.text.figures import percent, rate
from edgespec.tui.live_statistics import LiveStatistics

GAUGE = 10  # cells of the gauge in a line
ABOVE = 8  # lines of the panel above the context
BARS = "▁▂▃▄▅▆▇█"
Part = str | tuple[str, str]


class Figures(Widget):
    """Shows the statistics of an answer."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.figures = LiveStatistics()

    def show(self, figures: LiveStatistics) -> None:
        """Show these statistics as they are now."""
        self.figures = figures
        self.refresh()


class StatisticsLine(Figures):
    """Shows how full the context is; on narrow screens the other figures are below the answer."""

    DEFAULT_CSS = """
    StatisticsLine { width: 1fr; height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def render(self) -> Content:
        figures = self.figures
        if figures.context_fill is None:
            return Content("")
        said = f" {percent(figures.context_fill)} of {figures.context_size:,} tokens"
        return Content.assemble("context ", *_gauge(figures.context_fill, GAUGE), said)


class StatisticsPanel(Figures):
    """Shows all statistics and a history of draft lengths. The height is constant, so that nothing jumps."""

    DEFAULT_CSS = """
    StatisticsPanel { width: 1fr; height: auto; padding: 0 1; }
    """

    def render(self) -> Content:
        figures, width = self.figures, max(4, self.content_size.width)
        lines: list[list[Part]] = [[] for _ in range(ABOVE)]
        if figures.is_waiting:
            lines[0] = [(f"reading, {figures.elapsed_s:.1f} s", "dim")]
        elif figures.stats.generated_tokens:
            known = [*self._known()]
            lines[: len(known)] = known
            longest = max(figures.draft_lengths[-width:], default=0)
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
            if said := figures.gain:
                yield [(said, "$text-success" if said[0].isdigit() else "")]
        n_tokens = stats.generated_tokens
        yield [(f"{n_tokens:,} token{'s' * (n_tokens != 1)}, {figures.elapsed_s:.1f} s", "dim")]


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
