"""One sample of a row, built from its events."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from edgespec.core.stats import Stats
from edgespec.events import TokenEvent


@dataclass(slots=True)
class Sample:
    """The text of a sample, and its tokens if their log-probabilities are wanted."""

    keeps_tokens: bool = False
    pieces: list[str] = field(default_factory=list)
    tokens: list[TokenEvent] = field(default_factory=list)
    n_tokens: int = 0
    finish_reason: str | None = None
    stats: Stats = field(default_factory=Stats)

    def add(self, event: TokenEvent) -> None:
        if event.text:
            self.pieces.append(event.text)
        if event.id >= 0:
            self.n_tokens += 1  # the statistics also count draft tokens after a stop string
            if self.keeps_tokens:
                self.tokens.append(event)
        if event.finish_reason is not None:
            self.finish_reason = event.finish_reason
            self.stats = event.stats or self.stats
            if self.pieces and not self.n_tokens:  # a server that reports no tokens
                self.n_tokens = self.stats.generated_tokens

    @property
    def content(self) -> str:
        return "".join(self.pieces)


def finite(number: float | None) -> float | None:
    """Return a number for JSON, which has no infinity."""
    return number if number is not None and math.isfinite(number) else None
