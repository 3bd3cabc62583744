"""What the policy knows: what each drafter's drafts were worth, and what was reached with all of them."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

ROUNDS = 48  # of which the rate is a mean, about
DRAFTS = 12  # the same for what a drafter's guesses are worth
CHANCES, CHANCE = 32, 0.7  # guesses that say how likely the next one is right, and how likely it is taken to be before
TRIAL_SHARE = 0.005  # of the time of plain rounds may go into trying whether guesses pay
FIRST_CREDIT, MOST_CREDIT = 3.0, 4.0  # tokens that a drafter may lose before it has won any, and that it can save up
FORGIVEN = 0.02  # of a broken promise, at each guess that is not verified
LUCK = 1.5  # standard errors
TRUST = 4.0  # guesses that a drafter is taken to have been right about
FIRST_RATE, FIRST_PASSES = 1.6, 20.0  # tokens a pass that are taken to be in reach at first, and for how long
HOPE = 1.0  # tokens that a drafter nobody tried is taken to add to a round,
PAUSE = 32  # rounds until a drafter is thought about again that has too much to read


@dataclass(slots=True)
class Record:
    """What one drafter's guesses were worth under one kind of choosing.

    `earned` is what a draft adds to a round beyond plain decoding, in tokens and less what its width and the guessing
    cost, `spread` the variance of that, `cost` the guessing alone. `chances` are the probabilities that a guess behind
    a right one is right too. `accepted` and `expected` count verified guesses: how far the drafter's promises are kept.
    `credit` is what the drafter may lose, in tokens, its `share` of what all may; it may go on without while its last
    guess `paid`.
    While it `rests`, the next trial is due when it has the credit that is `needed`, after a `pause` of some rounds.
    """

    earned: float = HOPE
    spread: float = 0.0
    cost: float = 0.0
    count: int = 0
    chances: deque[float] = field(default_factory=lambda: deque([CHANCE], CHANCES))
    accepted: float = TRUST
    expected: float = TRUST
    share: float = 1.0
    credit: float = FIRST_CREDIT
    paid: bool = False
    rests: bool = False
    needed: float = 0.0
    pause: int = 0
    round: int = 0

    @property
    def honesty(self) -> float:
        """What a promised token is worth."""
        return self.accepted / self.expected

    @property
    def likely(self) -> float:
        """What it may well earn, given how much that varies: no drafter is to rest for bad luck."""
        return self.earned + LUCK * math.sqrt(self.spread / min(DRAFTS, self.count + 1))

    @property
    def is_awake(self) -> bool:
        return not self.rests or (self.pause < 0 and self.credit >= self.needed)

    def win(self, tokens: float) -> None:
        self.credit = min(self.share * MOST_CREDIT, self.credit + tokens)

    def rest(self, rounds: int) -> None:
        """Rest so many rounds, each of which gives some credit."""
        self.win(rounds * self.share * TRIAL_SHARE)
        self.pause -= rounds

    def asleep(self) -> int:
        """In how many rounds, this one among them, it is not awake for certain."""
        rounds = math.ceil((self.needed - self.credit) / (self.share * TRIAL_SHARE))
        return min(PAUSE, max(self.pause + 1, rounds, 0))

    def take(self, earned: float, cost: float) -> None:
        """Count a draft, verified or not."""
        self.count += 1
        share = max(1 / DRAFTS, 1 / (self.count + 1))
        self.spread += share * ((earned - self.earned) ** 2 - self.spread)
        self.earned += share * (earned - self.earned)
        self.cost += share * (cost - self.cost)

    def revise(self, difference: float) -> None:
        """The draft that was counted last earns so much more."""
        self.earned += max(1 / DRAFTS, 1 / self.count) * difference

    def forgive(self) -> None:
        """Trust it a little more again: a guess that is not verified cannot show that it became better."""
        self.accepted += FORGIVEN * (TRUST - self.accepted)
        self.expected += FORGIVEN * (TRUST - self.expected)

    def state(self) -> dict[str, Any]:
        return {
            "earned": self.earned,
            "spread": self.spread,
            "cost": self.cost,
            "count": self.count,
            "chances": list(self.chances),
            "accepted": self.accepted,
            "expected": self.expected,
            "credit": self.credit,
        }

    @classmethod
    def restored(cls, known: dict[str, Any], share: float) -> Record:
        chances = [_amount(chance, 1.0) for chance in known["chances"]]
        return cls(
            earned=_amount(known["earned"], least=-math.inf),
            spread=_amount(known["spread"]),
            cost=_amount(known["cost"]),
            count=int(_amount(known["count"])),
            chances=deque(chances or [CHANCE], CHANCES),
            accepted=_amount(known["accepted"]),
            expected=_amount(known["expected"]) or TRUST,
            share=share,
            credit=min(share * MOST_CREDIT, _amount(known["credit"], least=-math.inf)),
        )


@dataclass(slots=True)
class Kind:
    """What was reached under one kind of choosing: tokens and the time they took, in passes over one token, both
    fading. For `asleep` rounds no drafter is to be thought about."""

    tokens: float = FIRST_RATE * FIRST_PASSES
    passes: float = FIRST_PASSES
    asleep: int = 0
    records: dict[str, Record] = field(default_factory=dict)

    def state(self) -> dict[str, Any]:
        """What was learnt, as plain data."""
        drafters = {name: record.state() for name, record in self.records.items()}
        return {"tokens": self.tokens, "passes": self.passes, "drafters": drafters}

    @classmethod
    def restored(cls, stored: dict[str, Any], share: float) -> Kind:
        """Raises ValueError, TypeError, KeyError or AttributeError for what `state` cannot have returned."""
        kind = cls(_amount(stored["tokens"]), _amount(stored["passes"]))
        kind.records = {name: Record.restored(known, share) for name, known in stored["drafters"].items()}
        return kind


def _amount(stored: float, most: float = math.inf, least: float = 0.0) -> float:
    if not least <= stored <= most or math.isinf(stored):
        raise ValueError("not what was learnt about a pair")
    return float(stored)
