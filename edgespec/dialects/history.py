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
    continued has it between the marks of the dialect. Calls and results get the ids that the model expects."""
    if not messages:
        return ()
    if dialect.calls is not None and dialect.calls.ids:
        messages = _with_ids(messages, dialect.calls.ids)
    *earlier, last = messages
    sent = [_as_sent(message, dialect) if _reasons(message) else message for message in earlier]
    is_begun = last.role == "assistant" and not last.tokens
    return (*sent, replace(last, content=_begun(last, dialect)) if is_begun else last)


def _reasons(message: Message) -> bool:
    return message.role == "assistant" and not message.tokens and message.content.lstrip().startswith(OPEN)


def _parted(message: Message) -> tuple[str, str, bool]:
    """Return the reasoning of an answer, its content, and whether the reasoning has ended."""
    thought, mark, content = message.content.lstrip().removeprefix(OPEN).partition(CLOSE)
    return thought.strip("\n"), content.lstrip("\n"), bool(mark)


def _begun(message: Message, dialect: Dialect) -> str:
    """Return the content of an answer that is to be continued, as the model writes it."""
    thought, content, has_ended = _parted(message) if _reasons(message) else ("", message.content, True)
    is_answer = has_ended and bool(content.strip())
    if (form := dialect.messages) is not None:
        answer = f"{form.answer}{form.header_end}{content}"
        if not thought or not form.thought:
            return answer
        begun = f"{form.thought}{form.header_end}{thought}"
        return f"{begun}{form.ends[0]}{form.start}{answer}" if is_answer else begun
    if content.strip():
        content = dialect.content[0] + content.removeprefix(dialect.content[0])
    if not thought or (dialect.is_assumed and is_answer):
        return content
    start, end = dialect.reasoning or THINK
    return f"{start}\n{thought}" + (f"\n{end}\n\n{content}" if is_answer else "")


def _as_sent(message: Message, dialect: Dialect) -> Message:
    thought, content, _ = _parted(message)
    if dialect.reasoning_field:
        extra = json.loads(message.extra) if message.extra else {}
        extra[dialect.reasoning_field] = thought
        return replace(message, content=content, extra=json.dumps(extra, ensure_ascii=False))
    return message if dialect.reads_text else replace(message, content=content)


def _with_ids(messages: Sequence[Message], form: str) -> list[Message]:
    """Return messages whose calls and results have ids of this form. Clients know others, and the model finds the name
    of the tool of a result in the id alone."""
    made, ids = list[Message](), dict[str, str]()
    n_calls = 0
    for message in messages:
        extra = json.loads(message.extra) if '"tool_call' in message.extra else {}
        for call in extra.get("tool_calls") or ():
            ids[str(call.get("id"))] = call["id"] = form.format(name=call["function"]["name"], number=n_calls)
            n_calls += 1
        if (id := str(extra.get("tool_call_id"))) in ids:
            extra["tool_call_id"] = ids[id]
        made.append(replace(message, extra=json.dumps(extra, ensure_ascii=False)) if extra else message)
    return made
