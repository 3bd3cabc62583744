"""One prompt answered with and without speculation by the same loaded model, with the time of each token.

The speculative answer comes first: drafters look into earlier answers, and must not find this one there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol

from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.core.verify import VerifyRule
from edgespec.events import TokenEvent
from edgespec.settings import LoadSettings, Request
from edgespec.text.figures import rate

PLAIN, DRAFTED = 0, 1  # the lanes
WARM_UP = 8  # tokens
NOTABLE = 0.02  # a smaller difference in speed may be chance


class Racer(Protocol):
    """What a race needs from a loaded model, in this process or another."""

    @property
    def settings(self) -> LoadSettings: ...
    def answer(self, request: Request, cancel: CancelFlag | None = None) -> Generator[TokenEvent, None, None]: ...
    def draft_with(self, *, pace: str | None = None) -> None: ...
    def forget(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Timed:
    """An event and its time, in seconds since the request."""

    elapsed_s: float
    event: TokenEvent


@dataclass(frozen=True, slots=True)
class Lane:
    """One answer. The last event has a `finish_reason`; it is missing if the race was stopped before."""

    events: tuple[Timed, ...] = ()

    @property
    def tokens(self) -> tuple[Timed, ...]:
        """The events without the last one, which is no token."""
        return self.events[:-1]

    @property
    def stats(self) -> Stats:
        return (self.events[-1].event.stats if self.events else None) or Stats()

    @property
    def was_cancelled(self) -> bool:
        return not self.events or self.events[-1].event.finish_reason == "cancelled"

    @property
    def first_token_s(self) -> float:
        """The time to the first token; 0 if there is none."""
        return self.events[0].elapsed_s if self.tokens else 0.0

    @property
    def took_s(self) -> float:
        """From the request to the last token."""
        return self.tokens[-1].elapsed_s if self.tokens else 0.0

    def generation_s(self, n_tokens: int) -> float:
        """From the first token to the `n_tokens`-th."""
        return self.tokens[n_tokens - 1].elapsed_s - self.first_token_s if n_tokens else 0.0

    def shown_at(self, elapsed_s: float) -> Sequence[TokenEvent]:
        """The text received by then."""
        shown = bisect_right(self.events, elapsed_s, key=lambda timed: timed.elapsed_s)
        return [timed.event for timed in self.events[:shown]]

    def tokens_per_s(self, elapsed_s: float) -> float:
        """The mean rate after the first token until then, or until the last token; 0 before there is one."""
        n_tokens = bisect_right(self.tokens, elapsed_s, key=lambda timed: timed.elapsed_s)
        since_s = min(elapsed_s, self.took_s) - self.first_token_s
        return (n_tokens - 1) / since_s if n_tokens > 1 and since_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Race:
    """Both answers to one request, whose verification rule is `verify`. They are compared over the tokens that both
    have."""

    plain: Lane
    drafted: Lane
    verify: VerifyRule = "coupled"

    @property
    def n_common(self) -> int:
        """The length of the shorter answer, in tokens."""
        return min(len(self.plain.tokens), len(self.drafted.tokens))

    @property
    def differs_at(self) -> int | None:
        """Index of the first token that differs, or that only one answer has because the other ended before."""
        pairs = zip(self.plain.tokens, self.drafted.tokens, strict=False)
        for index, (plain, drafted) in enumerate(pairs):
            if plain.event.id != drafted.event.id:
                return index
        shorter = min(self.plain, self.drafted, key=lambda lane: len(lane.tokens))
        is_one = len(self.plain.tokens) == len(self.drafted.tokens) or shorter.was_cancelled
        return None if is_one else self.n_common

    @property
    def speedup(self) -> float | None:
        """Time of the plain answer over that of the other, from the first token on; None if that was too short."""
        if self.n_common < 2:
            return None
        plain_s, drafted_s = (lane.generation_s(self.n_common) for lane in (self.plain, self.drafted))
        return plain_s / drafted_s if plain_s > 0 and drafted_s > 0 else None

    @property
    def guessed_by(self) -> dict[str, int]:
        """The number of accepted tokens per drafter, largest first."""
        return dict(Counter(t.event.source for t in self.drafted.tokens if t.event.from_draft).most_common())

    def verdict(self) -> str:
        """Which was faster, and whether the text is the same, in one sentence."""
        speedup = self.speedup
        if speedup is None:
            stopped = self.plain.was_cancelled or self.drafted.was_cancelled
            return "stopped before there was anything to compare" if stopped else "too short to compare"
        plain, drafted = ((self.n_common - 1) / lane.generation_s(self.n_common) for lane in (self.plain, self.drafted))
        rates = f"{rate(drafted)} vs. {rate(plain)} tok/s"
        if not self.drafted.stats.proposed:
            return f"nothing was drafted, any difference is noise: {rates}, {self._same_text()}"
        if abs(speedup - 1) < NOTABLE:
            return f"{speedup:.2f}x, speculation made no difference: {rates}, {self._same_text()}"
        lost = ", slower with speculation" if speedup < 1 else ""
        return f"{speedup:.2f}x{lost}: {rates}, {self._same_text()}"

    def _same_text(self) -> str:
        index = self.differs_at
        if index is None:
            return f"the same {self.n_common} tokens"
        why = "by rounding" if self.verify == "coupled" else f"as {self.verify} allows"
        return f"different text from token {index + 1} on, {why}"


def run_race(
    engine: Racer,
    request: Request,
    cancel: CancelFlag,
    on_token: Callable[[int, Timed], None] = lambda lane, timed: None,
) -> Race:
    """Answer `request` with the current drafting settings, then plainly; `on_token` receives each event and its lane.

    A few untimed tokens come first, so that neither answer waits for cold memory; neither finds the prompt in a cache.
    After `cancel` the lanes end where they are. Raises what the engine raises; its draft policy is restored.
    """
    with closing(engine.answer(replace(request, max_tokens=WARM_UP), cancel)) as warming:
        deque(warming, maxlen=0)
    drafted = _run(engine, request, cancel, DRAFTED, on_token)
    pace = engine.settings.pace
    engine.draft_with(pace="off")
    try:
        plain = _run(engine, request, cancel, PLAIN, on_token)
    finally:
        engine.draft_with(pace=pace)
    return Race(plain, drafted, request.verify)


def _run(
    engine: Racer, request: Request, cancel: CancelFlag, lane: int, on_token: Callable[[int, Timed], None]
) -> Lane:
    if cancel.is_set():
        return Lane()
    engine.forget()
    events: list[Timed] = []
    started_s = perf_counter()
    with closing(engine.answer(request, cancel)) as answer:
        for event in answer:
            timed = Timed(perf_counter() - started_s, event)
            events.append(timed)
            on_token(lane, timed)
    return Lane(tuple(events))
