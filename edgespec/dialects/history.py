"""Earlier answers as the template of a dialect wants them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from edgespec.dialects.dialect import THINK, Dialect
from edgespec.settings import Message
from edgespec.text.thinking import CLOSE, OPEN


def as_sent(messages: Sequence[Message], dialect: Dialect) -> tuple[Message, ...]:
    """Return messages with the reasoning of earlier answers where the template wants it: in a field, or as text;
    otherwise it is left out. The given ones have it before their content, as `<think>` text. An answer that is to be
    continued has it between the marks of the dialect."""
    last = len(messages) - 1
    return tuple(
        _as_sent(message, dialect, is_last=index == last) if _reasons(message) else message
        for index, message in enumerate(messages)
    )


def _reasons(message: Message) -> bool:
    return message.role == "assistant" and not message.tokens and message.content.lstrip().startswith(OPEN)


def _as_sent(message: Message, dialect: Dialect, *, is_last: bool) -> Message:
    thought, mark, content = message.content.lstrip().removeprefix(OPEN).partition(CLOSE)
    thought, content = thought.strip("\n"), content.lstrip("\n")
    if is_last:
        start, end = dialect.reasoning or THINK
        is_begun = not mark or not content.strip()
        return replace(message, content=f"{start}\n{thought}" + ("" if is_begun else f"\n{end}\n\n{content}"))
    if dialect.reasoning_field:
        extra = json.loads(message.extra) if message.extra else {}
        extra[dialect.reasoning_field] = thought
        return replace(message, content=content, extra=json.dumps(extra, ensure_ascii=False))
    return message if dialect.reads_text else replace(message, content=content)
