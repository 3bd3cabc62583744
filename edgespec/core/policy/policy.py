"""How much to guess: what the engine asks of a pace, and the pace of a fixed length.

The one that measures is in `core.auto_pace`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgespec.core.draft import Draft


@dataclass(slots=True)
class ProposalContext:
    """May this drafter guess for this sequence in this round, and how much?

    `kind` says how tokens are chosen and judged, on which acceptance depends. `n_max` is the most tokens that have
    room, `remaining` how many the answer can still have, `depth` those in the cache, `sequences` how many share the
    target's pass. `n_unread` counts the tokens that the drafter would have to read first. `drawn` guesses must not be
    left out for what they are. Where the text is not `settled` before anything is guessed, drafters cannot learn how
    sure they may be. `best` is what another drafter's guess is worth already, in tokens; with several `leaves` both can
    be verified. `round` counts the rounds of this answer.
    """

    kind: str
    drafter: str
    n_max: int
    remaining: int = 2**31
    depth: int = 0
    sequences: int = 1
    n_unread: Callable[[], int] = int
    drawn: bool = False
    settled: bool = True
    best: float = 0.0
    leaves: int = 1
    round: int = 0


class Plan(Protocol):
    """One drafter's turn: asked while it guesses, then for what of the guess goes into the target's pass."""

    @property
    def tokens(self) -> int:
        """The most tokens to guess."""

    @property
    def value(self) -> float:
        """What the settled draft is worth, in tokens beyond plain decoding; more than 0 if it is to be verified."""

    @property
    def wider(self) -> float | None:
        """Tokens that plain work would make in the time that verifying takes longer; None if that is not known."""

    def price(self, seconds: float) -> float | None:
        """Tokens that plain work would make in that time; None if that is not known."""

    def worth(self, reaches: Sequence[float], survival: float) -> bool:
        """Whether the drafter should make another pass. `reaches` are the probabilities that the target gets to the
        nodes guessed so far, the largest first, `survival` is that of the node that new ones will hang below."""

    def spent(self, passes: int, seconds: float) -> None:
        """What guessing took: passes of the drafter's model, or 1 for one without a model."""

    def settle(self, draft: Draft) -> Draft:
        """What of the draft is to be verified; where several sequences share a pass, what may be."""

    def merge(self, draft: Draft) -> tuple[Draft, float]:
        """What of a draft that several drafters made is to be verified, and what that is worth in tokens."""

    def shorten(self, draft: Draft) -> None:
        """Of the settled draft only `draft` is verified, and as much of those of all other sequences."""

    def share(self, draft: Draft, nodes: Sequence[int]) -> None:
        """Of the settled draft these nodes of `draft` are verified, the rest of which others have guessed."""

    def judged(self, accepted: int) -> None:
        """How many tokens of what this drafter guessed were accepted, if it was verified."""


Offer = tuple[Plan, Draft]
"""What is settled for a sequence, and the plan that has settled it."""


class DraftPolicy(Protocol):
    def awake(self, kind: str, drafters: Sequence[str]) -> Sequence[str]:
        """Which of these drafters are to be thought about in this round, asked once a round; a cheap question."""

    def plan(self, turn: ProposalContext) -> Plan | None:
        """How to guess now; None for not at all."""

    def allocate_verify_budget(self, offers: Sequence[Offer], width: int, depth: int, room: int) -> list[Draft]:
        """What of each draft to verify in a pass of several sequences, `width` tokens of which are not guessed, and
        which has room for `room` guesses."""

    def observe_pass(self, width: int, seconds: float, depth: int) -> None:
        """What a target pass over `width` tokens and everything around it but guessing took."""

    def observe_round(self, kind: str, emitted: Sequence[int], width: int, depth: int, sequences: int) -> None:
        """A sequence got the tokens `emitted` from a pass over `width` tokens, shared with `sequences - 1` others."""


@dataclass(slots=True)
class FixedPlan:
    """DraftCandidate that many tokens and verify all."""

    tokens: int
    value: float = 0.0
    wider: float | None = None

    def price(self, seconds: float) -> float | None:
        return None

    def worth(self, reaches: Sequence[float], survival: float) -> bool:
        return True

    def spent(self, passes: int, seconds: float) -> None:
        pass

    def settle(self, draft: Draft) -> Draft:
        # What was drawn must not be left out for what it is: its confidences tell something about that.
        drawn = any(distribution is not None for distribution in draft.distributions)
        self.value = math.inf if drawn else sum(draft.reaches())
        return draft

    def merge(self, draft: Draft) -> tuple[Draft, float]:
        best = draft.best(self.tokens)
        return best, sum(best.reaches())

    def shorten(self, draft: Draft) -> None:
        pass

    def share(self, draft: Draft, nodes: Sequence[int]) -> None:
        pass

    def judged(self, accepted: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class FixedPolicy:
    """Always that many tokens; a chain of the first drafter whose guesses promise half of them, of the most promising
    one where none does, or a tree of all. 0 guesses nothing."""

    tokens: int

    def awake(self, kind: str, drafters: Sequence[str]) -> Sequence[str]:
        return drafters if self.tokens > 0 else ()

    def plan(self, turn: ProposalContext) -> Plan | None:
        tokens = min(self.tokens, turn.n_max)
        return FixedPlan(tokens) if tokens > 0 and (turn.best < tokens / 2 or turn.leaves > 1) else None

    def allocate_verify_budget(self, offers: Sequence[Offer], width: int, depth: int, room: int) -> list[Draft]:
        return [draft.best(room // len(offers)) for _, draft in offers]

    def observe_pass(self, width: int, seconds: float, depth: int) -> None:
        pass

    def observe_round(self, kind: str, emitted: Sequence[int], width: int, depth: int, sequences: int) -> None:
        pass
