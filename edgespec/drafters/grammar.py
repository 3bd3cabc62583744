"""What a grammar leaves no choice about is guessed without any work: keys and braces of a JSON object, for example."""

from __future__ import annotations

from collections.abc import Mapping

from edgespec.drafters.base import Guessable
from edgespec.drafters.walk import WalkingDrafter

SURE = 0.95  # a vocabulary has other ways to spell the same text


class GrammarDrafter(WalkingDrafter[list[int]]):
    """Guesses for answers under a constraint alone."""

    name = "grammar"

    def can_guess(self, sequence: Guessable) -> bool:
        return sequence.chooser.constraint is not None

    def start(self, sequence: Guessable) -> list[int]:
        constraint = sequence.chooser.constraint
        return constraint.forced(sequence.tokens) if constraint is not None else []

    def law(self, place: list[int], sequence: Guessable, most: int) -> Mapping[int, float]:
        return {place[0]: SURE} if place else {}

    def step(self, place: list[int], token: int) -> list[int]:
        return place[1:]
