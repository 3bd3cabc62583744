"""How much to draft: what the engine asks of a draft-length policy, and the policy of a fixed length.

The one that measures is in `core.policy.measured`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edgespec.core.draft import Budget, Draft

LENGTHS = (1, 2, 3, 4, 5, 7, 9, 11, 15, 23, 31, 47, 63)
"""Lengths of drafts that are verified: few, as llama.cpp reuses the graph of a pass of the same width, and such that
widths fill the tiles of kernels."""


def pass_widths(longest: int) -> list[int]:
    """Widths of the passes that verify drafts of up to `longest` tokens, and of one without a draft."""
    return [1, *(1 + length for length in LENGTHS if length < longest), *([1 + longest] if longest else [])]


@dataclass(slots=True)
class Proposal:
    """What a drafter proposed: in `passes` over its model or index and `seconds`, after reading `n_unread` tokens.

    `value` is what the draft is worth in tokens beyond plain decoding, `cost` the tokens that plain decoding would have
    generated in the time that drafting and verifying it took; None until a policy has said so."""

    drafter: str
    draft: Draft
    n_unread: int = 0
    passes: int = 1
    seconds: float = 0.0
    value: float | None = None
    cost: float | None = None

    @property
    def is_sampled(self) -> bool:
        return any(distribution is not None for distribution in self.draft.distributions)


@dataclass(slots=True)
class ProposalContext:
    """A sequence before a pass, and what was proposed for it so far.

    `kind` says how tokens are chosen and judged, on which acceptance depends. `n_max` is the most tokens that have
    room, `remaining` how many the answer can still have, `depth` those in the cache, `sequences` how many share the
    target's pass, `leaves` how many a draft may have, `step` counts the passes of this answer. Drafts that are `sampled`
    must not be left out for what they are. Where the text is not `invariant` to drafts, drafters cannot learn how sure
    they may be.
    """

    kind: str
    n_max: int
    remaining: int = 2**31
    depth: int = 0
    sequences: int = 1
    leaves: int = 1
    step: int = 0
    sampled: bool = False
    invariant: bool = True
    proposals: list[Proposal] = field(default_factory=list)

    def merged(self) -> Draft | None:
        """One tree of all drafts, where trees are allowed and there are several."""
        drafts = [proposal.draft for proposal in self.proposals if proposal.draft]
        if self.leaves == 1 or self.sampled or len(drafts) < 2:
            return None
        whole = drafts[0]
        for draft in drafts[1:]:
            whole = whole.merged(draft).within(self.leaves)
        return whole


@dataclass(frozen=True, slots=True)
class Verified:
    """What a pass made of a sequence: `draft` was verified, its nodes `path` accepted, the tokens `emitted`."""

    context: ProposalContext
    draft: Draft
    path: Sequence[int]
    emitted: Sequence[int]


class DraftPolicy(Protocol):
    def budget(self, context: ProposalContext, drafter: str, n_unread: Callable[[], int]) -> Budget | None:
        """May this drafter draft for this sequence now, how many tokens, and when should it stop? None where it is
        backed off, 0 tokens where there is no use for it in this pass. `n_unread` counts what it has to read first."""

    def select(self, contexts: Sequence[ProposalContext], width: int, room: int) -> list[Draft]:
        """Which draft of each sequence, or how much of it, is verified in a pass with `width` tokens of the sequences'
        own and room for `room` others."""

    def record(self, verified: Sequence[Verified], seconds: float | None) -> None:
        """What became of the proposals for the sequences of a pass, and what it took with everything around it but
        drafting; None where it read prompts too."""


@dataclass(frozen=True, slots=True)
class FixedPolicy:
    """Always that many tokens; a chain of the first drafter whose drafts promise half of them, of the most promising
    one where none does, or a tree of all. 0 drafts nothing."""

    tokens: int

    def budget(self, context: ProposalContext, drafter: str, n_unread: Callable[[], int]) -> Budget | None:
        tokens = min(self.tokens, context.n_max)
        if tokens <= 0:
            return None
        best = max(map(_promise, context.proposals), default=0.0)
        return Budget(tokens if context.leaves > 1 or best < tokens / 2 else 0)

    def select(self, contexts: Sequence[ProposalContext], width: int, room: int) -> list[Draft]:
        best = [max(context.proposals, key=_promise, default=None) for context in contexts]
        drafting, drafts = sum(proposal is not None for proposal in best), []
        for context, proposal in zip(contexts, best, strict=True):
            draft = context.merged() or (proposal.draft if proposal is not None else Draft.empty())
            is_whole = proposal is not None and proposal.is_sampled
            drafts.append(draft if is_whole else draft.best(min(self.tokens, context.n_max, room // max(1, drafting))))
        return drafts

    def record(self, verified: Sequence[Verified], seconds: float | None) -> None:
        pass


def _promise(proposal: Proposal) -> float:
    """What was sampled must not be left out for what it is: its confidences tell something about that."""
    return math.inf if proposal.is_sampled else sum(proposal.draft.reaches())
