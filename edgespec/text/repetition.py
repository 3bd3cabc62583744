"""Detects an answer that loops: the same few tokens over and over at its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

REPEATS = 5  # times in a row; fewer are a refrain
SURE = 8  # times in a row before an answer is ended
FEWEST = 96  # tokens in all; fewer are a ruler or a row of a table
LONGEST = 128  # tokens of what is repeated
WINDOW = REPEATS * LONGEST
EVERY = 16  # tokens between checks


@dataclass(frozen=True, slots=True)
class Repetition:
    """`tokens` consecutive tokens repeat the same `period` tokens."""

    period: int
    tokens: int

    def __str__(self) -> str:
        what = "one token" if self.period == 1 else f"the same {self.period} tokens"
        return f"{what}, {self.tokens // self.period} times in a row"


class RepetitionDetector:
    """Finds loops in an answer's token ids as they arrive. `found` is the longest loop found, None before the first.

        detector = RepetitionDetector()
        for event in answer:
            if detector.add(event.id):
                print(f"the answer repeats itself: {detector.found}")

    Only exact repetitions are found: a list with increasing numbers is no loop. The result depends on the tokens alone,
    not on how many arrive at a time.
    """

    def __init__(self) -> None:
        self.found: Repetition | None = None
        self._tail: deque[int] = deque(maxlen=WINDOW)
        self._loop: Repetition | None = None  # the one that the answer is in
        self._until_look = FEWEST

    def add(self, token: int) -> bool:
        """Add a token and return whether it completes the first loop of the answer."""
        loop = self._loop
        if loop is not None:
            goes_on = self._tail[-loop.period] == token
            self._loop = Repetition(loop.period, loop.tokens + 1) if goes_on else None
        self._tail.append(token)
        if self._loop is None:
            self._until_look -= 1
            if self._until_look > 0:
                return False
            self._until_look = EVERY
            self._loop = repetition(self._tail)
        is_first = self.found is None and self._loop is not None
        if self._loop is not None and (self.found is None or self._loop.tokens > self.found.tokens):
            self.found = self._loop
        return is_first

    def exceeds(self, limit: int) -> bool:
        """Return whether the last tokens, at least `limit`, are a loop that has come often enough to end the answer."""
        loop = self._loop
        return loop is not None and loop.tokens >= max(limit, SURE * loop.period)


def repetition(tokens: Sequence[int] | deque[int]) -> Repetition | None:
    """The loop with the shortest period at the end of `tokens`, as far back as it goes."""
    backwards = list(tokens)[::-1]
    for period in range(1, min(LONGEST, len(backwards) // REPEATS) + 1):
        n = period
        while n < len(backwards) and backwards[n] == backwards[n - period]:
            n += 1
        if n >= max(FEWEST, REPEATS * period):
            return Repetition(period, n)
    return None
