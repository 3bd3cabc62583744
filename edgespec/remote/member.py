"""The protocol of members of a fleet: a server, or an actor on a node of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from edgespec.errors import EdgespecError, GenerationError
from edgespec.events import TokenEvent
from edgespec.settings import Request

POLL_S = 0.03  # how long a cancel may go unnoticed

Arrived = TokenEvent | EdgespecError | None
"""An event of an answer, the error with which it fails, or None: the member is too busy, and the request waits."""

Put = Callable[[Arrived], None]


class LostError(GenerationError):
    """The member cannot be reached, or was lost in the middle of an answer."""


class Member(Protocol):
    """A machine with a model, which answers up to `n_slots` requests at a time."""

    @property
    def name(self) -> str: ...
    @property
    def n_slots(self) -> int: ...
    @property
    def texts_depend_on(self) -> Mapping[str, Any]: ...
    def close(self) -> None: ...
    def check_settings(self, request: Request) -> None:
        """Raise UsageError if the model does not support the settings of a request."""

    def begin(self, request: Request, put: Put) -> Future[None]:
        """Ask for an answer, and pass its events to `put`, in any thread; cancelling the future cancels the answer.

        The last event has `is_last`, or is an error. After LostError, the other answers of the member are lost too.
        """

    def recover(self) -> Future[None]:
        """Wait until the lost member is back. The future raises EdgespecError if it will not return."""


class Recruits(Protocol):
    """A source of further members, with `notes` for the user about them."""

    notes: list[str]

    def close(self) -> None: ...
    def are_expected(self, alone_s: float) -> bool:
        """True if a member may still join, although all have been lost for `alone_s` seconds."""

    def joined(self) -> Sequence[Member]:
        """Return the members that joined since the last call."""
