"""A row of a job: one prompt, the format of its result, its identity, and its samples."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

from edgespec.core.stats import Stats
from edgespec.events import FinishReason, TokenEvent
from edgespec.requests.bad_input import JsonObject
from edgespec.settings import Request

Id = str | int
Form = Literal["own", "chat.completion", "text_completion"]
"""The format of the result: edgespec's own, or one of OpenAI's objects."""


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt of the input, and the number of samples (`Request.sample` 0 to n - 1) in its result. `mark` is a digest
    of its content, and part of the result."""

    id: Id
    line: int
    request: Request
    n: int = 1
    form: Form = "own"
    mark: str = ""


@dataclass(frozen=True, slots=True)
class BadRow:
    """An invalid row, and the reason. Without an `id`, it is identified by its line."""

    id: Id | None
    line: int
    why: str
    form: Form = "own"


def mark_of(id: Id, given: JsonObject) -> str:
    """Return 12 hexadecimal digits computed from the content of a row, independent of the order of its fields."""
    try:
        text = json.dumps([id, given], sort_keys=True)
    except (TypeError, ValueError, RecursionError):  # values from Python that are not JSON; they are refused later
        text = json.dumps(id)
    return sha256(text.encode()).hexdigest()[:12]


def row_key(id: Id) -> int:
    """Return a number of 64 bits that identifies a row within this process."""
    return hash(json.dumps(id))


@dataclass(slots=True)
class Sample:
    """The text of a sample, and its tokens if their log-probabilities are wanted."""

    keeps_tokens: bool = False
    pieces: list[str] = field(default_factory=list)
    tokens: list[TokenEvent] = field(default_factory=list)
    n_tokens: int = 0
    finish_reason: FinishReason | None = None
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
