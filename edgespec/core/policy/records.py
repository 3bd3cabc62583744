"""The state of the measured policy (records of drafters and sampling modes), and its verdicts.

"Gain" below means tokens that a draft adds to a step, less the tokens that plain decoding would have generated in the
time that the draft costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgespec.core.policy.policy import ProposalContext

# A comment that ends with "8: 1.2 %" means: with the value 8, replays of recorded answers are 1.2 % slower on average;
# "sequences" and "trees" name the replays that lose most. "Bound": the constant limits the cost of useless drafting.
CREDIT = 3.0  # credit at the start, and its maximum, in tokens for all drafters together; 8: 1.2 %
ANSWER = 256  # assumed steps of an answer, to decide on an untried drafter's prefill; bound
UNVERIFIED = 512  # steps without a verified draft, after which one is verified to measure its pass; bound
ANSWERS = 4  # answers in the mean length of an answer; a prefill has to pay off within this length
FIRST_GAIN = 1.0  # assumed gain of an untried drafter, compared with the drafts of others; 0: 1.9 %
CHANCE = 0.7  # initial probability that the token after an accepted token is accepted; never updated: 1.7 %
TRUST = 4.0  # weight, in tokens, of the assumption that a drafter is calibrated; not reset by answers: 1.2 %
RATE, RATED = 1.6, 20.0  # initial tokens per plain pass, and the weight of this value in passes; 1: 1.7 %, 8 % (trees)


@dataclass(frozen=True, slots=True)
class PolicyVerdict:
    """Why a drafter drafts or is backed off. Times are in target passes over one token."""

    drafter: str
    #: True if the drafter is backed off, and not asked for drafts
    rests: bool
    #: mean number of tokens that a draft adds to a step, less the cost of the wider target pass
    gain: float
    #: tokens that plain decoding would generate in the time of drafting
    cost: float
    #: time of a pass of the drafter
    step: float
    #: times of target passes by width
    widths: dict[int, float]


@dataclass(slots=True)
class Record:
    """The results of one drafter in one sampling mode."""

    #: gain per draft, a mean of about `DRAFTS` drafts
    gain: float = FIRST_GAIN
    #: cost of drafting in tokens, without the wider target pass, a mean of about `DRAFTS` drafts
    cost: float = 0.0
    #: number of drafts
    count: float = 0
    #: probability that the token after an accepted one is accepted too
    chance: float = CHANCE
    #: verified tokens that were accepted in recent steps
    accepted: float = TRUST
    #: tokens that were expected to be accepted in recent steps
    expected: float = TRUST
    #: tokens that the drafter may lose; it may draft without credit as long as its mean gain is positive
    credit: float = CREDIT
    #: tokens that the drafter's drafts gained over those of the drafters before it, and the steps of the answers in
    #: which it drafted, with less weight for earlier answers
    added: float = 0.0
    steps: float = 0.0
    #: step until which the drafter is backed off
    due: float = 0
    #: 1 if it has drafted in the current answer
    drafts: float = 0

    @property
    def calibration_ratio(self) -> float:
        """Accepted tokens per expected token: below 1 if the drafter is overconfident."""
        return self.accepted / self.expected

    def begin_answer(self) -> None:
        """Give a drafter that gained in the recent answers another chance: the last text may have been unusual."""
        # Calibration differs between texts, but a drafter that was wrong in all of them is trusted less from the start.
        self.accepted, self.expected = TRUST * math.sqrt(self.calibration_ratio), TRUST
        self.drafts = 0
        if self.added > 0:
            self.gain, self.due = max(self.gain, self.added / max(1.0, self.steps)), 0
        self.added -= self.added / ANSWERS
        self.steps -= self.steps / ANSWERS


@dataclass(slots=True)
class SamplingMode:
    """The state of the policy for one sampling mode, a verification rule and the way of sampling."""

    #: tokens generated in recent steps
    tokens: float = RATE * RATED
    #: time of these tokens, in plain passes
    passes: float = RATED
    #: mean number of steps of an answer
    answer: float = ANSWER
    #: steps of all sequences in this mode
    step: int = 0
    #: finished steps of the current answer
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

    def count(self, context: ProposalContext) -> None:
        """Count one more step of a sequence."""
        self.enter(context)
        self.step += 1
        if context.sequences == 1:
            self.last = context.step + 1
        for record in self.records.values():
            record.steps += record.drafts


LEAST = (-1e9, 0.0, 0.0, 0.0, 0.0, 0.01, -1e9, -1e9, 0.0)
"""The least values of the first fields of a `Record`, which are saved."""


def amounts(stored: Sequence[float], least: Sequence[float]) -> list[float]:
    """Return saved numbers as floats. Raises ValueError if one is below its least value or not finite."""
    if not all(low <= amount < math.inf for low, amount in zip(least, stored, strict=True)):
        raise ValueError("invalid saved state of a draft-length policy")
    return [float(amount) for amount in stored]
