"""The interface of a draft-length policy, and the policy of a fixed length.

`core.policy.measured` has the policy that measures costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple, Protocol

from edgespec.core.draft import Budget, Draft

LENGTHS = (1, 2, 3, 4, 5, 7, 9, 11, 15, 23, 31, 47, 63)
"""The lengths of drafts that are verified.

The list is short because llama.cpp reuses the graph of a pass of the same width; the widths fill the tiles of kernels.
"""


def pass_widths(longest: int) -> list[int]:
    """Return the widths of passes that verify drafts of up to `longest` tokens, and of a pass without a draft."""
    return [1, *(1 + length for length in LENGTHS if length < longest), *([1 + longest] if longest else [])]


@dataclass(slots=True)
class Proposal:
    """A draft and what it took to make it."""

    drafter: str
    draft: Draft
    #: tokens that the drafter had to process first
    n_unread: int = 0
    #: passes of the drafter's model, or searches of its index
    passes: int = 1
    seconds: float = 0.0


@dataclass(slots=True)
class ProposalContext:
    """A sequence before a pass, and the drafts proposed for it."""

    #: verification rule and way of sampling; acceptance rates differ between modes
    mode: str
    #: most draft tokens that fit into the pass
    n_max: int
    #: tokens that the answer can still have
    remaining: int = 2**31
    #: tokens in the KV cache
    depth: int = 0
    #: sequences in the target's pass
    sequences: int = 1
    #: most leaves of a draft
    leaves: int = 1
    #: finished passes of this answer
    step: int = 0
    #: True if draft tokens are sampled from a distribution
    sampled: bool = False
    #: True if drafts cannot change the text; otherwise drafters cannot calibrate their confidence on it
    invariant: bool = True
    proposals: list[Proposal] = field(default_factory=list)
    #: by drafter that proposed nothing, the seconds in which it looked at the result of the pass
    watched: dict[str, float] = field(default_factory=dict)
    #: by drafter, the tokens that plain decoding would have generated in its time; filled in by a policy that measures
    costs: dict[str, float] = field(default_factory=dict)

    def drafts(self) -> list[Draft]:
        """Return the drafts that can be verified: each draft and, where trees are allowed, all of them merged."""
        drafts = [proposal.draft for proposal in self.proposals if proposal.draft]
        if len(drafts) > 1 and self.leaves > 1 and not self.sampled:
            drafts.append(reduce(lambda whole, draft: whole.merged(draft).within(self.leaves), drafts))
        return drafts


class Verified(NamedTuple):
    """The result of a pass for a sequence: the verified draft, its accepted nodes and the emitted tokens."""

    context: ProposalContext
    draft: Draft
    path: Sequence[int]
    emitted: Sequence[int]


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


class DraftPolicy(Protocol):
    def budget(self, context: ProposalContext, drafter: str, n_unread: Callable[[], int]) -> Budget | None:
        """Return how many tokens this drafter may draft for this sequence now, and when it should stop.

        None if the drafter is backed off, 0 tokens if its draft would not be used in this pass. `n_unread` counts the
        tokens that the drafter has to process first.
        """

    def select(self, contexts: Sequence[ProposalContext], width: int, room: int) -> list[Draft]:
        """Return the draft to verify for each sequence, cut as needed.

        The pass has `width` tokens without drafts, and room for `room` draft tokens.
        """

    def record(self, verified: Sequence[Verified], seconds: float | None) -> None:
        """Learn from a verified pass. `seconds` is its time without drafting, or None if the pass also read prompts."""


@dataclass(frozen=True, slots=True)
class FixedPolicy:
    """Drafts a fixed number of tokens; 0 turns drafting off.

    Drafters are asked in turn until one expects at least half of its tokens to be accepted; the best draft is verified.
    If trees are allowed, all drafters are asked and their drafts merged.
    """

    tokens: int

    def budget(self, context: ProposalContext, drafter: str, n_unread: Callable[[], int]) -> Budget | None:
        tokens = min(self.tokens, context.n_max)
        if tokens <= 0:
            return None
        best = max(map(_expected, context.drafts()), default=0.0)
        return Budget(tokens if context.leaves > 1 or best < tokens / 2 else 0)

    def select(self, contexts: Sequence[ProposalContext], width: int, room: int) -> list[Draft]:
        drafts = [max(context.drafts(), key=_expected, default=Draft.empty()) for context in contexts]
        sampled = [len(draft) for draft in drafts if draft.is_sampled]
        others = sum(map(bool, drafts)) - len(sampled)
        most = max(0, min(self.tokens, (room - sum(sampled)) // max(1, others)))
        return [
            draft if draft.is_sampled else draft.best(min(most, context.n_max))
            for context, draft in zip(contexts, drafts, strict=True)
        ]

    def record(self, verified: Sequence[Verified], seconds: float | None) -> None:
        pass


def _expected(draft: Draft) -> float:
    """Return the expected number of accepted tokens, for ranking.

    Sampled drafts rank first: choosing among sampled tokens by their confidence would bias the text's distribution.
    """
    return math.inf if draft.is_sampled else sum(draft.reaches())
