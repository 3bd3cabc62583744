"""The protocol between the engine and a drafter."""

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
    """What a drafter may read of a sequence: its slot, its tokens (append-only) and how the next ones are sampled.

    `draws` asks for draft tokens sampled from a distribution, with the noise of step `round`. `is_draft_invariant` says
    that the text does not depend on the draft: otherwise drafters must not use other texts, or the same seed gives
    another text next time.
    """

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
    """The result of a step for one sequence: of its draft, whoever made it, the nodes `path` were accepted. `tokens`
    are the last token before the step and the accepted ones; `logits(node)` is the target's float32[n_vocab] after a
    node, accepted or not, or after that last token (-1), valid until its next pass."""

    sequence: DraftContext
    tokens: list[int]
    draft: Draft
    path: list[int]
    logits: Callable[[int], FloatRow]


class Drafter(ABC):
    """Drafts for several sequences at once: `begin` for each, then `propose` and `observe` alternately, at last `end`.
    It returns an empty draft where it has nothing to propose, and never raises for that.

    The next `propose` shows in `sequence.tokens` what was accepted; not every step calls it. `passes` counts the
    drafter's passes: over its model, or over its index, `overlapped` the drafts that were begun while the target
    verified the one before. `needs_logits` asks for `observe`, `needs_layers` for `read`: with the inputs of these
    layers of the target. `assumed_s` are the seconds per draft token and per prefill token until they are measured;
    None assumes a share of the target's. `fingerprint` is what its costs and its acceptance depend on, if it has
    weights of its own.
    """

    name: str
    passes: int = 0
    overlapped: int = 0
    needs_logits: bool = False
    needs_layers: tuple[int, ...] = ()
    assumed_s: tuple[float, float] | None = (1e-4, 2e-6)
    fingerprint: Mapping[str, object] | None = None

    def can_draft(self, sequence: DraftContext) -> bool:
        """Whether the drafter can draft for this sequence."""
        return True

    def n_unread(self, sequence: DraftContext) -> int:
        """The number of uncached tokens of the sequence, except the last, to process before the next draft."""
        return 0

    def state(self) -> dict[str, Any]:
        """What was learned from verified drafts and can be saved, as plain data."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027 - most have nothing to remember
        """Restore what `state` returned. Raises ValueError, TypeError, KeyError or AttributeError for what it cannot
        have returned."""

    def begin(self, sequence: DraftContext) -> None:  # noqa: B027 - some keep nothing
        """The sequence takes its slot."""

    def read(self, sequence: DraftContext, start: int, layers: Mapping[int, FloatRow]) -> None:  # noqa: B027
        """What flowed into each of the layers it needs, float32[n, D], while the target decoded n tokens of the
        sequence from position `start` on, accepted ones included. What was in the target's cache already does not
        come."""

    @abstractmethod
    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        """One draft per sequence, within its budget."""

    def verifying(self, sequence: DraftContext, draft: Draft) -> bool:
        """The target begins to verify this draft, of this drafter and this sequence alone. The drafter may draft on in
        another thread until `settle`, and says whether it does."""
        return False

    def settle(self) -> bool:
        """Stop what `verifying` started, and wait for it; whether another draft was begun. Raises what went wrong."""
        return False

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Leave no thread behind; safe to call twice."""

    def observe(self, outcome: Outcome) -> None:  # noqa: B027 - most do not look
        """After a step: of each, or of an occasional one while the policy does not use the drafter."""

    def end(self, sequence: DraftContext) -> None:  # noqa: B027 - some keep nothing
        """The sequence leaves its slot."""
