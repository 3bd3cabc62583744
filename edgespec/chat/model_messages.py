"""Turns of a conversation as the messages that a model gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from edgespec.chat.images import with_images
from edgespec.history import Turn
from edgespec.model.info import ModelInfo
from edgespec.settings import CONSTRAINTS, Message
from edgespec.text.thinking import OPEN
from edgespec.tools.offer import Style, called, replied
from edgespec.tools.results import ToolResult


def as_messages(turns: Sequence[Turn], info: ModelInfo, style: Style | None) -> Iterator[Message]:
    """Yield turns as messages for the model that `info` describes, with results of tools in its `style`."""
    number = 0
    for index, turn in enumerate(turns):
        if turn.role == "tool":
            yield _as_result(ToolResult.of(turn.content), number, style)
            number += 1
            continue
        following = takewhile(lambda turn: turn.role == "tool", turns[index + 1 :])
        results = [ToolResult.of(each.content) for each in following]
        is_open = bool(results) and all(each.role != "user" for each in turns[index:])
        message = as_message(turn, info, is_open=is_open)
        yield called(message, turn.said, results, style, number) if style is not None else message


def _as_result(result: ToolResult, number: int, style: Style | None) -> Message:
    if style is not None:
        return replied(result, number)
    return Message("user", f"<tool_response>\n{result.told}\n</tool_response>")


def ids_of(turn: Turn, info: ModelInfo) -> tuple[int, ...]:
    """Return the token ids of an answer as it was generated; none if the model has another vocabulary."""
    answer = turn.answer
    return answer.ids if answer is not None and answer.vocabulary == info.vocabulary != "" else ()


def as_message(turn: Turn, info: ModelInfo, *, is_open: bool = False) -> Message:
    """Return a turn as a message for the model that `info` describes.

    An answer of a model with the same vocabulary has its token ids, so that the KV cache can be reused exactly. It has
    none if the template changes its text, for example by removing the reasoning. The reasoning stays in an answer that
    `is_open`: the model has called tools in it, and has not answered the user yet.
    """
    message, answer = with_images(turn.role, turn.content), turn.answer
    if answer is None or not (ids := ids_of(turn, info)):
        return message
    drops = info.opens_thinking or (info.drops_thinking and not is_open)
    # The reasoning before a constrained answer is among its tokens, but not in its text.
    may_reason = turn.content.lstrip().startswith(OPEN) or any(answer.settings.get(kind) for kind in CONSTRAINTS)
    is_changed = not info.keeps_answers or (drops and may_reason)
    return message if is_changed else replace(message, tokens=ids)
