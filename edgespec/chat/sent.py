"""The part of a conversation that is sent to the model: turns as messages that fit into its context."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgespec.errors import UsageError
from edgespec.history import Turn
from edgespec.settings import Message
from edgespec.text.thinking import OPEN


def as_message(turn: Turn, about: Mapping[str, Any]) -> Message:
    """A turn as a message for the model that `about` describes, with the generated token ids if they match the text."""
    answer = turn.answer
    if answer is None or answer.vocabulary != about.get("vocabulary"):
        return Message(turn.role, turn.content)
    thinks = turn.content.lstrip().startswith(OPEN)
    changed = thinks and (about.get("drops_thinking") or about.get("opens_thinking"))
    return Message(turn.role, turn.content, () if changed else answer.ids)


def as_block(name: str, text: str) -> str:
    """A file's text within a message, in a fence that the text does not contain."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{name}:\n{fence}\n{text.rstrip()}\n{fence}"


def later_starts(turns: Sequence[Turn], first: int) -> list[int]:
    """Where the sent part, now from `first` on, could start once more messages are dropped."""
    return [index for index, turn in enumerate(turns) if turn.role == "user" and index > first]


def fitting(
    size: Callable[[int], int], first: int, later: Sequence[int], n_ctx: int, max_tokens: int
) -> tuple[int, int]:
    """The first turn to send, and the number of tokens: `size` counts them from a turn on.

    The oldest messages are dropped if all from `first` on and an answer do not fit; many at once, since everything
    after them must be processed again. Raises UsageError if the last message alone is too long.
    """
    reserve = n_ctx // 4 if max_tokens < 0 else min(max_tokens, n_ctx // 4)
    needed = size(first)
    if needed <= n_ctx - reserve:
        return first, needed
    at = bisect_left(later, True, key=lambda start: size(start) <= n_ctx // 2)
    start = later[min(at, len(later) - 1)] if later else first
    needed = size(start)
    if needed >= n_ctx - 1:
        raise UsageError(
            f"the message and the system prompt have {needed:,} tokens, the context holds {n_ctx:,}",
            hint="shorten it, or use a larger context (-c)",
        )
    return start, needed
