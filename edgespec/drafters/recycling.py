"""Token recycling: drafts the tokens that the target found likely after a token the last time (Luo et al., 2408.08696).

Verification computes rows of logits anyway. The most likely tokens of each row are stored as successors of the token
before it, and a chain or a tree grows from that table.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgespec.drafters.base import DraftContext, Outcome
from edgespec.drafters.successors import Successors
from edgespec.drafters.walk import WalkingDrafter

RELIABILITY = 0.5  # assumed probability that a stored row is also right after the same token elsewhere


class RecyclingDrafter(WalkingDrafter[int]):
    name = "recycling"
    needs_logits = True

    def __init__(self, successors: Successors) -> None:
        super().__init__()
        self._successors = successors

    def observe(self, outcome: Outcome) -> None:
        self._successors.learn(outcome)

    def start(self, sequence: DraftContext) -> int:
        return sequence.tokens[-1] if sequence.tokens else -1

    def distribution(self, place: int, sequence: DraftContext, most: int) -> Mapping[int, float]:
        if not sequence.is_draft_invariant:
            return {}
        ids, weights = self._successors.of(place, sequence.sampler.settings.temperature or 1.0)
        return dict(zip(ids[:most].tolist(), (RELIABILITY * weights[:most]).tolist(), strict=True))

    def step(self, place: int, token: int) -> int:
        return token
