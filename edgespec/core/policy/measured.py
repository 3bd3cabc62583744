"""How much to guess: the lengths of drafts, which drafter, or none, from what guessing costs and earns.

One more guess is worth it when the tokens it adds in the mean are more than plain work would make in the time it costs
(renewal reward): the sum of the survival probabilities of guesses k+1 to k+j must exceed R (c j + t(k+1+j) - t(k+1)),
with R the tokens per second reached so far, c a pass of the drafter and t(n) a target pass over n tokens. Seconds are
those of `core.costs`, not of the clock: a loaded machine must not change what is decided. No clock is read in here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from edgespec.core.draft import Draft
from edgespec.core.policy.auto_plan import MOST_DEBT, AutoPlan
from edgespec.core.policy.costs import Costs
from edgespec.core.policy.policy import Offer, ProposalContext
from edgespec.core.policy.record import DRAFTS, FIRST_CREDIT, PAUSE, ROUNDS, TRUST, Kind, Record

SHOWN_WIDTHS = (2, 3, 4, 8)
EVERY = 4  # plain passes for one that is measured
ANSWER = 256  # tokens an answer goes on for, where nothing else bounds it
UNTRIED = 0.05  # and those that reading a prompt for it may cost


@dataclass(frozen=True, slots=True)
class PolicyVerdict:
    """Why a drafter guesses or rests: `gain` is what a guess adds to a round in the mean, in tokens and less what its
    width costs, `cost` the tokens that plain work would make in the time of the guess. `step` is a pass of the drafter
    and `widths` are passes of the target by width, in target passes over one token."""

    drafter: str
    rests: bool
    gain: float
    cost: float
    step: float
    widths: dict[int, float]


class MeasuredPolicy:
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
        self._kinds: dict[str, Kind] = {}
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

    def plan(self, turn: ProposalContext) -> AutoPlan | None:
        if turn.n_max <= 0:
            return None
        kind = self._kind(turn.kind)
        record = kind.records.get(turn.drafter)
        if record is None:
            record = kind.records[turn.drafter] = Record(share=self._share, credit=self._share * FIRST_CREDIT)
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

    def allocate_verify_budget(self, offers: Sequence[Offer], width: int, depth: int, room: int) -> list[Draft]:
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

    def _kind(self, name: str) -> Kind:
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = Kind()
        return kind

    def verdicts(self, kind: str) -> list[PolicyVerdict]:
        """For each drafter that was asked under this kind of choosing, or is too expensive to be, what its guesses earn
        and cost."""
        known = self._kind(kind)
        plain_s = self.target(1, self._depth)
        return [
            PolicyVerdict(
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
        return {name: kind.state() for name, kind in self._kinds.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned once. Raises ValueError, TypeError, KeyError or AttributeError for what it
        cannot have returned."""
        self._kinds = {name: Kind.restored(stored, self._share) for name, stored in state.items()}
