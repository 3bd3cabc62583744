"""A drafter that continues a text which repeats itself with a short period, such as a table or a list of numbers."""

from __future__ import annotations

from collections.abc import Mapping

from edgespec.drafters.base import DraftContext
from edgespec.drafters.registry import Entry
from edgespec.drafters.walk import WalkingDrafter

LONGEST = 32  # tokens of a period
CONFIDENCE = 0.6  # the estimate that a drafted token is right, until it is known how many were


class PeriodDrafter(WalkingDrafter[list[int]]):
    """Drafts the tokens of the last period again. A place is the list of the tokens that follow."""

    name = "period"

    def start(self, sequence: DraftContext) -> list[int]:
        tokens = sequence.tokens
        for n in range(1, min(LONGEST, len(tokens) // 2) + 1):
            if tokens[-n:] == tokens[-2 * n : -n]:
                return tokens[-n:]
        return []

    def distribution(self, place: list[int], sequence: DraftContext, most: int) -> Mapping[int, float]:
        return {place[0]: CONFIDENCE} if place else {}

    def step(self, place: list[int], token: int) -> list[int]:
        return [*place[1:], place[0]]


ENTRY = Entry("period", "the last tokens again, if they were repeated", make=lambda parts: PeriodDrafter())
