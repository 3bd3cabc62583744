"""How long one draft is: what one more token costs and earns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgespec.core.draft import Draft
from edgespec.core.policy.policy import ProposalContext
from edgespec.core.policy.record import ROUNDS, Kind, Record

if TYPE_CHECKING:
    from edgespec.core.policy.measured import MeasuredPolicy

LENGTHS = (1, 2, 3, 4, 5, 7, 9, 11, 15, 23, 31, 47, 63)
"""Lengths of drafts that are verified: few, as llama.cpp reuses the graph of a pass of the same width, and such that
widths fill the tiles of kernels."""

MOST_DEBT = 1.0  # tokens that a trial may cost beyond the credit, for reading what was missed
FEW = 8  # tokens that a drafter reads along with its guess
AHEAD = 12  # tokens that a decision looks ahead


def pass_widths(longest: int) -> list[int]:
    """Widths of the passes that verify drafts of up to `longest` tokens, and of one without a draft."""
    return [1, *(1 + length for length in LENGTHS if length < longest), *([1 + longest] if longest else [])]


class AutoPlan:
    """One drafter's turn under the measured pace. `rate` is R in tokens per second of the table, `first_s` what the
    drafter's first guess takes, with what it has to read before."""

    def __init__(self, pace: MeasuredPolicy, kind: Kind, record: Record, turn: ProposalContext) -> None:
        self.pace, self.kind, self.record, self.turn = pace, kind, record, turn
        self.tokens, self.value, self.is_drawn = turn.n_max, 0.0, False
        costs, depth = pace.costs, turn.depth
        self._lag = turn.n_unread()
        self._shape = {"leaves": pace.leaves, "sequences": turn.sequences}
        self.step_s = costs.step(turn.drafter, depth, **self._shape)
        self.reading_s = costs.read(turn.drafter, self._lag, depth, **self._shape) if self._lag > FEW else 0.0
        self.first_s = max(self.step_s, self.reading_s)
        self.plain_s = pace.target(turn.sequences, depth) / turn.sequences
        self.rate = max(1.0, kind.tokens / kind.passes if kind.passes else 0.0) / self.plain_s
        self.honesty = record.honesty
        self._widening: dict[int, float] = {0: 0.0}
        self._passes = 0
        self._promised = self.wider = 0.0

    def price(self, seconds: float) -> float:
        return seconds / (self.plain_s * math.exp(self.pace.costs.load))

    def worth(self, reaches: Sequence[float], survival: float) -> bool:
        n = len(reaches)
        if n >= self.tokens:
            return False
        chances, step = self.record.chances, self.rate * self.step_s
        reached, survival = self.honesty * sum(reaches), self.honesty * survival
        # What was drawn cannot be cut again.
        best = reached - self._widens(n) if self.turn.drawn else self._best(reaches)[1]
        # One more pass, after which the guess may still be left out ...
        if self._is_length(n + 1):
            base = reached - self._widens(n + 1)
            option = sum(max(best, base + survival * chance) for chance in chances) / len(chances)
            if option - step > best:
                return True
        # ... or several, towards a width that only many tokens repay.
        chance = sum(chances) / len(chances)
        for length in range(n + 1, min(self.tokens, n + AHEAD) + 1):
            survival *= chance
            reached += survival
            if self._is_length(length) and reached - self._widens(length) - step * (length - n) > best:
                return True
        return False

    def spent(self, passes: int, seconds: float) -> None:
        turn, costs = self.turn, self.pace.costs
        if not passes:
            return
        if self._lag > FEW:
            took_s = seconds - (passes - 1) * self.step_s
            costs.observe_read(turn.drafter, self._lag, took_s, turn.depth, **self._shape)
        else:
            costs.observe_step(turn.drafter, seconds / passes, turn.depth, **self._shape)
        self._passes = passes
        took_s = (passes - 1) * self.step_s + self.first_s
        self.kind.passes += took_s / self.plain_s
        self.record.credit = max(-MOST_DEBT, self.record.credit - took_s / self.plain_s)

    def settle(self, draft: Draft) -> Draft:
        record, reaches = self.record, sorted(draft.reaches(), reverse=True)
        record.chances += draft.chances()
        self.is_drawn = self.turn.drawn and any(distribution is not None for distribution in draft.distributions)
        length, gain = (len(draft), math.inf) if self.is_drawn else self._offered(reaches)
        self._promised = sum(reaches[:length])
        if self.turn.sequences == 1 or self.is_drawn:
            self.wider = self._widens(length) / (self.rate * self.plain_s)
        record.take(self._promise - self._cost, self._cost)
        self._conclude(length)
        if length:
            self.value = gain
        return draft.best(length)

    def cut(self, draft: Draft, wider_s: float) -> None:
        """Of what was settled only `draft` is verified, which takes the pass so much longer."""
        before, reaches = self._promise, draft.reaches()
        own = [node for node in range(len(draft)) if draft.source_of(node) == draft.source]
        self._promised, self.wider = sum(reaches[node] for node in own), wider_s / self.plain_s
        self.record.revise(self._promise - before)
        self._conclude(len(own))

    def shorten(self, draft: Draft) -> None:
        self.cut(draft, self._widens(len(draft)) / self.rate)

    @property
    def _promise(self) -> float:
        """Tokens, less those that plain work would make in the time that verifying takes longer."""
        return self.honesty * self._promised - self.wider

    @property
    def _cost(self) -> float:
        """Tokens that plain work would make while it guessed; what was read once is not what guesses cost."""
        return self._passes * self.step_s / self.plain_s

    def _conclude(self, length: int) -> None:
        """So many tokens of the draft are verified."""
        record = self.record
        record.paid = self._promise > self._cost
        if not record.paid and record.likely < 0:
            record.credit = min(record.credit, 0.0)  # what it won in other texts is not to be lost in this one
        if not length:
            record.forgive()

    def merge(self, draft: Draft) -> tuple[Draft, float]:
        length, gain = self._offered(sorted(draft.reaches(), reverse=True)[: self.tokens])
        return draft.best(length), gain

    def share(self, draft: Draft, nodes: Sequence[int]) -> None:
        reaches = draft.reaches()
        self._promised = sum(reaches[node] for node in nodes)
        self.wider = self._widens(len(draft)) / (self.rate * self.plain_s) * len(nodes) / len(draft)

    def judged(self, accepted: int) -> None:
        record = self.record
        # Promises that were learnt from what became of guesses vary less than what becomes of them.
        tokens = self.honesty * self._promised if self.turn.settled else accepted
        record.win(tokens - self.wider)
        record.accepted += accepted - record.accepted / ROUNDS
        record.expected += self._promised - record.expected / ROUNDS

    def _best(self, reaches: Sequence[float]) -> tuple[int, float]:
        """How many of the guesses to verify, and what these add to a round, in tokens less what their width costs."""
        length, most, sum_reached, n = 0, 0.0, 0.0, 0
        for n, reach in enumerate(reaches, 1):
            sum_reached += reach
            if self._is_length(n):
                gain = self.honesty * sum_reached - self._widens(n)
                if gain > most:
                    length, most = n, gain
        return length, most

    def _is_length(self, n: int) -> bool:
        return n in LENGTHS or n == self.pace.longest

    def _offered(self, reaches: Sequence[float]) -> tuple[int, float]:
        """The same; several sequences offer all, since what a token costs depends on what the others get."""
        return self._best(reaches) if self.turn.sequences == 1 else (len(reaches), self.honesty * sum(reaches))

    def _widens(self, n: int) -> float:
        """Tokens that could be had in the time that n more tokens a sequence add to the target's pass."""
        tokens = self._widening.get(n)
        if tokens is None:
            turn = self.turn
            wide_s = self.pace.target(turn.sequences * (1 + n), turn.depth) / turn.sequences
            tokens = self._widening[n] = self.rate * max(0.0, wide_s - self.plain_s)  # less is a disturbed measurement
        return tokens
