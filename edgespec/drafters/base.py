"""What the engine asks of everything that guesses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from edgespec.core.draft import Budget as Budget
from edgespec.core.draft import Draft
from edgespec.core.sampler import Sampler
from edgespec.core.sampling import FloatRow


class DraftContext(Protocol):
    """What a drafter may know of a sequence: its slot, its tokens, to which only more are added, and how its next ones
    are chosen. `draws` asks for guesses that are drawn from a distribution, with noise of round `round`;
    `is_draft_invariant` says that the text does not depend on what is guessed: where it does, drafters must not look at
    other texts, or the same seed gives another text the next time."""

    slot: int
    tokens: list[int]
    sampler: Sampler

    @property
    def draws(self) -> bool: ...

    @property
    def is_draft_invariant(self) -> bool: ...

    @property
    def round(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step gave a sequence. `tokens` are the last one before the step and those drafted ones that were accepted;
    `logits(i)` is the target's float32[n_vocab] for what follows `tokens[i]`, valid until its next pass."""

    sequence: DraftContext
    tokens: list[int]
    logits: Callable[[int], FloatRow]


class Drafter(ABC):
    """Guesses for several sequences at once: `begin` for each, then `propose` and `observe` in turn, at last `end`. One
    without an idea returns an empty draft; it never raises for that.

    What became of a draft shows in `sequence.tokens` at the next `propose`, to which not every step comes.
    `passes` counts the drafter's passes: over its model, or over its index.
    `needs_logits` asks for `observe`, `needs_layers` for `read`: with what flows into these layers of the target.
    `assumed_s` are the seconds of a guess, and of reading a token, before any was measured; None takes them to be a
    share of the target's.
    """

    name: str
    passes: int = 0
    needs_logits: bool = False
    needs_layers: tuple[int, ...] = ()
    assumed_s: tuple[float, float] | None = (1e-4, 2e-6)

    def can_draft(self, sequence: DraftContext) -> bool:
        """Whether this is one of the sequences that the drafter is for."""
        return True

    def n_unread(self, sequence: DraftContext) -> int:
        """How many tokens of the sequence, beside the last, have to be read before the next guess."""
        return 0

    def state(self) -> dict[str, Any]:
        """What was learnt from guessing that may be remembered, as plain data."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have nothing to remember
        """Go on from what `state` returned once. Raises ValueError, TypeError, KeyError or AttributeError for what it
        cannot have returned."""

    def begin(self, sequence: DraftContext) -> None:  # noqa: B027 - some keep nothing
        """From now on its slot holds this sequence."""

    def read(self, sequence: DraftContext, start: int, layers: Mapping[int, FloatRow]) -> None:  # noqa: B027
        """What flowed into each of the layers it needs, float32[n, D], while the target decoded n tokens of the
        sequence from position `start` on, accepted ones included. What was in the target's cache already does not
        come."""

    @abstractmethod
    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        """One draft a sequence, within its budget."""

    def observe(self, outcome: Outcome) -> None:  # noqa: B027 - most do not look
        """After a step: of each, or of one now and then while the policy has no use for the drafter."""

    def end(self, sequence: DraftContext) -> None:  # noqa: B027 - some keep nothing
        """Its slot is free."""
