"""How much to guess: the lengths of drafts, which drafter, or none, from what guessing costs and earns.

One more guess is worth it when the tokens it adds in the mean are more than plain work would make in the time it costs
(renewal reward): the sum of the survival probabilities of guesses k+1 to k+j must exceed R (c j + t(k+1+j) - t(k+1)),
with R the tokens per second reached so far, c a pass of the drafter and t(n) a target pass over n tokens. Seconds are
those of `core.costs`, not of the clock: a loaded machine must not change what is decided. No clock is read in here.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from edgespec.core.draft import Draft
from edgespec.core.policy.costs import Costs
from edgespec.core.policy.pace import Offer, Turn

LENGTHS = (1, 2, 3, 4, 5, 7, 9, 11, 15, 23, 31, 47, 63)
"""Lengths of drafts that are verified: few, as llama.cpp reuses the graph of a pass of the same width, and such that
widths fill the tiles of kernels."""

ROUNDS = 48  # of which the rate is a mean, about
DRAFTS = 12  # the same for what a drafter's guesses are worth
CHANCES, CHANCE = 32, 0.7  # guesses that say how likely the next one is right, and how likely it is taken to be before
SHOWN_WIDTHS = (2, 3, 4, 8)
EVERY = 4  # plain passes for one that is measured
TRIAL_SHARE = 0.005  # of the time of plain rounds may go into trying whether guesses pay
FIRST_CREDIT, MOST_CREDIT = 3.0, 4.0  # tokens that a drafter may lose before it has won any, and that it can save up
MOST_DEBT = 1.0  # tokens that a trial may cost beyond the credit, for reading what was missed
FEW = 8  # tokens that a drafter reads along with its guess
AHEAD = 12  # tokens that a decision looks ahead
ANSWER = 256  # tokens an answer goes on for, where nothing else bounds it
FORGIVEN = 0.02  # of a broken promise, at each guess that is not verified
LUCK = 1.5  # standard errors
TRUST = 4.0  # guesses that a drafter is taken to have been right about
FIRST_RATE, FIRST_PASSES = 1.6, 20.0  # tokens a pass that are taken to be in reach at first, and for how long
HOPE = 1.0  # tokens that a drafter nobody tried is taken to add to a round,
UNTRIED = 0.05  # and those that reading a prompt for it may cost
PAUSE = 32  # rounds until a drafter is thought about again that has too much to read


def pass_widths(longest: int) -> list[int]:
    """Widths of the passes that verify drafts of up to `longest` tokens, and of one without a draft."""
    return [1, *(1 + length for length in LENGTHS if length < longest), *([1 + longest] if longest else [])]


@dataclass(slots=True)
class _Record:
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


@dataclass(slots=True)
class _Kind:
    """What was reached under one kind of choosing: tokens and the time they took, in passes over one token, both
    fading. For `asleep` rounds no drafter is to be thought about."""

    tokens: float = FIRST_RATE * FIRST_PASSES
    passes: float = FIRST_PASSES
    asleep: int = 0
    records: dict[str, _Record] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PaceVerdict:
    """Why a drafter guesses or rests: `gain` is what a guess adds to a round in the mean, in tokens and less what its
    width costs, `cost` the tokens that plain work would make in the time of the guess. `step` is a pass of the drafter
    and `widths` are passes of the target by width, in target passes over one token."""

    drafter: str
    rests: bool
    gain: float
    cost: float
    step: float
    widths: dict[int, float]


class AutoPace:
    """Guesses as much as pays, and nothing where nothing does. What it learns holds for one pair of models.

    Every drafter has a credit: guesses take from it what they cost and give back what they earn. Without credit it
    rests, so that it never loses more than it has won, a little to begin with, and `TRIAL_SHARE` of the time, by which
    a resting drafter comes to a trial now and then. A trial that promises nothing is compared with the tokens that come
    anyway, which takes no wider pass. Target passes are padded to `least_width`, trees have up to `leaves` leaves.
    What may be lost is shared out among so many `drafters`. `longest` is the longest draft that there may be.
    """

    longest = 0

    def __init__(self, costs: Costs, least_width: int = 1, leaves: int = 1, drafters: int = 1) -> None:
        self.costs, self.least_width = costs, least_width
        self.leaves, self._share = leaves, 1 / max(1, drafters)
        self._kinds: dict[str, _Kind] = {}
        self._plain = self._depth = 0

    def awake(self, kind: str, drafters: Sequence[str]) -> Sequence[str]:
        known = self._kind(kind)
        if known.asleep:
            known.asleep -= 1
            return ()
        resting = [record for name in drafters if (record := known.records.get(name)) is not None and record.rests]
        for record in resting:
            record.rest(1)
        if len(resting) == len(drafters):  # as is usual where nothing pays: this must cost next to nothing
            rounds = min((record.asleep() for record in resting), default=0)
            if rounds:
                known.asleep = rounds - 1
                for record in resting:
                    record.rest(known.asleep)
                return ()
        return [name for name in drafters if (record := known.records.get(name)) is None or record.is_awake]

    def plan(self, turn: Turn) -> AutoPlan | None:
        if turn.n_max <= 0:
            return None
        kind = self._kind(turn.kind)
        record = kind.records.get(turn.drafter)
        if record is None:
            record = kind.records[turn.drafter] = _Record(share=self._share, credit=self._share * FIRST_CREDIT)
        if turn.sequences == 1 and turn.round < record.round:  # how far promises are kept differs from text to text
            record.accepted = record.expected = TRUST
        record.round = turn.round
        plan = AutoPlan(self, kind, record, turn)
        rounds = min(turn.remaining, ANSWER)  # in which reading what it missed has to pay back
        reading = plan.reading_s / plan.plain_s
        hoped = rounds * (record.earned if record.count >= DRAFTS else UNTRIED)
        record.needed = plan.step_s / plan.plain_s
        too_much = 0 < reading > max(record.credit + MOST_DEBT, hoped)
        record.pause = PAUSE if too_much else 0
        record.rests = too_much or (record.credit < record.needed and not record.paid)
        if record.rests:
            return None
        if turn.best > 0 and (record.earned - turn.best) * rounds <= reading:
            return None
        return plan

    def share_width(self, offers: Sequence[Offer], width: int, depth: int, room: int) -> list[Draft]:
        """As many tokens as earn the most together, the likeliest first; all of what was drawn, whatever it is."""
        drafts = [draft for _, draft in offers]
        plans = {
            number: plan for number, (plan, _) in enumerate(offers) if isinstance(plan, AutoPlan) and not plan.is_drawn
        }
        if not plans:
            return drafts
        drawn = sum(len(draft) for number, draft in enumerate(drafts) if number not in plans)
        width, room = width + drawn, room - drawn
        nodes = [(plan.honesty * reach, number) for number, plan in plans.items() for reach in drafts[number].reaches()]
        nodes.sort(reverse=True)
        rate, narrow_s = fmean(plan.rate for plan in plans.values()), self.target(width, depth)
        kept, wider_s, most, reached = 0, 0.0, 0.0, 0.0
        for n, (reach, _) in enumerate(nodes[: max(0, room)], 1):
            reached += reach
            more_s = max(0.0, self.target(width + n, depth) - narrow_s)
            if reached - rate * more_s > most:
                kept, wider_s, most = n, more_s, reached - rate * more_s
        counts = Counter(number for _, number in nodes[:kept])
        for number, plan in plans.items():
            drafts[number] = drafts[number].best(counts[number])
            plan.cut(drafts[number], wider_s * counts[number] / max(1, kept))
        return drafts

    def observe_pass(self, width: int, seconds: float, depth: int) -> None:
        self._depth = depth
        if width == 1:
            self._plain += 1
            if self._plain % EVERY:
                return
        self.costs.observe_target(width, seconds, depth)

    def observe_round(self, kind: str, emitted: Sequence[int], width: int, depth: int, sequences: int) -> None:
        known = self._kind(kind)
        passes = self.costs.target(width, depth) / self.target(sequences, depth)
        known.tokens += len(emitted) - known.tokens / ROUNDS
        known.passes += passes - known.passes / ROUNDS

    def target(self, tokens: int, depth: int) -> float:
        """Seconds of a target pass over so many tokens, padded or not."""
        return self.costs.target(max(self.least_width, tokens), depth)

    def _kind(self, name: str) -> _Kind:
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = _Kind()
        return kind

    def verdicts(self, kind: str) -> list[PaceVerdict]:
        """For each drafter that was asked under this kind of choosing, or is too expensive to be, what its guesses earn
        and cost."""
        known = self._kind(kind)
        plain_s = self.target(1, self._depth)
        return [
            PaceVerdict(
                name,
                record.rests,
                record.earned + (cost := record.cost if record.count else record.needed),
                cost,
                self.costs.step(name, self._depth, leaves=self.leaves) / plain_s,
                {width: self.target(width, self._depth) / plain_s for width in SHOWN_WIDTHS},
            )
            for name, record in known.records.items()
            if record.count or record.rests
        ]

    # --- remembering ----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What was learnt, as plain data; the costs have a state of their own."""
        return {
            name: {
                "tokens": kind.tokens,
                "passes": kind.passes,
                "drafters": {
                    drafter: {
                        "earned": record.earned,
                        "spread": record.spread,
                        "cost": record.cost,
                        "count": record.count,
                        "chances": list(record.chances),
                        "accepted": record.accepted,
                        "expected": record.expected,
                        "credit": record.credit,
                    }
                    for drafter, record in kind.records.items()
                },
            }
            for name, kind in self._kinds.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned once. Raises ValueError, TypeError, KeyError or AttributeError for what it
        cannot have returned."""
        kinds = {}
        for name, stored in state.items():
            kind = _Kind(_amount(stored["tokens"]), _amount(stored["passes"]))
            for drafter, known in stored["drafters"].items():
                chances = [_amount(chance, 1.0) for chance in known["chances"]]
                kind.records[drafter] = _Record(
                    earned=_amount(known["earned"], least=-math.inf),
                    spread=_amount(known["spread"]),
                    cost=_amount(known["cost"]),
                    count=int(_amount(known["count"])),
                    chances=deque(chances or [CHANCE], CHANCES),
                    accepted=_amount(known["accepted"]),
                    expected=_amount(known["expected"]) or TRUST,
                    share=self._share,
                    credit=min(self._share * MOST_CREDIT, _amount(known["credit"], least=-math.inf)),
                )
            kinds[name] = kind
        self._kinds = kinds


class AutoPlan:
    """One drafter's turn under the measured pace. `rate` is R in tokens per second of the table, `first_s` what the
    drafter's first guess takes, with what it has to read before."""

    def __init__(self, pace: AutoPace, kind: _Kind, record: _Record, turn: Turn) -> None:
        self.pace, self.kind, self.record, self.turn = pace, kind, record, turn
        self.tokens, self.value, self.is_drawn = turn.n_max, 0.0, False
        costs, depth = pace.costs, turn.depth
        self._lag = turn.lag()
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
        self.is_drawn = self.turn.drawn and any(law is not None for law in draft.laws)
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


def _amount(stored: float, most: float = math.inf, least: float = 0.0) -> float:
    if not least <= stored <= most or math.isinf(stored):
        raise ValueError("not what was learnt about a pair")
    return float(stored)
