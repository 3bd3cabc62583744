"""The measured draft-length policy: it decides which drafter drafts, and how much, from measured costs and gains.

"Gain" means the tokens that a draft adds to a step, less the tokens that plain decoding would have generated in the
time that the draft costs. One more draft token is worth it if it has a gain on average (renewal reward): the path
probabilities of tokens k+1 to k+j must add up to more than R (c j + t(k+1+j) - t(k+1)). R is the number of tokens
generated per unit of time in recent steps, c a pass of the drafter and t(n) a target pass over n tokens. The unit of
time is a plain pass. The times are those of `core.policy.costs`, in which a disturbed pass counts little. Only what is
displayed afterwards is the time of each pass itself.

Three units occur. `Costs` knows seconds, and costs in plain passes: 1 is a target pass over one token. The policy
divides costs by a sequence's share of a plain pass (`_share_of_pass`). Plain decoding generates one token in that time,
so such a cost is also a number of tokens, and names that end in `_tokens` can be compared with drafted tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from itertools import takewhile
from statistics import fmean
from typing import Any

from edgespec.core.draft import Budget, Draft
from edgespec.core.policy.costs import PLAIN_RUN, Costs
from edgespec.core.policy.policy import LENGTHS, PolicyVerdict, Proposal, ProposalContext, Verified

# The share of the time of plain steps that is spent on trials of drafters that are backed off.
TRIAL_SHARE = 0.005

# How many steps, drafts and answers the running means remember: those of the rate, of a drafter's gain, and of what a
# drafter adds to an answer. A mean of n values changes by 1/n of each new difference.
STEPS, DRAFTS, ANSWERS = 48, 12, 4

# The tokens that the prefill of a trial may cost beyond what is saved for it. No larger loss is remembered.
DEBT = 3.0

# After this many passes with drafts, some passes without are decoded, because all costs are compared with plain passes.
PLAIN_EVERY = 48

# After `UNVERIFIED` steps without a verified draft, one of at most `TEST_TOKENS` tokens is verified: the known costs
# may be too large.
UNVERIFIED, TEST_TOKENS = 512, 3

# A test is repeated while it takes less than this share of the expected time, until the smaller cost is known.
CHEAPER = 0.9

SHOWN_WIDTHS = (2, 3, 4, 8)
SAVED = 8  # first fields of a `Record` (if they change, so does `VERSION` in engine/calibrate.py)


@dataclass(slots=True)
class Record:
    """The results of one drafter in one sampling mode. The first values are those of an untried drafter."""

    #: gain per draft, a mean of about `DRAFTS` drafts
    gain: float = 1.0
    #: cost of drafting in tokens, without the wider target pass, a mean of about `DRAFTS` drafts
    cost: float = 0.0
    #: number of drafts
    count: int = 0
    #: probability that the token after an accepted one is accepted too
    chance: float = 0.7
    #: verified tokens that were accepted in recent steps, and those that were expected to be
    accepted: float = 4.0
    expected: float = 4.0
    #: tokens that the drafter's drafts gained over those of the drafters before it, and the steps of the answers in
    #: which it drafted, with less weight for earlier answers
    added: float = 0.6
    steps: float = 12.0
    #: tokens that a trial may cost, saved in the steps in which the drafter was backed off; negative after losses
    allowance: float = 0.0
    #: step in which it was asked last, and step until which it is backed off
    asked: int = -1
    due: int = 0
    #: True if it has drafted in the current answer
    is_used: bool = False

    @property
    def calibration_ratio(self) -> float:
        """Accepted tokens per expected token: below 1 if the drafter is overconfident."""
        return self.accepted / self.expected

    def observe(self, gain: float, cost: float, draft: Draft) -> None:
        """Count a draft, with its gain and its cost in tokens."""
        self.is_used = True
        self.count += 1
        share = max(1 / DRAFTS, 1 / (self.count + 1))
        self.gain += share * (gain - self.gain)
        self.cost += share * (cost - self.cost)
        for chance in draft.chances():
            self.chance += (chance - self.chance) / STEPS

    def begin_answer(self) -> None:
        """Give a drafter that gained in the recent answers another chance: the last text may have been unusual."""
        # Calibration differs between texts, but a drafter that was wrong in all of them is trusted less from the start.
        self.accepted, self.expected = 4 * math.sqrt(self.calibration_ratio), 4
        if self.added > 0 and self.count:
            self.gain, self.due = max(self.gain, self.added / self.steps), 0
        if self.is_used:
            self.added -= self.added / ANSWERS
            self.steps -= self.steps / ANSWERS
        self.is_used = False


@dataclass(slots=True)
class SamplingMode:
    """The state of the policy for one sampling mode, a verification rule and the way of sampling."""

    #: tokens generated in recent steps, and the time that they took, in plain passes
    tokens: float = 32.0
    passes: float = 20.0
    #: mean number of steps of an answer
    answer: float = 256.0
    #: steps of all sequences in this mode, and finished steps of the current answer
    step: int = 0
    last: int = 0
    #: steps since a draft was verified
    unverified: int = 0
    records: dict[str, Record] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Tokens per plain pass, at least 1: plain decoding has 1, so a lower value is a disturbed measurement."""
        return max(1.0, self.tokens / self.passes)

    @property
    def is_test_due(self) -> bool:
        """True if no draft was verified for so long that the known costs of wider passes may be too large."""
        return self.unverified >= UNVERIFIED

    def enter(self, context: ProposalContext) -> None:
        """Notice the beginning of an answer."""
        if context.step < self.last and context.sequences == 1:
            self.answer += (self.last - self.answer) / ANSWERS
            self.last = 0
            for record in self.records.values():
                record.begin_answer()

    def count(self, context: ProposalContext, tokens: int, passes: float, allowance: float) -> None:
        """Count one more step of a sequence, with its tokens and its time.

        Drafters that were not asked earn an `allowance` for their next trial.
        """
        self.enter(context)
        if context.sequences == 1:
            self.last = context.step + 1
        self.tokens += tokens - self.tokens / STEPS
        self.passes += passes - self.passes / STEPS
        for record in self.records.values():
            if record.asked < self.step:
                record.allowance += allowance
            if record.due <= self.step:
                record.steps += record.is_used
        self.step += 1


class MeasuredPolicy:
    """Drafts as many tokens as pay off, or none. The measurements are valid for one pair of models.

    A drafter drafts as long as its last drafts have gained time on average. If not, it is backed off, and saves
    `TRIAL_SHARE` of the time, for its last loss and for a trial now and then. The draft of a trial is verified only
    if this is expected to pay off, or if none was verified for `UNVERIFIED` steps: without a test, costs that were
    measured too large would never be corrected. All other drafts of trials are only compared with the tokens that are
    generated without them.

    Trees have at most `leaves` leaves, and `drafters` is the number of drafters that share the time for trials.
    """

    longest = 0
    """The length of the longest possible draft, which is allowed in addition to `LENGTHS`."""

    def __init__(self, costs: Costs, leaves: int = 1, drafters: int = 1) -> None:
        self.costs, self.leaves = costs, leaves
        self._allowance = TRIAL_SHARE / drafters
        self._modes: dict[str, SamplingMode] = {}
        self._depth = 0
        self._drafted = 0 if costs.is_measured else PLAIN_EVERY  # passes with drafts since the last yardstick
        self._n_plain, self._n_sequences = 0, 0  # passes without drafts since, and sequences in the last pass

    # --- decisions ------------------------------------------------------------------------------------------------

    def budget(self, context: ProposalContext, drafter: str, n_unread: Callable[[], int]) -> Budget | None:
        """Return how many tokens this drafter may draft now.

        A drafter has to pay for a pass (`step_tokens`) and for the tokens that it has not read (`reading_tokens`): by
        its usual gain, which earns the prefill back in the remaining steps, or else by the tokens that it has saved for
        a trial.
        """
        mode = self._mode(context)
        mode.enter(context)
        record = mode.records.get(drafter) or mode.records.setdefault(drafter, Record())
        if record.due > mode.step:  # the usual case if no draft pays off, and so it must be fast
            return None
        if self._drafted >= PLAIN_EVERY:
            return Budget(0)
        step_tokens, reading_tokens = self._prices(context, drafter, n_unread())
        steps = min(context.remaining, mode.answer)  # in these steps the drafter's prefill has to pay off
        added_tokens = max(0.0, steps * record.added / record.steps)
        pays = record.gain > 0 and reading_tokens <= added_tokens
        missing_tokens = max(step_tokens, step_tokens + reading_tokens - DEBT) - record.allowance
        if not pays and missing_tokens > 0:
            if record.gain <= 0:  # else it may pay for another sequence, which has read more
                # Each step of waiting saves `_allowance` tokens.
                record.due = mode.step + min(STEPS, math.ceil(missing_tokens / self._allowance))
            return None
        # Another drafter's draft may already be so good that this one has no gain left to pay its prefill.
        best_tokens = max((self._value(context, draft) for draft in context.drafts()), default=0.0)
        if best_tokens > 0 and (record.gain - best_tokens) * steps <= reading_tokens:
            return Budget(0)
        record.asked = mode.step
        if mode.is_test_due:
            return Budget(min(context.n_max, TEST_TOKENS))
        return Budget(context.n_max, worth=partial(self._is_worth, context, mode.rate, record, step_tokens))

    def select(self, contexts: Sequence[ProposalContext], width: int, room: int) -> list[Draft]:
        """Return the best draft of each sequence, cut to the tokens that gain the most together, the likeliest first.

        Sampled drafts are never cut: leaving out tokens by their confidence would bias the distribution of the text. A
        draft that does not seem to pay off is verified if a test is due.
        """
        drafts = [
            max(context.drafts(), key=partial(self._value, context), default=Draft.empty()) for context in contexts
        ]
        worths = [self._worths(context, draft) for context, draft in zip(contexts, drafts, strict=True)]
        first = contexts[0]
        if len(contexts) == 1:
            most = max(0, min(room, first.n_max))
            counts = [self._cut(first, worths[0][:most])[0]]
            if not counts[0] and self._mode(first).is_test_due:
                counts = [min(len(drafts[0]), most, TEST_TOKENS)]
        else:
            counts = self._counts(contexts, drafts, worths, width, room)
        return [draft if draft.is_sampled else draft.best(count) for draft, count in zip(drafts, counts, strict=True)]

    def _counts(
        self,
        contexts: Sequence[ProposalContext],
        drafts: Sequence[Draft],
        worths: Sequence[Sequence[float]],
        width: int,
        room: int,
    ) -> list[int]:
        """Return how many nodes of each draft to verify in a pass that several sequences share.

        The likeliest nodes of all drafts are added one after the other, since each of them makes the pass wider for
        all. `worths` are the probabilities that the nodes are accepted; sampled drafts are in the pass in any case.
        """
        first, rate = contexts[0], fmean(self._mode(context).rate for context in contexts)
        n_sampled = sum(len(draft) for draft in drafts if draft.is_sampled)
        nodes = [(worth, i) for i, each in enumerate(worths) if not drafts[i].is_sampled for worth in each]
        nodes = sorted(nodes, reverse=True)[: max(0, room - n_sampled)]
        passes = [self.costs.target(width + n_sampled + n, first.depth) for n in range(1 + len(nodes))]
        wider_tokens = [rate * (cost - passes[0]) / self._share_of_pass(first) for cost in passes[1:]]
        n, _ = _most([worth for worth, _ in nodes], wider_tokens)
        shares = Counter(i for _, i in nodes[:n])
        return [shares[i] for i in range(len(contexts))]

    def record(self, verified: Sequence[Verified], seconds: float | None) -> None:
        """Learn from a verified pass. Its cost and the expected one are in plain passes; divided by the cost of the
        pass without drafts, they are in tokens of each sequence."""
        if not verified:
            self._n_plain = 0
            return
        n, drafted = len(verified), sum(len(each.draft) for each in verified)
        depth = self._depth = verified[0].context.depth
        plain, expected = self.costs.target(n, depth), self.costs.target(n + drafted, depth)
        cost = expected if seconds is None else seconds / self.costs.plain_s
        self._observe(verified, drafted, seconds, depth)
        passes = self.costs.target(n + drafted, depth) / plain
        share = n / max(1, drafted)  # the cost of a wider pass, in tokens of plain decoding, of each drafted token
        for each in verified:
            context, mode = each.context, self._mode(each.context)
            # A test that shows a cost to be too large is repeated until it is known.
            is_test = mode.is_test_due and cost < CHEAPER * expected
            mode.unverified = 0 if each.draft and not is_test else mode.unverified + 1
            took = 0.0
            for proposal in context.proposals:
                nodes = [node for node in range(len(each.draft)) if each.draft.source_of(node) == proposal.drafter]
                took += self._count(each, proposal, nodes, mode.records[proposal.drafter], (passes - 1) * share)
                wider = (cost / plain - 1) * share * len(nodes)
                self._show(context, proposal.drafter, proposal.seconds / self._plain_s(context) + wider)
            for drafter, took_s in context.watched.items():
                self._show(context, drafter, took_s / self._plain_s(context))
            mode.count(context, len(each.emitted), passes + took, self._allowance)

    def _observe(self, verified: Sequence[Verified], drafted: int, seconds: float | None, depth: int) -> None:
        """Learn from the seconds of a pass with `drafted` draft tokens."""
        n, costs = len(verified), self.costs
        is_same, self._n_sequences = n == self._n_sequences, n
        if drafted or any(each.context.proposals for each in verified):
            self._drafted, self._n_plain = self._drafted + 1, 0
            if seconds is not None and n + drafted > max(n, costs.least_width):
                costs.observe_target(n + drafted, seconds, depth)
            if seconds is not None and not costs.has_plain(depth):
                self._drafted = PLAIN_EVERY
            return
        self._n_plain += 1
        if is_same and self._n_plain >= PLAIN_RUN:
            self._drafted = 0
            if seconds is not None:
                costs.observe_plain(max(n, costs.least_width), seconds, depth)

    # --- one draft ------------------------------------------------------------------------------------------------

    def _count(
        self, verified: Verified, proposal: Proposal, nodes: Sequence[int], record: Record, wider: float
    ) -> float:
        """Record the cost and gain of a proposal. Its verified `nodes` make a pass cost `wider` tokens more each.

        Everything here is in tokens, except for the seconds that are passed on to `costs`. Returns the time of the
        proposal.
        """
        context, draft = verified.context, verified.draft
        step, reading = self._prices(context, proposal.drafter, proposal.n_unread)
        cost, width = proposal.passes * step, wider * len(nodes)
        reaches = draft.reaches()
        expected = sum(reaches[node] for node in nodes)
        accepted = len({*nodes} & {*verified.path})
        # Calibrated expectations vary less than the number of accepted tokens. Without calibration, count the tokens.
        won = (record.calibration_ratio * expected if context.invariant else accepted) - width
        # If the draft of another drafter was verified, estimate the gain that this draft would have had.
        gain = (won if len(nodes) == len(draft) else self._value(context, proposal.draft)) - cost
        if nodes:
            earlier = takewhile(lambda other: other is not proposal, context.proposals)
            best = max((self._value(context, other.draft) for other in earlier), default=0.0)
            record.added += accepted - width - best
            record.accepted += accepted - record.accepted / STEPS
            record.expected += expected - record.expected / STEPS
        record.added -= cost
        record.observe(gain, cost, proposal.draft)
        loss = max(-DEBT, record.allowance + won - cost - reading)
        record.allowance = min(0.0, loss) if record.gain <= 0 else 0.0
        where = context.depth, self.leaves, context.sequences
        if reading:
            took_s = proposal.seconds - (proposal.passes - 1) * step * self._plain_s(context)
            self.costs.observe_read(proposal.drafter, proposal.n_unread, took_s, *where)
        elif proposal.passes:
            self.costs.observe_step(proposal.drafter, proposal.seconds / proposal.passes, *where)
        return cost + reading

    def _show(self, context: ProposalContext, drafter: str, cost: float) -> None:
        """Add to the displayed cost of a drafter in this step, in tokens of plain decoding by the clock."""
        if self.costs.is_measured:
            context.costs[drafter] = context.costs.get(drafter, 0.0) + cost

    def _plain_s(self, context: ProposalContext) -> float:
        """Return the seconds in which plain decoding generates a token now."""
        return self.costs.plain_s * self._share_of_pass(context)

    def _prices(self, context: ProposalContext, drafter: str, n_unread: int) -> tuple[float, float]:
        """Return the time of a drafter's pass, and the extra time of its prefill, in tokens of plain decoding."""
        where, share = (context.depth, self.leaves, context.sequences), self._share_of_pass(context)
        step, reading = self.costs.step(drafter, *where), self.costs.read(drafter, n_unread, *where)
        return step / share, max(0.0, reading - step) / share

    def _is_worth(
        self, context: ProposalContext, rate: float, record: Record, step: float, reaches: Sequence[float], last: float
    ) -> bool:
        """Return whether another pass of the drafter pays off.

        `reaches` are the path probabilities of the drafted nodes, the largest first; `last` is the path
        probability of the node to which the pass would add children.
        """
        n, worths = len(reaches), [record.calibration_ratio * reach for reach in reaches]
        total, last, wider = sum(worths), last * record.calibration_ratio, self._wider(context)
        # A sampled draft must be verified whole, so its value now is that of all its tokens.
        best = total - wider(n) if context.sampled else self._cut(context, worths)[1]
        for length in range(n + 1, context.n_max + 1):
            last *= record.chance
            total += last
            if self._is_length(length) and total - wider(length) - rate * step * (length - n) > best:
                return True
        return False

    def _value(self, context: ProposalContext, draft: Draft) -> float:
        """Return the tokens that a draft adds to a step, less the cost of its width. Sampled drafts rank first."""
        return math.inf if draft.is_sampled else self._cut(context, self._worths(context, draft))[1]

    def _worths(self, context: ProposalContext, draft: Draft) -> list[float]:
        """Return the calibrated probabilities that the nodes are accepted, the largest first."""
        records = self._mode(context).records
        reaches = enumerate(draft.reaches())
        worths = [records[draft.source_of(node)].calibration_ratio * reach for node, reach in reaches]
        return sorted(worths, reverse=True)

    def _cut(self, context: ProposalContext, worths: Sequence[float]) -> tuple[int, float]:
        """Return how many nodes to verify, and their value, if the other sequences in the pass verify equally many."""
        lengths, wider = range(1, 1 + min(len(worths), context.n_max)), self._wider(context)
        return _most(worths, [wider(n) if self._is_length(n) else math.inf for n in lengths])

    def _is_length(self, n: int) -> bool:
        return n in LENGTHS or n == self.longest

    def _wider(self, context: ProposalContext) -> Callable[[int], float]:
        """Return a function of n: the tokens that could be generated in the time that n more tokens per sequence add to
        a pass."""
        sequences, depth, rate = context.sequences, context.depth, self._mode(context).rate
        plain = self.costs.target(sequences, depth)
        return lambda n: rate * (self.costs.target(sequences * (1 + n), depth) / plain - 1)

    def _share_of_pass(self, context: ProposalContext) -> float:
        """Return the cost of a sequence's share of a pass without drafts."""
        return self.costs.target(context.sequences, context.depth) / context.sequences

    def _mode(self, context: ProposalContext) -> SamplingMode:
        return self._modes.get(context.mode) or self._modes.setdefault(context.mode, SamplingMode())

    # --- explanations, saving -------------------------------------------------------------------------------------

    def verdicts(self, mode: str) -> list[PolicyVerdict]:
        """Return gain and cost of each drafter that was asked in this sampling mode, or was too expensive to ask."""
        known, plain = self._modes.get(mode, SamplingMode()), self.costs.target(1, self._depth)
        widths = {width: self.costs.target(width, self._depth) / plain for width in SHOWN_WIDTHS}
        verdicts = []
        for name, record in known.records.items():
            step = self.costs.step(name, self._depth, self.leaves) / plain
            cost = record.cost if record.count else step
            rests = 0 < record.due >= known.step or (record.gain <= 0 and record.allowance < step) or not record.count
            verdicts.append(PolicyVerdict(name, rests, record.gain + cost, cost, step, widths))
        return verdicts

    @property
    def n_steps(self) -> int:
        """The steps of all sequences since the start."""
        return sum(mode.step for mode in self._modes.values())

    def has_gained(self, drafter: str) -> bool | None:
        """Return whether the drafts of a drafter gain time in a sampling mode that was used since the start.

        False if it was backed off in all of them; None if unknown.
        """
        records = [mode.records[drafter] for mode in self._modes.values() if mode.step and drafter in mode.records]
        if any(record.gain > 0 and record.count >= DRAFTS for record in records):
            return True
        return False if records and all(record.due for record in records) else None

    def state(self) -> dict[str, Any]:
        """Return the results of all drafters as plain data, without the costs, which have a separate state."""
        return {
            name: {
                "reached": [mode.tokens, mode.passes, mode.answer],
                "records": {drafter: astuple(record)[:SAVED] for drafter, record in mode.records.items()},
            }
            for name, mode in self._modes.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved `state`."""
        for name, mode in state.items():
            self._modes[name] = SamplingMode(*mode["reached"])
            self._modes[name].records = {drafter: Record(*saved) for drafter, saved in mode["records"].items()}


def _most(worths: Sequence[float], wider: Sequence[float]) -> tuple[int, float]:
    """Return the number n of first nodes with the largest value, and the value: their sum less `wider[n - 1]`."""
    n, best, total = 0, 0.0, 0.0
    for length, (worth, cost) in enumerate(zip(worths, wider, strict=False), 1):
        total += worth
        if total - cost > best:
            n, best = length, total - cost
    return n, best
