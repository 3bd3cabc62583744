"""How much to draft: the lengths of drafts, which drafter, or none, from what drafting costs and earns.

One more draft token is worth it when the tokens it adds in the mean are more than plain work would make in the time it
costs (renewal reward): the sum of the path probabilities of tokens k+1 to k+j must exceed R (c j + t(k+1+j) - t(k+1)),
with R the tokens per plain pass reached so far, c a pass of the drafter and t(n) a target pass over n tokens, in plain
passes. These are of `core.costs`, not of the clock: a loaded machine must not change what is decided.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from edgespec.core.draft import Budget, Draft
from edgespec.core.policy.costs import Costs
from edgespec.core.policy.policy import LENGTHS, Proposal, ProposalContext, Verified

TRIAL_SHARE = 0.005  # of the time of plain steps may go into trying whether drafts pay
CREDIT = 4.0  # tokens that all drafters may lose before they have won any, and can save up
DEBT = 1.0  # tokens that a trial may cost beyond the credit, for reading what was missed
PAUSE = 32  # steps until a drafter is thought about again that has too much to read
FEW = 8  # tokens that a drafter reads along with its draft
UNTRIED, ANSWER = 0.05, 256  # tokens a step that an untried drafter is taken to earn, in so many steps of an answer
STEPS, DRAFTS = 48, 12  # of which the rate is a mean, about, and what a drafter's drafts are worth
CHANCE = 0.7  # how likely a token behind an accepted one is taken to be accepted, before any was seen
TRUST = 4.0  # tokens that a drafter is taken to have been right about
RATE, RATED = 1.6, 20.0  # tokens a pass that are taken to be in reach at first, and for how many passes
AHEAD = 12  # tokens that a decision looks ahead
EVERY = 4  # plain passes for one that is measured
SHOWN_WIDTHS = (2, 3, 4, 8)


@dataclass(frozen=True, slots=True)
class PolicyVerdict:
    """Why a drafter drafts or is backed off: `gain` is what a draft adds to a step in the mean, in tokens and less what
    its width costs, `cost` the tokens that plain work would make in the time of the draft. `step` is a pass of the
    drafter and `widths` are passes of the target by width, in target passes over one token."""

    drafter: str
    rests: bool
    gain: float
    cost: float
    step: float
    widths: dict[int, float]


@dataclass(slots=True)
class Record:
    """What one drafter's drafts were worth under one kind of choosing.

    `earned` is what a draft adds to a step beyond plain decoding, in tokens and less its width and what drafting costs,
    `cost` the drafting alone, both means of about `DRAFTS` drafts; `chance` is how likely a token behind an accepted
    one is accepted too. Of `expected` tokens that were verified `accepted` were right: so far promises are kept.
    `credit` is what the drafter may lose, in tokens; it may go on without while drafts earn
    something in the mean. It is backed off until the step `due`.
    """

    earned: float = 1.0
    cost: float = 0.0
    count: int = 0
    chance: float = CHANCE
    accepted: float = TRUST
    expected: float = TRUST
    credit: float = CREDIT
    due: int = 0
    step: int = 0

    @property
    def honesty(self) -> float:
        """What a promised token is worth."""
        return self.accepted / self.expected


@dataclass(slots=True)
class Kind:
    """What was reached under one kind of choosing: tokens and the time they took, in plain passes, both fading.
    `step` counts the steps of all sequences."""

    tokens: float = RATE * RATED
    passes: float = RATED
    step: int = 0
    records: dict[str, Record] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return max(1.0, self.tokens / self.passes)


class MeasuredPolicy:
    """Drafts as much as pays, and nothing where nothing does. What it learns holds for one pair of models.

    Every drafter has a credit: drafts take from it what they cost and give back what they earn. Without credit it
    is backed off, so that it never loses more than it has won, a little to begin with, and `TRIAL_SHARE` of the time,
    by which it comes to a trial now and then. A trial that promises nothing is compared with the tokens that come
    anyway, which takes no wider pass. Target passes are padded to `least_width`, trees have up to `leaves` leaves.
    What may be lost is shared out among so many `drafters`. `longest` is the longest draft that there may be.
    """

    longest = 0

    def __init__(self, costs: Costs, least_width: int = 1, leaves: int = 1, drafters: int = 1) -> None:
        self.costs, self.least_width, self.leaves = costs, least_width, leaves
        self._share = 1 / max(1, drafters)
        self._kinds: dict[str, Kind] = {}
        self._plain = self._depth = 0

    # --- the three questions --------------------------------------------------------------------------------------

    def budget(self, context: ProposalContext, drafter: str, n_unread: Callable[[], int]) -> Budget | None:
        kind = self._kind(context.kind)
        record = kind.records.get(drafter)
        if record is None:
            record = kind.records[drafter] = Record(credit=self._share * CREDIT)
        if record.due > kind.step:  # as is usual where nothing pays: this must cost next to nothing
            return None
        step, reading = self._prices(context, drafter, n_unread())
        steps = min(context.remaining, ANSWER)  # in which reading what it missed has to pay back
        hoped = steps * (record.earned if record.count >= DRAFTS else UNTRIED)
        wait = 0
        if 0 < reading > max(record.credit + DEBT, hoped):
            wait = PAUSE
        elif record.credit < step and record.earned <= 0:
            wait = math.ceil((step - record.credit) / (self._share * TRIAL_SHARE))
        if wait:
            record.due = kind.step + wait
            record.credit = min(self._share * CREDIT, record.credit + wait * self._share * TRIAL_SHARE)
            return None
        if context.step < record.step and context.sequences == 1:
            record.accepted = record.expected = TRUST  # how far promises are kept differs from text to text
        record.step = context.step
        best = max((self._value(context, proposal) for proposal in context.proposals), default=0.0)
        if best > 0 and (record.earned - best) * steps <= reading:
            return Budget(0)
        return Budget(context.n_max, worth=partial(self._is_worth, context, kind, record, step))

    def select(self, contexts: Sequence[ProposalContext], width: int, room: int) -> list[Draft]:
        """The best of each sequence's drafts; of these as many tokens as earn the most together, the likeliest first;
        all of what was sampled, whatever it is."""
        drafts, whole = [], []
        for context in contexts:
            best = max(context.proposals, key=lambda proposal: self._value(context, proposal), default=None)
            draft, value = (best.draft, self._value(context, best)) if best is not None else (Draft.empty(), 0.0)
            merged = context.merged()
            if merged is not None and self._best(context, merged)[1] > value:
                draft = merged
            drafts.append(draft)
            whole.append(best is not None and best.is_sampled)
        sampled = sum(len(draft) for draft, is_whole in zip(drafts, whole, strict=True) if is_whole)
        nodes = [
            (worth, number)
            for number, draft in enumerate(drafts)
            if not whole[number]
            for worth in self._worths(contexts[number], draft)
        ]
        nodes.sort(reverse=True)
        n, width, depth = len(contexts), width + sampled, contexts[0].depth
        rate = fmean(self._kind(context.kind).rate for context in contexts) * n / self.target(n, depth)
        room = room - sampled if n > 1 else contexts[0].n_max
        narrow_s = self.target(width, depth)
        kept, most, total = 0, 0.0, 0.0
        for number, (worth, _) in enumerate(nodes[: max(0, room)], 1):
            total += worth
            if n > 1 or self._is_length(number):
                gain = total - rate * max(0.0, self.target(width + number, depth) - narrow_s)
                if gain > most:
                    kept, most = number, gain
        counts = Counter(number for _, number in nodes[:kept])
        return [
            draft if is_whole else draft.best(counts[number])
            for number, (draft, is_whole) in enumerate(zip(drafts, whole, strict=True))
        ]

    def record(self, verified: Sequence[Verified], seconds: float | None) -> None:
        if not verified:
            return
        n, drafted = len(verified), sum(len(each.draft) for each in verified)
        depth = self._depth = verified[0].context.depth
        width, plain_s = max(self.least_width, n + drafted), self.target(n, depth)
        wider = max(0.0, self.target(width, depth) / plain_s - 1) * n  # tokens that plain work would make meanwhile
        for each in verified:
            kind = self._kind(each.context.kind)
            kind.step += 1
            for proposal in each.context.proposals:
                self._count(each, proposal, kind, wider / max(1, drafted))
            kind.tokens += len(each.emitted) - kind.tokens / STEPS
            kind.passes += self.target(width, depth) / plain_s - kind.passes / STEPS
        self._plain += width == 1
        if seconds is not None and (width > 1 or self._plain % EVERY == 0):
            self.costs.observe_target(width, seconds, depth)

    # --- one draft ------------------------------------------------------------------------------------------------

    def _count(self, verified: Verified, proposal: Proposal, kind: Kind, wider: float) -> None:
        """What a proposal cost and earned: each of its nodes made the target's pass take `wider` plain passes more."""
        context, draft, record = verified.context, verified.draft, kind.records[proposal.drafter]
        value = self._value(context, proposal)
        step, reading = self._prices(context, proposal.drafter, proposal.n_unread)
        cost, took = proposal.passes * step, (proposal.passes - 1) * step + max(step, reading)
        nodes = [node for node in range(len(draft)) if draft.source_of(node) == proposal.drafter]
        reaches = draft.reaches()
        promised, accepted = sum(reaches[node] for node in nodes), len({*nodes} & {*verified.path})
        # Promises that were learnt from what became of drafts vary less than what becomes of them.
        won = (record.honesty * promised if context.invariant else accepted) - wider * len(nodes)
        earned = (won if len(nodes) == len(draft) else value) - cost
        record.count += 1
        share = max(1 / DRAFTS, 1 / (record.count + 1))
        record.earned += share * (earned - record.earned)
        record.cost += share * (cost - record.cost)
        for chance in proposal.draft.chances():
            record.chance += (chance - record.chance) / 32
        record.credit = min(self._share * CREDIT, max(-DEBT, record.credit - took) + won)
        if nodes:
            record.accepted += accepted - record.accepted / STEPS
            record.expected += promised - record.expected / STEPS
        kind.passes += took
        plain_s = self.target(context.sequences, context.depth) / context.sequences
        proposal.cost = proposal.seconds / (plain_s * math.exp(self.costs.load)) + wider * len(nodes)
        work: dict[str, Any] = {"leaves": self.leaves, "sequences": context.sequences}
        if proposal.n_unread > FEW:
            took_s = proposal.seconds - (proposal.passes - 1) * step * plain_s
            self.costs.observe_read(proposal.drafter, proposal.n_unread, took_s, context.depth, **work)
        elif proposal.passes:
            self.costs.observe_step(proposal.drafter, proposal.seconds / proposal.passes, context.depth, **work)

    def _prices(self, context: ProposalContext, drafter: str, n_unread: int) -> tuple[float, float]:
        """A pass of the drafter, and reading what it missed, in plain passes of a sequence."""
        work: dict[str, Any] = {"leaves": self.leaves, "sequences": context.sequences}
        plain_s = self.target(context.sequences, context.depth) / context.sequences
        reading_s = self.costs.read(drafter, n_unread, context.depth, **work) if n_unread > FEW else 0.0
        return self.costs.step(drafter, context.depth, **work) / plain_s, reading_s / plain_s

    def _is_worth(
        self,
        context: ProposalContext,
        kind: Kind,
        record: Record,
        step: float,
        reaches: Sequence[float],
        survival: float,
    ) -> bool:
        """Whether the drafter should make another pass. `reaches` are the probabilities that the target gets to the
        nodes drafted so far, the largest first, `survival` is that of the node that new ones will hang below."""
        n = len(reaches)
        worths = [record.honesty * reach for reach in reaches]
        reached, survival = sum(worths), record.honesty * survival
        # What was sampled cannot be cut again.
        best = reached - kind.rate * self._wider(context, n) if context.sampled else self._cut(context, worths)[1]
        for length in range(n + 1, min(context.n_max, n + AHEAD) + 1):
            survival *= record.chance
            reached += survival
            if self._is_length(length):
                gain = reached - kind.rate * (self._wider(context, length) + step * (length - n))
                if gain > best:
                    return True
        return False

    def _value(self, context: ProposalContext, proposal: Proposal) -> float:
        """What the draft adds to a step beyond plain decoding, in tokens and less what its width costs."""
        if proposal.value is None:
            proposal.value = math.inf if proposal.is_sampled else self._best(context, proposal.draft)[1]
        return proposal.value

    def _best(self, context: ProposalContext, draft: Draft) -> tuple[int, float]:
        return self._cut(context, sorted(self._worths(context, draft), reverse=True)[: context.n_max])

    def _worths(self, context: ProposalContext, draft: Draft) -> list[float]:
        """The probability of each node that it is accepted."""
        records = self._kind(context.kind).records
        return [records[draft.source_of(node)].honesty * reach for node, reach in enumerate(draft.reaches())]

    def _cut(self, context: ProposalContext, worths: Sequence[float]) -> tuple[int, float]:
        """How many of the nodes to verify, and what they add, if other sequences in the pass verify as many."""
        rate = self._kind(context.kind).rate
        length, most, total = 0, 0.0, 0.0
        for n, worth in enumerate(worths, 1):
            total += worth
            if self._is_length(n):
                gain = total - rate * self._wider(context, n)
                if gain > most:
                    length, most = n, gain
        return length, most

    def _is_length(self, n: int) -> bool:
        return n in LENGTHS or n == self.longest

    def _wider(self, context: ProposalContext, n: int) -> float:
        """How much longer a pass takes for n more tokens a sequence, in passes; less is a disturbed measurement."""
        sequences, depth = context.sequences, context.depth
        return max(0.0, self.target(sequences * (1 + n), depth) / self.target(sequences, depth) - 1)

    def target(self, tokens: int, depth: int) -> float:
        """Seconds of a target pass over so many tokens, padded or not."""
        return self.costs.target(max(self.least_width, tokens), depth)

    def _kind(self, name: str) -> Kind:
        return self._kinds.get(name) or self._kinds.setdefault(name, Kind())

    # --- why, and remembering -------------------------------------------------------------------------------------

    def verdicts(self, kind: str) -> list[PolicyVerdict]:
        """For each drafter that was asked under this kind of choosing, or is too expensive to be, what its drafts earn
        and cost."""
        known, plain_s = self._kind(kind), self.target(1, self._depth)
        widths = {width: self.target(width, self._depth) / plain_s for width in SHOWN_WIDTHS}
        verdicts = []
        for name, record in known.records.items():
            step = self.costs.step(name, self._depth, leaves=self.leaves) / plain_s
            cost = record.cost if record.count else step
            rests = 0 < record.due >= known.step or (record.earned <= 0 and record.credit < step)
            if record.count or rests:
                verdicts.append(PolicyVerdict(name, rests, record.earned + cost, cost, step, widths))
        return verdicts

    def state(self) -> dict[str, Any]:
        """What was learnt, as plain data; the costs have a state of their own."""
        return {
            name: {
                "tokens": kind.tokens,
                "passes": kind.passes,
                "drafters": {
                    drafter: {what: asdict(record)[what] for what in LEARNT} for drafter, record in kind.records.items()
                },
            }
            for name, kind in self._kinds.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned once. Raises ValueError, TypeError, KeyError or AttributeError for what it
        cannot have returned."""
        self._kinds = {
            name: Kind(
                _amount(stored["tokens"]),
                _amount(stored["passes"], 0.01),
                records={
                    drafter: Record(*(_amount(known[what], least) for what, least in LEARNT.items()))
                    for drafter, known in stored["drafters"].items()
                },
            )
            for name, stored in state.items()
        }


LEARNT = {"earned": -1e9, "cost": 0.0, "count": 0.0, "chance": 0.0, "accepted": 0.0, "expected": 0.01, "credit": -1e9}
"""What is remembered of a record, its first fields, and the least that each can be."""


def _amount(stored: float, least: float = 0.0) -> float:
    if not least <= stored < math.inf:
        raise ValueError("not what was learnt about a pair")
    return float(stored)
