"""The events of a chat while an answer is generated: tokens, and messages between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from edgespec.cancel import CancelFlag
from edgespec.events import Progress, TokenEvent
from edgespec.history import Turn
from edgespec.llm.model import Model
from edgespec.settings import LoadSettings
from edgespec.tools.toolbox import Calling

Level = Literal["info", "warning", "error"]
Opener = Callable[[LoadSettings, Progress | None, CancelFlag | None], Model]


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


ChatEvent = TokenEvent | Notice | Calling | Added
ChatEvents = Iterator[ChatEvent]
