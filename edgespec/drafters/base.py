"""What the engine asks of everything that guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from edgespec.core.choose import Chooser
from edgespec.core.draft import Draft


class Guessable(Protocol):
    """What a drafter may know of a sequence: its slot, its tokens, to which only more are added, and how its next ones
    are chosen. `draws` asks for guesses that are drawn from a law, with noise of round `round`; `is_settled` says that
    the text does not depend on what is guessed."""

    slot: int
    tokens: list[int]
    chooser: Chooser

    @property
    def draws(self) -> bool: ...

    @property
    def is_settled(self) -> bool: ...

    @property
    def round(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens a draft may have, and how many of them may be leaves: 1 asks for a chain."""

    tokens: int
    leaves: int = 1


class Drafter(Protocol):
    """Guesses for several sequences at once. One without an idea returns an empty draft; it never raises for that.

    What became of a draft shows in `sequence.tokens` the next time; a slot may hold another sequence by then.
    """

    @property
    def name(self) -> str: ...

    def propose(self, sequences: Sequence[Guessable], budgets: Sequence[Budget]) -> list[Draft]:
        """One draft a sequence, within its budget."""
