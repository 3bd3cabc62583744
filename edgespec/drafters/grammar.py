"""Drafts the tokens that a grammar forces, such as keys and braces of a JSON object."""

from __future__ import annotations

from collections.abc import Mapping

from edgespec.drafters.base import DraftContext
from edgespec.drafters.walk import WalkingDrafter

SURE = 0.95  # not 1: the target may spell the same text with other tokens


class GrammarDrafter(WalkingDrafter[list[int]]):
    """Drafts only for answers under a constraint."""

    name = "grammar"

    def can_draft(self, sequence: DraftContext) -> bool:
        return sequence.sampler.constraint is not None

    def start(self, sequence: DraftContext) -> list[int]:
        constraint = sequence.sampler.constraint
        return constraint.forced(sequence.tokens) if constraint is not None else []

    def distribution(self, place: list[int], sequence: DraftContext, most: int) -> Mapping[int, float]:
        return {place[0]: SURE} if place else {}

    def step(self, place: list[int], token: int) -> list[int]:
        return place[1:]
