"""How much to draft: what the engine asks of a draft-length policy, and the policy of a fixed length.

The one that measures is in `core.policy.measured`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
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

    `cost` are the tokens that plain decoding would have generated in the time that drafting and verifying it took; None
    until a policy has said so."""

    drafter: str
    draft: Draft
    n_unread: int = 0
    passes: int = 1
    seconds: float = 0.0
    cost: float | None = None


@dataclass(slots=True)
class ProposalContext:
    """A sequence before a pass, and what was proposed for it so far.

    `kind` says how tokens are chosen and judged, on which acceptance depends. `n_max` is the most tokens that have
    room, `remaining` how many the answer can still have, `depth` those in the cache, `sequences` how many share the
    target's pass, `leaves` how many a draft may have, `step` counts the passes of this answer. Drafts are to be
    `sampled` from a distribution, or not. Where the text is not `invariant` to drafts, drafters cannot learn how sure
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

    def drafts(self) -> list[Draft]:
        """What could be verified: each draft, and where trees are allowed one of all that several made."""
        drafts = [proposal.draft for proposal in self.proposals if proposal.draft]
        if len(drafts) > 1 and self.leaves > 1 and not self.sampled:
            drafts.append(reduce(lambda whole, draft: whole.merged(draft).within(self.leaves), drafts))
        return drafts


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
        best = max(map(_promise, context.drafts()), default=0.0)
        return Budget(tokens if context.leaves > 1 or best < tokens / 2 else 0)

    def select(self, contexts: Sequence[ProposalContext], width: int, room: int) -> list[Draft]:
        drafts = [max(context.drafts(), key=_promise, default=Draft.empty()) for context in contexts]
        sampled = [len(draft) for draft in drafts if draft.is_sampled]
        others = sum(map(bool, drafts)) - len(sampled)
        most = max(0, min(self.tokens, (room - sum(sampled)) // max(1, others)))
        return [
            draft if draft.is_sampled else draft.best(min(most, context.n_max))
            for context, draft in zip(contexts, drafts, strict=True)
        ]

    def record(self, verified: Sequence[Verified], seconds: float | None) -> None:
        pass


def _promise(draft: Draft) -> float:
    """What was sampled must not be left out for what it is: its confidences tell something about that."""
    return math.inf if draft.is_sampled else sum(draft.reaches())
