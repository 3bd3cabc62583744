"""Statistics of a streaming answer, counted from its tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from edgespec.core.stats import Stats
from edgespec.events import TokenEvent
from edgespec.text.figures import faster, percent, rate


class LiveStatistics:
    """The statistics since `started_s`. Times are in seconds, `context_used` and `context_size` in tokens."""

    def __init__(self, started_s: float = 0.0, context_used: int = 0, context_size: int = 0) -> None:
        self.context_used, self.context_size = context_used, context_size
        self.tokens = self.rounds = self.proposed = self.accepted = 0
        self.draft_lengths: list[int] = []  # the draft length of each step
        self.elapsed_s = 0.0
        self._started_s = started_s
        self._first_s, self._n_first = 0.0, 0  # the time of the first tokens, and their number
        self._last_s = 0.0
        self._round: int | None = None
        self._final: Stats | None = None

    def add(self, events: Iterable[TokenEvent], now_s: float, context_used: int) -> None:
        """Count new events, possibly none."""
        self.elapsed_s, self.context_used = now_s - self._started_s, context_used
        before = self.tokens
        for event in events:
            if event.id < 0:
                continue
            self.tokens += 1
            self.accepted += event.from_draft
            if event.round != self._round:
                self._round = event.round
                self.rounds += 1
                self.proposed += event.proposed
                self.draft_lengths.append(event.proposed)
        if self.tokens > before:
            self._last_s = now_s
            if not before:
                self._first_s, self._n_first = now_s, self.tokens

    def finish(self, stats: Stats) -> Self:
        """Take over the statistics of the complete answer."""
        self._final = stats
        self.elapsed_s = stats.prompt_s + stats.generation_s
        self.tokens, self.rounds = stats.generated_tokens, stats.rounds
        self.proposed, self.accepted = stats.proposed, stats.accepted
        return self

    @property
    def tokens_per_s(self) -> float | None:
        """The rate after the first tokens, which belong to the pass of the prompt; None before there are others."""
        if self._final is not None:
            return (self._final.tokens_per_s or None) if self.tokens > 1 else None
        took_s = self._last_s - self._first_s
        return (self.tokens - self._n_first) / took_s if took_s > 0 else None

    @property
    def tokens_per_round(self) -> float | None:
        return self.tokens / self.rounds if self.rounds else None

    @property
    def acceptance(self) -> float | None:
        """The acceptance rate; None if nothing was drafted."""
        return self.accepted / self.proposed if self.proposed else None

    def words(self) -> list[str]:
        """Return the known figures in words, the most important first: the speed, and the gain of drafting."""
        speed, accepted, per_step = self.tokens_per_s, self.acceptance, self.tokens_per_round
        said = [f"{rate(speed)} tok/s" if speed is not None else "", faster(self.speedup, self.tokens)]
        if accepted is not None and per_step is not None:
            said += [f"{percent(accepted)} of drafts accepted", f"{per_step:.1f} tokens per step"]
        return [*filter(None, said)]

    @property
    def speedup(self) -> float | None:
        """The predicted speed-up over plain decoding; None until the answer is complete."""
        return self._final.speedup if self._final is not None else None

    @property
    def context_fill(self) -> float | None:
        """The used part of the context, from 0 to 1; None if its size is unknown."""
        return min(1.0, self.context_used / self.context_size) if self.context_size else None
