"""What the members of a fleet have in common: a server, an actor on a node of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from edgespec.errors import EdgespecError, GenerationError
from edgespec.events import TokenEvent
from edgespec.settings import Request

POLL_S = 0.03  # how long a cancel may go unnoticed

Arrived = TokenEvent | EdgespecError | None
"""What comes of a request: events, what it fails with, or that the member is too busy for it as yet."""

Put = Callable[[Arrived], None]


class LostError(GenerationError):
    """The member cannot be reached, or has gone in the middle of an answer."""


class Member(Protocol):
    """Somebody with a model, who answers up to `n_slots` requests at a time. One that `is_gone` will not be back, for
    the reason `why_lost`."""

    @property
    def name(self) -> str: ...

    @property
    def n_slots(self) -> int: ...

    @property
    def texts_depend_on(self) -> Mapping[str, Any]: ...

    @property
    def is_gone(self) -> bool: ...

    @property
    def why_lost(self) -> str: ...

    def check_settings(self, request: Request) -> None:
        """Raises UsageError."""

    def begin(self, request: Request, put: Put) -> Future[None]:
        """Ask for an answer. `put` receives what comes of it, in any thread, at last an event that is the last one, or
        an error; LostError: the member's other answers are lost too. Cancel what is returned to hear no more."""

    def probe(self, after_s: float, times: int) -> Future[bool]:
        """Whether a lost member is back: asked so many times, each after such a pause."""

    def close(self) -> None: ...


class Recruits(Protocol):
    """Where further members come from. `notes` tell what happens to them."""

    notes: list[str]

    def are_expected(self, alone_s: float) -> bool:
        """Whether somebody may come, although everybody else has been lost for so long."""

    def joined(self) -> Sequence[Member]:
        """Those who are new."""

    def close(self) -> None: ...
