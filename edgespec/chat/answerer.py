"""The interface of models in a chat, and messages between tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Unpack

from edgespec.cancel import CancelFlag
from edgespec.core.policy.policy import PolicyVerdict
from edgespec.events import Progress, TokenEvent
from edgespec.history import Turn
from edgespec.runtime.options import DraftingOptions
from edgespec.settings import LoadSettings, Message, Request
from edgespec.tools.toolbox import Calling

Level = Literal["info", "warning", "error"]


class AnswerStream(Protocol):
    """The events of one answer; `close` cancels it."""

    def __iter__(self) -> Iterator[TokenEvent]: ...
    def close(self) -> None: ...


class Answerer(Protocol):
    """A model that answers in a chat: a Runtime, a Worker or a RemoteEngine."""

    notes: list[str]

    @property
    def settings(self) -> LoadSettings: ...
    def describe(self) -> dict[str, Any]: ...
    def submit(self, request: Request, cancel: CancelFlag | None = None) -> AnswerStream: ...
    def count(self, messages: Sequence[Message], template: str = "") -> int: ...
    def draft_with(self, **changes: Unpack[DraftingOptions]) -> None: ...
    def pace_verdicts(self, request: Request) -> list[PolicyVerdict]: ...
    def forget(self) -> None: ...
    def keep_state(
        self, messages: Sequence[Message], file: Path, most_bytes: int, within_s: float = 60.0, template: str = ""
    ) -> int: ...
    def recall_state(self, messages: Sequence[Message], file: Path, template: str = "") -> int: ...
    def close(self) -> None: ...


Opener = Callable[[LoadSettings, Progress | None, CancelFlag | None], Answerer]


@dataclass(frozen=True, slots=True)
class Notice:
    """A message between tokens; a screen may show it differently depending on its subject, `about`."""

    text: str
    level: Level = "info"
    about: Literal["", "context", "loop"] = ""


@dataclass(frozen=True, slots=True)
class Added:
    """A complete message of the conversation, after which tools run or another answer begins."""

    turn: Turn


Event = TokenEvent | Notice | Calling | Added
Events = Iterator[Event]
