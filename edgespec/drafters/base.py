"""What the engine asks of everything that guesses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgespec.core.choose import Chooser
from edgespec.core.draft import Draft


class Guessable(Protocol):
    """What a drafter may know of a sequence: its slot, its tokens, and how its next tokens are chosen."""

    slot: int
    tokens: list[int]
    chooser: Chooser


class Drafter(Protocol):
    """Guesses for several sequences at once. One without an idea returns an empty draft; it never raises for that."""

    name: str

    def begin(self, sequence: Guessable) -> None:
        """A sequence starts in this slot; whatever the slot held before is gone."""

    def propose(self, sequences: Sequence[Guessable], budgets: Sequence[int]) -> list[Draft]:
        """One draft a sequence, of at most its budget of tokens."""

    def observe(self, sequence: Guessable) -> None:
        """`sequence.tokens` now ends with what the target made of the last draft."""

    def end(self, sequence: Guessable) -> None:
        """The sequence is over, its slot may be used again."""
