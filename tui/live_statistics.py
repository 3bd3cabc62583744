"""Statistics of a streaming answer, counted from its tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from edgespec.core.stats import Stats
from edgespec.events import TokenEvent
from edgespec.text.figures import faster, percent, rate


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
        said = [f"{rate(speed)} tok/s" if speed is not None else "", self.gain]
        if stats.proposed:
            said += [
                f"{percent(stats.acceptance_rate)} of drafts accepted",
                f"{stats.tokens_per_round:.1f} tokens per step",
            ]
        return [*filter(None, said)]

    @property
    def gain(self) -> str:
        """The predicted speed-up over plain decoding in words; empty until the answer is complete."""
        return faster(self.stats.speedup, self.stats.generated_tokens) if self.stats.generation_s else ""

    @property
    def context_fill(self) -> float | None:
        """The used part of the context, from 0 to 1; None if its size is unknown."""
        return min(1.0, self.context_used / self.context_size) if self.context_size else None
