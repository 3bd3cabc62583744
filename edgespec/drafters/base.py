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
    """Guesses for several sequences at once. One without an idea returns an empty draft; it never raises for that.

    What became of a draft shows in `sequence.tokens` the next time; a slot may hold another sequence by then.
    """

    name: str

    def propose(self, sequences: Sequence[Guessable], budgets: Sequence[int]) -> list[Draft]:
        """One draft a sequence, of at most its budget of tokens."""
