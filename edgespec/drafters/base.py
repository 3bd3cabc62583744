"""The protocol between the engine and a drafter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from edgespec.core.draft import Budget as Budget
from edgespec.core.draft import Draft
from edgespec.core.sampler import Sampler
from edgespec.core.sampling import FloatRow


class DraftContext(Protocol):
    """The part of a sequence that a drafter may read: its slot, its tokens (append-only) and its sampler.

    If `draws` is true, draft tokens must be sampled from a distribution, with the noise of step `round`. If
    `is_draft_invariant` is false, the text depends on the drafts: drafters must then use no other texts, or the same
    seed would give another text next time.
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


class Outcome(NamedTuple):
    """The result of a step for one sequence, whichever drafter made the draft."""

    sequence: DraftContext
    #: The last token before the step, and the accepted tokens.
    tokens: list[int]
    draft: Draft
    #: The accepted nodes of the draft.
    path: list[int]
    #: The target's float32[n_vocab] after a node, accepted or not, or after the last token before the step (-1); valid
    #: until its next pass.
    logits: Callable[[int], FloatRow]
    #: The token before `tokens`; -1: there is none.
    before: int = -1
    #: False if nothing of this answer may be saved.
    is_remembered: bool = True


class Drafter(ABC):
    """Drafts for several sequences at once: `begin` for each, then `propose` and `observe` alternately, at last `end`.

    A drafter that has nothing to propose returns an empty draft and never raises for it. The accepted tokens are in
    `sequence.tokens` at the next `propose`; some steps do not call it.
    """

    name: str
    #: The number of passes made, over the drafter's model or its index.
    passes: int = 0
    #: The number of drafts that were started while the target verified the draft before.
    overlapped: int = 0
    #: True if `observe` must be called.
    needs_logits: bool = False
    #: The layers of the target whose inputs `read` gets; none: `read` is not called.
    needs_layers: tuple[int, ...] = ()
    #: False if it reads a text from its start, and so cannot follow images, which have no tokens.
    follows_images: bool = True
    #: Seconds per draft token and per token of a prompt until they are measured; None: a share of the target's.
    assumed_s: tuple[float, float] | None = (1e-4, 2e-6)
    #: For a drafter with weights: all that its costs and its acceptance depend on.
    fingerprint: Mapping[str, object] | None = None

    def can_draft(self, sequence: DraftContext) -> bool:
        """Return whether the drafter can draft for this sequence."""
        return True

    def n_unread(self, sequence: DraftContext) -> int:
        """Return the number of uncached tokens of the sequence, except the last, to process before the next draft."""
        return 0

    def state(self) -> dict[str, object]:
        """Return, as plain data, what was learned from verified drafts."""
        return {}

    def restore(self, state: dict[str, object]) -> None:  # noqa: B027 - most have nothing to remember
        """Restore what `state` returned."""

    def begin(self, sequence: DraftContext) -> None:  # noqa: B027 - some keep nothing
        """Prepare for a sequence that was given its slot."""

    def read(self, sequence: DraftContext, start: int, layers: Mapping[int, FloatRow]) -> None:  # noqa: B027
        """Take the inputs of the layers in `needs_layers`, float32[n, D] each, for n decoded tokens from position
        `start` on.

        Accepted draft tokens are included. Tokens that were in the target's cache already are not: nothing computed
        them now.
        """

    @abstractmethod
    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        """Return one draft per sequence, within its budget."""

    def verifying(self, sequence: DraftContext, draft: Draft) -> bool:
        """Called when the target starts to verify this draft, made by this drafter, for the only sequence of the pass.

        The drafter may start the next draft in another thread until `settle`; returns whether it does.
        """
        return False

    def settle(self) -> bool:
        """Stop the work that `verifying` started, and wait for it; returns whether a draft was started. Raises its
        errors."""
        return False

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Stop all threads; safe to call twice."""

    def observe(self, outcome: Outcome) -> None:  # noqa: B027 - most do not look
        """Learn from a step: of each step, or of an occasional one while the policy does not use the drafter."""

    def end(self, sequence: DraftContext) -> None:  # noqa: B027 - some keep nothing
        """Forget a sequence that leaves its slot."""
