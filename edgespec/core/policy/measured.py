"""The measured draft-length policy: it decides which drafter drafts, and how much, from measured costs and gains.

One more draft token is worth it if it adds more tokens on average than plain decoding would generate in the same time
(renewal reward): the path probabilities of tokens k+1 to k+j must add up to more than R (c j + t(k+1+j) - t(k+1)). R is
the number of tokens generated per unit of time in recent steps, c a pass of the drafter and t(n) a target pass over n
tokens. The unit of time is a plain pass. The times are those of `core.policy.costs`, in which a disturbed pass counts
little. Only what is displayed afterwards is the time of each pass itself.

`core.policy.records` has the state of the policy, and defines "gain".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple
from functools import partial
from itertools import takewhile
from statistics import fmean
from typing import Any

from edgespec.core.draft import Budget, Draft
from edgespec.core.policy.costs import Costs
from edgespec.core.policy.policy import LENGTHS, Proposal, ProposalContext, Verified
from edgespec.core.policy.records import CREDIT, LEAST, PolicyVerdict, Record, SamplingMode, amounts

# `core.policy.records` says what percentages and "bound" mean here.
TRIAL_SHARE = 0.005  # share of the time of plain steps for trials of drafters that are backed off; bound
DEBT = 1.0  # tokens that a trial may cost beyond the credit, for the drafter's prefill; 0: 2.0 % (sequences)
PAUSE = 32  # steps before a drafter whose prefill is too long is considered again; 128: 2.2 %
UNTRIED = 0.05  # to decide on an untried drafter's prefill: assumed gain per step; bound
STEPS, DRAFTS = 48, 12  # steps in the mean of the rate, drafts in the mean of the gain; 24 both: 2.5 % (sequences)
AHEAD = 12  # tokens that a decision looks ahead; 1: 2.4 %
TEST_TOKENS = 3  # most tokens of a draft that is verified to measure its pass; bound
PLAIN_EVERY = 32  # passes with drafts after which two without are decoded: the second is the clock's yardstick
SHOWN_WIDTHS = (2, 3, 4, 8)


class MeasuredPolicy:
    """Drafts as many tokens as pay off, or none. The measurements are valid for one pair of models.

    Every drafter has a credit in tokens: a draft spends its cost and earns its gain. A drafter without credit whose
    drafts have gained nothing lately is backed off. So a drafter never loses more than it has gained before, its share
    of `CREDIT`, and `TRIAL_SHARE` of the time, which pays for a trial now and then. The draft of a trial is verified
    only if this is expected to pay off, or if none was verified for `UNVERIFIED` steps: without a test,
    costs that were measured too large would never be corrected. All other drafts of trials are only compared with the
    tokens that are generated without them.

    Target passes are padded to `least_width` tokens, trees have at most `leaves` leaves, and `drafters` is the number
    of drafters that share the allowed losses.
    """

    longest = 0
    """The length of the longest possible draft, which is allowed in addition to `LENGTHS`."""

    def __init__(self, costs: Costs, least_width: int = 1, leaves: int = 1, drafters: int = 1) -> None:
        self.costs, self.least_width, self.leaves = costs, least_width, leaves
        self._share = 1 / max(1, drafters)
        self._modes: dict[str, SamplingMode] = {}
        self._depth = 0
        self._drafted = 0 if costs.is_measured else PLAIN_EVERY  # passes with drafts since two without
        # Sequences in the last pass if it had no drafts: llama.cpp builds a graph for a pass of another width, so the
        # first plain pass after drafts takes longer than others.
        self._n_plain = 0

    # --- decisions ------------------------------------------------------------------------------------------------

    def budget(self, context: ProposalContext, drafter: str, n_unread: Callable[[], int]) -> Budget | None:
        mode = self._mode(context.mode)
        mode.enter(context)
        record = mode.records.get(drafter)
        if record is None:
            record = mode.records[drafter] = Record(credit=self._share * CREDIT)
        if record.due > mode.step:  # the usual case if no draft pays off, and so it must be fast
            return None
        if self._drafted >= PLAIN_EVERY:
            return Budget(0)
        step, reading = self._prices(context, drafter, n_unread())
        steps = min(context.remaining, mode.answer)  # in these steps the drafter's prefill has to pay off
        expected = steps * (record.added / record.steps if record.steps >= DRAFTS else UNTRIED)
        wait, allowance = 0, self._share * TRIAL_SHARE
        if reading > max(0.0, record.credit + DEBT, expected):
            wait = PAUSE
        elif record.credit < step and record.gain <= 0:
            wait = math.ceil((step - record.credit) / allowance)
        if wait:
            record.due = mode.step + wait
            # The steps without drafts earn credit for the next trial, up to the cost of this trial.
            needed = max(self._share * CREDIT, step, reading - DEBT)
            record.credit = max(record.credit, min(needed, record.credit + wait * allowance))
            return None
        best = max((self._value(context, draft) for draft in context.drafts()), default=0.0)
        if best > 0 and (record.gain - best) * steps <= reading:
            return Budget(0)
        if mode.is_test_due:
            return Budget(min(context.n_max, TEST_TOKENS))
        return Budget(context.n_max, worth=partial(self._is_worth, context, mode.rate, record, step))

    def select(self, contexts: Sequence[ProposalContext], width: int, room: int) -> list[Draft]:
        """Return the best draft of each sequence, cut to the tokens that gain the most together, the likeliest first.

        Sampled drafts are never cut: leaving out tokens by their confidence would bias the distribution of the text. A
        draft that does not seem to pay off is verified if a test is due.
        """
        drafts = [self._best(context) for context in contexts]
        worths = [self._worths(context, draft) for context, draft in zip(contexts, drafts, strict=True)]
        if len(contexts) == 1:
            most = max(0, min(room, contexts[0].n_max))
            counts = [self._cut(contexts[0], worths[0][:most])[0]]
            if not counts[0] and self._mode(contexts[0].mode).is_test_due:
                counts = [min(len(drafts[0]), most, TEST_TOKENS)]
        else:
            rate = fmean(self._mode(context.mode).rate for context in contexts)
            taken = sum(len(draft) for draft in drafts if draft.is_sampled)
            nodes = [(worth, i) for i, each in enumerate(worths) if not drafts[i].is_sampled for worth in each]
            nodes = sorted(nodes, reverse=True)[: max(0, room - taken)]
            base, depth = self.target(width + taken, contexts[0].depth), contexts[0].depth
            wide = [self.target(width + taken + n, depth) for n in range(1, 1 + len(nodes))]
            wider = [rate * (cost - base) / self._share_of_pass(contexts[0]) for cost in wide]
            shares = Counter(i for _, i in nodes[: _most([worth for worth, _ in nodes], wider)[0]])
            counts = [shares[i] for i in range(len(contexts))]
        return [draft if draft.is_sampled else draft.best(count) for draft, count in zip(drafts, counts, strict=True)]

    def record(self, verified: Sequence[Verified], seconds: float | None) -> None:
        if not verified:
            return
        n, drafted = len(verified), sum(len(each.draft) for each in verified)
        depth = self._depth = verified[0].context.depth
        plain, expected = self.target(n, depth), self.target(n + drafted, depth)
        cost = expected if seconds is None else seconds / self.costs.plain_s
        self._observe(n, drafted, seconds, depth)
        passes = self.target(n + drafted, depth) / plain
        for each in verified:
            mode = self._mode(each.context.mode)
            # A test that shows a cost to be too large is repeated until it is known.
            is_test = mode.is_test_due and cost < 0.9 * expected
            mode.unverified = 0 if each.draft and not is_test else mode.unverified + 1
            for proposal in each.context.proposals:
                # The cost of the wider pass, in tokens of plain decoding, is shared equally by the drafted tokens.
                share = n / max(1, drafted)
                self._count(each, proposal, mode, (passes - 1) * share, (cost / plain - 1) * share)
            for drafter, took_s in each.context.watched.items():
                self._add_cost(each.context, drafter, took_s)
            mode.count(each.context)
            mode.tokens += len(each.emitted) - mode.tokens / STEPS
            mode.passes += passes - mode.passes / STEPS

    def _observe(self, n: int, drafted: int, seconds: float | None, depth: int) -> None:
        """Learn the cost of a pass of `n` sequences with `drafted` draft tokens."""
        narrow, wide = max(self.least_width, n), max(self.least_width, n + drafted)
        if drafted:
            self._drafted += 1
            if seconds is not None:
                if wide > narrow:
                    self.costs.observe_target(wide, seconds, depth)
                if not self.costs.has_plain(depth):
                    self._drafted = PLAIN_EVERY
        elif n == self._n_plain:
            self._drafted = 0
            if seconds is not None:
                self.costs.observe_plain(narrow, seconds, depth)
        self._n_plain = 0 if drafted else n

    # --- one draft ------------------------------------------------------------------------------------------------

    def _count(self, verified: Verified, proposal: Proposal, mode: SamplingMode, wider: float, clocked: float) -> None:
        """Record the cost and gain of a proposal.

        Each verified node makes a target pass cost `wider` tokens more. It made this one cost `clocked` tokens more.
        """
        context, draft, record = verified.context, verified.draft, mode.records[proposal.drafter]
        step, reading = self._prices(context, proposal.drafter, proposal.n_unread)
        cost = proposal.passes * step
        took = cost + reading
        nodes = {node for node in range(len(draft)) if draft.source_of(node) == proposal.drafter}
        expected = sum(reach for node, reach in enumerate(draft.reaches()) if node in nodes)
        accepted = len(nodes & {*verified.path})
        # Calibrated expectations vary less than the number of accepted tokens. Without calibration, count the tokens.
        width = wider * len(nodes)
        won = (record.calibration_ratio * expected if context.invariant else accepted) - width
        # If the draft of another drafter was verified, estimate the gain that this draft would have had.
        gain = (won if len(nodes) == len(draft) else self._value(context, proposal.draft)) - cost
        if nodes:
            earlier = takewhile(lambda other: other is not proposal, context.proposals)
            best = max((self._value(context, other.draft) for other in earlier), default=0.0)
            record.added += accepted - width - best
        record.added -= cost
        record.drafts = 1
        record.count += 1
        share = max(1 / DRAFTS, 1 / (record.count + 1))
        record.gain += share * (gain - record.gain)
        record.cost += share * (cost - record.cost)
        for chance in proposal.draft.chances():
            record.chance += (chance - record.chance) / STEPS
        record.credit = min(self._share * CREDIT, max(-DEBT, record.credit - took) + won)
        if nodes:
            record.accepted += accepted - record.accepted / STEPS
            record.expected += expected - record.expected / STEPS
        mode.passes += took
        self._add_cost(context, proposal.drafter, proposal.seconds, clocked * len(nodes))
        where = context.depth, self.leaves, context.sequences
        if reading:
            took_s = proposal.seconds - (proposal.passes - 1) * step * self._plain_s(context)
            self.costs.observe_read(proposal.drafter, proposal.n_unread, took_s, *where)
        elif proposal.passes:
            self.costs.observe_step(proposal.drafter, proposal.seconds / proposal.passes, *where)

    def _add_cost(self, context: ProposalContext, drafter: str, seconds: float, wider: float = 0.0) -> None:
        """Add to the cost of a drafter in this step, in tokens of plain decoding by the clock."""
        if self.costs.is_measured:
            context.costs[drafter] = context.costs.get(drafter, 0.0) + seconds / self._plain_s(context) + wider

    def _plain_s(self, context: ProposalContext) -> float:
        """Return the seconds in which plain decoding generates a token now."""
        return self.costs.plain_s * self._share_of_pass(context)

    def _prices(self, context: ProposalContext, drafter: str, n_unread: int) -> tuple[float, float]:
        """Return the time of a drafter's pass, and the extra time of its prefill; the unit is a plain pass of a
        sequence."""
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
        for length in range(n + 1, min(context.n_max, n + AHEAD) + 1):
            last *= record.chance
            total += last
            if self._is_length(length) and total - wider(length) - rate * step * (length - n) > best:
                return True
        return False

    def _best(self, context: ProposalContext) -> Draft:
        drafts = context.drafts() or [Draft.empty()]
        return drafts[0] if len(drafts) == 1 else max(drafts, key=partial(self._value, context))

    def _value(self, context: ProposalContext, draft: Draft) -> float:
        """Return the tokens that a draft adds to a step, less the cost of its width. Sampled drafts rank first."""
        return math.inf if draft.is_sampled else self._cut(context, self._worths(context, draft))[1]

    def _worths(self, context: ProposalContext, draft: Draft) -> list[float]:
        """Return the calibrated probabilities that the nodes are accepted, the largest first."""
        records = self._mode(context.mode).records
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
        sequences, depth, rate = context.sequences, context.depth, self._mode(context.mode).rate
        plain = self.target(sequences, depth)
        return lambda n: rate * (self.target(sequences * (1 + n), depth) / plain - 1)

    def _share_of_pass(self, context: ProposalContext) -> float:
        """Return the cost of a sequence's share of a pass without drafts."""
        return self.target(context.sequences, context.depth) / context.sequences

    def target(self, tokens: int, depth: int) -> float:
        """Return the cost of a target pass over this many tokens, after padding."""
        return self.costs.target(max(self.least_width, tokens), depth)

    def _mode(self, name: str) -> SamplingMode:
        return self._modes.get(name) or self._modes.setdefault(name, SamplingMode())

    # --- explanations, saving -------------------------------------------------------------------------------------

    def verdicts(self, mode: str) -> list[PolicyVerdict]:
        """Return gain and cost of each drafter that was asked in this sampling mode, or is too expensive to ask."""
        known, plain = self._mode(mode), self.target(1, self._depth)
        widths = {width: self.target(width, self._depth) / plain for width in SHOWN_WIDTHS}
        verdicts = []
        for name, record in known.records.items():
            step = self.costs.step(name, self._depth, self.leaves) / plain
            cost = record.cost if record.count else step
            rests = 0 < record.due >= known.step or (record.gain <= 0 and record.credit < step)
            if record.count or rests:
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
                "drafters": {drafter: list(astuple(record)[: len(LEAST)]) for drafter, record in mode.records.items()},
            }
            for name, mode in self._modes.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved `state`. Raises ValueError, TypeError, KeyError or AttributeError if it is invalid."""
        modes = dict[str, SamplingMode]()
        for name, stored in state.items():
            tokens, passes, answer = amounts(stored["reached"], (0.0, 0.01, 0.0))
            modes[name] = SamplingMode(tokens, passes, answer)
            for drafter, known in stored["drafters"].items():
                modes[name].records[drafter] = Record(*amounts(known, LEAST))
        self._modes = modes


def _most(worths: Sequence[float], wider: Sequence[float]) -> tuple[int, float]:
    """Return the number n of first nodes with the largest value, and the value: their sum less `wider[n - 1]`."""
    n, best, total = 0, 0.0, 0.0
    for length, (worth, cost) in enumerate(zip(worths, wider, strict=False), 1):
        total += worth
        if total - cost > best:
            n, best = length, total - cost
    return n, best
