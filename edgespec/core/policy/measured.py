"""How much to draft: the lengths of drafts, which drafter, or none, from what drafting costs and earns.

One more draft token is worth it when the tokens it adds in the mean are more than plain work would make in the time it
costs (renewal reward): the sum of the path probabilities of tokens k+1 to k+j must exceed R (c j + t(k+1+j) - t(k+1)),
with R the tokens per plain pass reached so far, c a pass of the drafter and t(n) a target pass over n tokens, in plain
passes. These are of `core.policy.costs`, not of the clock: a loaded machine must not change what is decided.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from itertools import accumulate
from statistics import fmean
from typing import Any

from edgespec.core.draft import Budget, Draft
from edgespec.core.policy.costs import Costs
from edgespec.core.policy.policy import LENGTHS, Proposal, ProposalContext, Verified

# Behind each what replays of recorded answers and of draft models lose in the mean without it or with another value, in
# several sequences or trees where these lose most; "promise": it bounds what drafting may cost where nothing is gained.
TRIAL_SHARE = 0.005  # of the time of plain steps may go into trying whether drafts pay; promise
CREDIT = 3.0  # tokens that all drafters may lose before they have won any, and can save up; 8: 1.2 %
DEBT = 1.0  # tokens that a trial may cost beyond the credit, for reading what was missed; 0: 2.0 % (sequences)
PAUSE = 32  # steps until a drafter is thought about again that has too much to read; 128: 2.2 %
UNTRIED, ANSWER = 0.05, 256  # tokens a step of an answer that long that an untried drafter may read for; promise
ANSWERS = 4  # of which the steps are a mean: what is read for a short answer cannot pay back
HOPE = 1.0  # tokens that an untried drafter is taken to add to a step where another has drafted; 0: 1.9 %
STEPS, DRAFTS = 48, 12  # of which the rate is a mean, and what drafts are worth; 24 both: 2.5 % (sequences)
CHANCE = 0.7  # how likely a token behind an accepted one is taken to be accepted at first; never learnt: 1.7 %
TRUST = 4.0  # tokens that a drafter is taken to have been right about; kept from answer to answer: 1.2 %
RATE, RATED = 1.6, 20.0  # tokens a pass that are taken to be in reach for so many passes; 1: 1.7 %, 8 % (trees)
AHEAD = 12  # tokens that a decision looks ahead; 1: 2.4 %
EVERY = 4  # plain passes for one that is measured; 1: 4 us a token, 1 % of the bundled model's
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
    `credit` is what the drafter may lose, in tokens; it goes on without while drafts earn something in the mean. It is
    backed off until the step `due`.
    """

    earned: float = HOPE
    cost: float = 0.0
    count: float = 0
    chance: float = CHANCE
    accepted: float = TRUST
    expected: float = TRUST
    credit: float = CREDIT
    due: float = 0
    step: float = 0

    @property
    def honesty(self) -> float:
        """What a promised token is worth."""
        return self.accepted / self.expected


@dataclass(slots=True)
class Kind:
    """What was reached under one kind of choosing: tokens and the time they took, in plain passes, both fading.
    `answer` is how many steps an answer takes, `step` counts those of all sequences, `last` those of this answer."""

    tokens: float = RATE * RATED
    passes: float = RATED
    answer: float = ANSWER
    step: int = 0
    last: int = 0
    records: dict[str, Record] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return max(1.0, self.tokens / self.passes)

    def count(self, context: ProposalContext) -> None:
        """One more step of a sequence."""
        self.step += 1
        if context.sequences == 1:
            if context.step < self.last:  # another answer has begun
                self.answer += (self.last - self.answer) / ANSWERS
            self.last = context.step + 1


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
        steps = min(context.remaining, kind.answer)  # in which reading what it missed has to pay back
        hoped = steps * (record.earned if record.count >= DRAFTS else UNTRIED)
        wait, allowance = 0, self._share * TRIAL_SHARE
        if reading > max(0.0, record.credit + DEBT, hoped):
            wait = PAUSE
        elif record.credit < step and record.earned <= 0:
            wait = math.ceil((step - record.credit) / allowance)
        if wait:
            record.due = kind.step + wait
            needed = max(self._share * CREDIT, step, reading - DEBT)
            record.credit = max(record.credit, min(needed, record.credit + wait * allowance))
            return None
        if context.step < record.step and context.sequences == 1:
            record.accepted = record.expected = TRUST  # how far promises are kept differs from text to text
        record.step = context.step
        best = max((self._value(context, draft) for draft in context.drafts()), default=0.0)
        if best > 0 and (record.earned - best) * steps <= reading:
            return Budget(0)
        return Budget(context.n_max, worth=partial(self._is_worth, context, kind.rate, record, step))

    def select(self, contexts: Sequence[ProposalContext], width: int, room: int) -> list[Draft]:
        """The best of each sequence's drafts; of these as many tokens as earn the most together, the likeliest first;
        all of what was sampled, whatever it is."""
        drafts = [max(context.drafts(), key=partial(self._value, context), default=_NONE) for context in contexts]
        worths = [self._worths(context, draft) for context, draft in zip(contexts, drafts, strict=True)]
        if len(contexts) == 1:
            counts = [self._cut(contexts[0], worths[0][: max(0, room)])[0]]
        else:
            rate = fmean(self._kind(context.kind).rate for context in contexts)
            taken = sum(len(draft) for draft in drafts if draft.is_sampled)
            nodes = [(worth, i) for i, each in enumerate(worths) if not drafts[i].is_sampled for worth in each]
            nodes = sorted(nodes, reverse=True)[: max(0, room - taken)]
            base_s, depth = self.target(width + taken, contexts[0].depth), contexts[0].depth
            wide_s = [self.target(width + taken + n, depth) for n in range(1, 1 + len(nodes))]
            wider = [rate * max(0.0, seconds - base_s) / self._plain_s(contexts[0]) for seconds in wide_s]
            shares = Counter(i for _, i in nodes[: _most([worth for worth, _ in nodes], wider)[0]])
            counts = [shares[i] for i in range(len(contexts))]
        return [draft if draft.is_sampled else draft.best(count) for draft, count in zip(drafts, counts, strict=True)]

    def record(self, verified: Sequence[Verified], seconds: float | None) -> None:
        n, drafted = len(verified), sum(len(each.draft) for each in verified)
        depth = self._depth = verified[0].context.depth if verified else 0
        passes = self.target(n + drafted, depth) / self.target(n, depth) if drafted else 1.0
        for each in verified:
            kind = self._kind(each.context.kind)
            kind.count(each.context)
            for proposal in each.context.proposals:
                # Each token that was drafted made the pass wider, by some of the tokens that plain work would make.
                self._count(each, proposal, kind, max(0.0, passes - 1) * n / max(1, drafted))
            kind.tokens += len(each.emitted) - kind.tokens / STEPS
            kind.passes += passes - kind.passes / STEPS
        self._plain += not drafted
        if verified and seconds is not None and (drafted or self._plain % EVERY == 0):
            self.costs.observe_target(max(self.least_width, n + drafted), seconds, depth)

    # --- one draft ------------------------------------------------------------------------------------------------

    def _count(self, verified: Verified, proposal: Proposal, kind: Kind, wider: float) -> None:
        """What a proposal cost and earned; each of its nodes that was verified cost `wider` tokens."""
        context, draft, record = verified.context, verified.draft, kind.records[proposal.drafter]
        step, reading = self._prices(context, proposal.drafter, proposal.n_unread)
        cost = proposal.passes * step
        took = cost + reading
        nodes = {node for node in range(len(draft)) if draft.source_of(node) == proposal.drafter}
        promised = sum(reach for node, reach in enumerate(draft.reaches()) if node in nodes)
        accepted = len(nodes & {*verified.path})
        # Promises that were learnt from what became of drafts vary less than what becomes of them.
        won = (record.honesty * promised if context.invariant else accepted) - wider * len(nodes)
        # Where another drafter's was verified, what its own would have earned.
        earned = (won if len(nodes) == len(draft) else self._value(context, proposal.draft)) - cost
        record.count += 1
        share = max(1 / DRAFTS, 1 / (record.count + 1))
        record.earned += share * (earned - record.earned)
        record.cost += share * (cost - record.cost)
        for chance in proposal.draft.chances():
            record.chance += (chance - record.chance) / STEPS
        record.credit = min(self._share * CREDIT, max(-DEBT, record.credit - took) + won)
        if nodes:
            record.accepted += accepted - record.accepted / STEPS
            record.expected += promised - record.expected / STEPS
        kind.passes += took
        plain_s, where = self._plain_s(context), (context.depth, self.leaves, context.sequences)
        proposal.cost = proposal.seconds / (plain_s * math.exp(self.costs.load)) + wider * len(nodes)
        if reading:
            took_s = proposal.seconds - (proposal.passes - 1) * step * plain_s
            self.costs.observe_read(proposal.drafter, proposal.n_unread, took_s, *where)
        elif proposal.passes:
            self.costs.observe_step(proposal.drafter, proposal.seconds / proposal.passes, *where)

    def _prices(self, context: ProposalContext, drafter: str, n_unread: int) -> tuple[float, float]:
        """A pass of the drafter, and what reading what it missed takes longer, in plain passes of a sequence."""
        where, plain_s = (context.depth, self.leaves, context.sequences), self._plain_s(context)
        step_s, reading_s = self.costs.step(drafter, *where), self.costs.read(drafter, n_unread, *where)
        return step_s / plain_s, max(0.0, reading_s - step_s) / plain_s

    def _is_worth(
        self, context: ProposalContext, rate: float, record: Record, step: float, reaches: Sequence[float], last: float
    ) -> bool:
        """Whether the drafter should make another pass. `reaches` are the probabilities that the target gets to the
        nodes drafted so far, the largest first, `last` is that of the node that new ones will hang below."""
        n, worths = len(reaches), [record.honesty * reach for reach in reaches]
        total, last = sum(worths), last * record.honesty
        # What was sampled cannot be cut again.
        best = total - self._wider(context, n) if context.sampled else self._cut(context, worths)[1]
        for length in range(n + 1, min(context.n_max, n + AHEAD) + 1):
            last *= record.chance
            total += last
            if self._is_length(length) and total - self._wider(context, length) - rate * step * (length - n) > best:
                return True
        return False

    def _value(self, context: ProposalContext, draft: Draft) -> float:
        """What a draft adds to a step beyond plain decoding, in tokens and less what its width costs."""
        return math.inf if draft.is_sampled else self._cut(context, self._worths(context, draft))[1]

    def _worths(self, context: ProposalContext, draft: Draft) -> list[float]:
        """The probabilities that the nodes are accepted, the largest first."""
        records = self._kind(context.kind).records
        worths = [records[draft.source_of(node)].honesty * reach for node, reach in enumerate(draft.reaches())]
        return sorted(worths, reverse=True)

    def _cut(self, context: ProposalContext, worths: Sequence[float]) -> tuple[int, float]:
        """How many of the nodes to verify, and what they add, if other sequences in the pass verify as many."""
        lengths = range(1, 1 + min(len(worths), context.n_max))
        return _most(worths, [self._wider(context, n) if self._is_length(n) else math.inf for n in lengths])

    def _is_length(self, n: int) -> bool:
        return n in LENGTHS or n == self.longest

    def _wider(self, context: ProposalContext, n: int) -> float:
        """Tokens that could be had while a pass takes longer for n more tokens a sequence."""
        wide_s, plain_s = self.target(context.sequences * (1 + n), context.depth), self._plain_s(context)
        # Less is a disturbed measurement.
        return self._kind(context.kind).rate * max(0.0, wide_s / (plain_s * context.sequences) - 1)

    def _plain_s(self, context: ProposalContext) -> float:
        """Seconds of a sequence's part of a pass without drafts."""
        return self.target(context.sequences, context.depth) / context.sequences

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
            step = self.costs.step(name, self._depth, self.leaves) / plain_s
            cost = record.cost if record.count else step
            rests = 0 < record.due >= known.step or (record.earned <= 0 and record.credit < step)
            if record.count or rests:
                verdicts.append(PolicyVerdict(name, rests, record.earned + cost, cost, step, widths))
        return verdicts

    def state(self) -> dict[str, Any]:
        """What was learnt, as plain data; the costs have a state of their own."""
        return {
            name: {
                "reached": [kind.tokens, kind.passes, kind.answer],
                "drafters": {drafter: list(astuple(record)[: len(LEAST)]) for drafter, record in kind.records.items()},
            }
            for name, kind in self._kinds.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned once. Raises ValueError, TypeError, KeyError or AttributeError for what it
        cannot have returned."""
        kinds = dict[str, Kind]()
        for name, stored in state.items():
            tokens, passes, answer = _amounts(stored["reached"], (0.0, 0.01, 0.0))
            kinds[name] = Kind(tokens, passes, answer)
            for drafter, known in stored["drafters"].items():
                kinds[name].records[drafter] = Record(*_amounts(known, LEAST))
        self._kinds = kinds


LEAST = (-1e9, 0.0, 0.0, 0.0, 0.0, 0.01, -1e9)
"""What the first fields of a record, which are remembered, can be at least."""
_NONE = Draft.empty()


def _most(worths: Sequence[float], wider: Sequence[float]) -> tuple[int, float]:
    """How many of the first nodes are worth the most, less how much n of them cost: `wider[n - 1]`; and what."""
    totals = accumulate(worths)
    gain, n = max(
        ((total - cost, -n) for n, (total, cost) in enumerate(zip(totals, wider, strict=False), 1)), default=(0.0, 0)
    )
    return (-n, gain) if gain > 0 else (0, 0.0)


def _amounts(stored: Sequence[float], least: Sequence[float]) -> list[float]:
    if not all(low <= amount < math.inf for low, amount in zip(least, stored, strict=True)):
        raise ValueError("not what was learnt about a pair")
    return [float(amount) for amount in stored]
