"""Adapts a conversation that a chat template refuses, without losing tools, calls or messages."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import takewhile
from typing import Any, TypeVar

from edgespec.dialects.derive import FIELDS
from edgespec.errors import UsageError
from edgespec.llama.rendering import TemplateFailedError
from edgespec.runtime.described import calls_in
from edgespec.settings import Message, joined

ID_LENGTH = 9  # Mistral's templates want ids of nine letters and digits
FILLER = " "  # some templates refuse an empty content

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation, and the arguments of the chat template."""

    messages: tuple[Message, ...]
    arguments: Mapping[str, Any]


Adaptation = Callable[[Talk], Talk]
Attempt = Callable[[Talk], Made]
"""Makes a prompt. Raises UsageError if the template refuses the conversation."""


def adapted(
    talk: Talk, described: Talk, attempt: Attempt[Made], refusal: UsageError, note: Callable[[str], None]
) -> tuple[Made] | None:
    """Return what `attempt` makes of an adapted conversation, which was refused as it is; None if nothing helps.

    An adaptation is kept if the template accepts the conversation with it, or refuses it for another reason. If no
    adaptation helps, the conversation with tools as text, `described`, is tried in the same way. Changes of what the
    model reads are noted. Raises UsageError if the template cannot be parsed or exceeds a limit: a shorter conversation
    may be within the limit.
    """
    _check(refusal)
    why = refusal.why
    found = _search(talk, attempt, refusal)
    if found is None and described != talk:
        try:
            found = (attempt(described),), []
        except UsageError as refused:
            found = _search(described, attempt, refused)
        if found is not None:
            found[1].insert(0, "tools and calls are described as text")
    if found is None:
        return None
    made, said = found
    if said:
        note(f"the chat template rejects these messages ({why}): {', and '.join(dict.fromkeys(said))}")
    return made


def _search(talk: Talk, attempt: Attempt[Made], refusal: UsageError) -> tuple[tuple[Made], list[str]] | None:
    """Return what `attempt` makes of an adapted conversation, and what was changed; None if nothing helps."""
    left, said = dict(ADAPTATIONS), list[str]()
    while True:
        for adapt, what in left.items():
            changed = adapt(talk)
            if changed == talk:
                continue
            now_said = [*said, what] if what else said
            try:
                return (attempt(changed),), [*now_said]
            except UsageError as refused:
                _check(refused)
                if refused.why != refusal.why:  # it helps, and other adaptations may help with the new reason
                    talk, said, refusal = changed, now_said, refused
                    del left[adapt]
                    break
        else:
            return None


def _check(refusal: UsageError) -> None:
    """Raise an error that does not depend on the form of the messages."""
    if not _is_of_messages(refusal):
        raise refusal


def _is_of_messages(refusal: UsageError) -> bool:
    cause = refusal.__cause__
    return isinstance(cause, TemplateFailedError) and cause.failed == "render"


def named(
    messages: Sequence[Message], refusal: UsageError, attempt: Callable[[Sequence[Message]], object]
) -> UsageError:
    """Return the refusal of a conversation with the message that the template refuses: the last one of the shortest
    beginning that is refused for the same reason."""
    if not _is_of_messages(refusal):
        return refusal

    def is_refused(n: int) -> bool:
        try:
            attempt(messages[:n])
        except UsageError as error:
            return error.why == refusal.why
        return False

    number = 1 + bisect_left(range(1, len(messages)), True, key=is_refused)
    which = f"message {number} of {len(messages)}, which has the role {messages[number - 1].role}"
    error = UsageError(f"the model's chat template rejects {which}", why=refusal.why, hint=refusal.hint)
    error.__cause__ = refusal.__cause__
    return error


# --- adaptations ------------------------------------------------------------------------------------------------------


def _with_fields(message: Message, **fields: object) -> Message:
    """Return a message with other fields for the template, such as `tool_calls`."""
    return replace(message, extra=json.dumps(json.loads(message.extra or "{}") | fields, ensure_ascii=False))


def _each_call(messages: Sequence[Message], change: Callable[[object], object]) -> tuple[Message, ...]:
    """Return messages after `change` was applied to the arguments of each call."""

    def changed(call: dict[str, Any]) -> dict[str, Any]:
        function = call.get("function", call)
        function = function | {"arguments": change(function.get("arguments", {}))}
        return call | {"function": function} if "function" in call else function

    return tuple(
        _with_fields(message, tool_calls=[*map(changed, calls)]) if (calls := calls_in(message)) else message
        for message in messages
    )


def with_text_arguments(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages in which the arguments of calls are the text of JSON."""
    return _each_call(
        messages, lambda given: given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    )


def _objects(given: object) -> object:
    if isinstance(given, str):
        with suppress(ValueError, RecursionError):
            read = json.loads(given or "{}")
            return read if isinstance(read, dict) else given
    return given


def _wrapped(given: object) -> object:
    return given if isinstance(given, dict) else {"input": given}


def one_call_each(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages with at most one call in each; the results of a message's calls follow their calls."""
    made: list[Message] = []
    place = 0
    while place < len(messages):
        message, place = messages[place], place + 1
        calls = calls_in(message)
        if len(calls) < 2:
            made.append(message)
            continue
        results: list[Message] = []
        while place < len(messages) and messages[place].role == "tool":
            results.append(messages[place])
            place += 1
        for number, call in enumerate(calls):
            said = message if number == 0 else _without_reasoning(replace(message, content="", tokens=()))
            made.append(_with_fields(said, tool_calls=[call]))
            ids = [_field(result, "tool_call_id") for result in results]
            own = next((id for id in (call.get("id"), None) if id in ids), "")
            made += [results.pop(ids.index(own))] if own != "" else []
        made += results
    return tuple(made)


def _without_reasoning(message: Message) -> Message:
    fields = json.loads(message.extra)
    return replace(message, extra=json.dumps({name: fields[name] for name in fields if name not in FIELDS}))


def text_apart(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages in which the text before calls is a message of its own."""
    made: list[Message] = []
    for message in messages:
        if message.content and calls_in(message):
            made.append(replace(message, extra=""))
            message = replace(message, content="", tokens=())
        made.append(message)
    return tuple(made)


def _text_in_reasoning(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages in which the text before calls follows the reasoning. Templates of gpt-oss take one of both, and
    write it as reasoning."""
    made: list[Message] = []
    for message in messages:
        field = next((name for name in FIELDS if _field(message, name)), "")
        if field and message.content and calls_in(message):
            reasoning = f"{_field(message, field)}\n\n{message.content}"
            message = _with_fields(replace(message, content="", tokens=()), **{field: reasoning})
        made.append(message)
    return tuple(made)


def _without_developer(messages: Sequence[Message]) -> list[Message]:
    return [replace(message, role="system") if message.role == "developer" else message for message in messages]


def with_late_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages whose only system message is the first one; later ones are the user's."""
    return tuple(
        replace(message, role="user") if index and message.role in ("system", "developer") else message
        for index, message in enumerate(messages)
    )


def with_one_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages whose system messages at the beginning are one."""
    first = list(takewhile(lambda message: message.role in ("system", "developer"), messages))
    return (replace(joined(first, "\n\n"), tokens=()), *messages[len(first) :]) if len(first) > 1 else (*messages,)


def _field(message: Message, name: str) -> object:
    return json.loads(message.extra).get(name) if message.extra else None


def _short(id: str) -> str:
    """Return an id of nine letters and digits, the same for the same id."""
    is_short = len(id) == ID_LENGTH and id.isascii() and id.isalnum()
    return id if is_short else sha256(id.encode()).hexdigest()[:ID_LENGTH]


def _with_short_ids(talk: Talk) -> Talk:
    """Give calls and results ids of nine letters and digits. A result without an id belongs to the first call that has
    none yet."""
    made: list[Message] = []
    waiting: list[str] = []
    n_calls = 0
    for message in talk.messages:
        if calls := calls_in(message):
            waiting = [_short(str(call.get("id") or n_calls + number)) for number, call in enumerate(calls)]
            n_calls += len(calls)
            pairs = zip(calls, waiting, strict=True)
            message = _with_fields(message, tool_calls=[call | {"id": id} for call, id in pairs])
        elif message.role == "tool":
            given = _field(message, "tool_call_id")
            id = _short(str(given)) if given or not waiting else waiting[0]
            waiting = [each for each in waiting if each != id]
            message = _with_fields(message, tool_call_id=id)
        made.append(message)
    return replace(talk, messages=tuple(made))


def _with_lists(talk: Talk) -> Talk:
    """Give the template empty lists where it was given no tools or documents, and the tools as the text `functions`,
    which some templates join to other texts."""
    tools = talk.arguments.get("tools") or []
    lists = {"documents": [], "functions": json.dumps(tools, ensure_ascii=False)}
    return replace(talk, arguments=lists | {**talk.arguments, "tools": tools})


def _taking_turns(messages: Sequence[Message], n_kept: int) -> tuple[Message, ...]:
    """Return messages in which no two of the user, and no two of the assistant, follow each other.

    System messages after the first `n_kept` messages become the user's, since few templates have a place for them.
    Messages with tool calls or results stay as they are.
    """
    turns: list[Message] = []
    for index, message in enumerate(messages):
        if message.role in ("system", "developer") and index >= n_kept:
            message = replace(message, role="user")
        can_join = message.role in ("user", "assistant") and not message.extra
        if can_join and turns and turns[-1].role == message.role and not turns[-1].extra:
            turns[-1] = replace(joined((turns[-1], message), "\n\n"), tokens=())
        else:
            turns.append(message)
    return tuple(turns)


def _filled(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield messages with blank ones where the user and the assistant do not take turns: before an answer at the
    beginning, and between the result of a tool, or a call without a result, and the user."""
    role = "system"
    for message in messages:
        if message.role == "assistant" and role in ("system", "assistant"):
            yield Message("user", FILLER)
        if message.role == "user" and role in ("tool", "call"):
            yield Message("assistant", FILLER)
        role = "call" if calls_in(message) else message.role
        yield message


def _of_messages(change: Callable[[Sequence[Message]], Sequence[Message]]) -> Adaptation:
    return lambda talk: replace(talk, messages=tuple(change(talk.messages)))


# In this order: those that change least are first. Each with a note, if it changes what the model reads.
ADAPTATIONS: Mapping[Adaptation, str] = {
    _of_messages(_without_developer): "",
    _of_messages(lambda messages: _each_call(messages, _objects)): "",
    _of_messages(with_text_arguments): "",
    _with_lists: "",
    _with_short_ids: "",
    _of_messages(one_call_each): "",
    _of_messages(_text_in_reasoning): "",
    _of_messages(with_one_system): "the system messages at the beginning were joined",
    _of_messages(lambda messages: _each_call(messages, _wrapped)): "arguments of calls were put into objects",
    _of_messages(lambda messages: _taking_turns(messages, 1)): "messages were merged",
    _of_messages(lambda messages: _taking_turns(messages, 0)): "messages were merged",
    _of_messages(lambda messages: [*_filled(_taking_turns(messages, 1))]): "blank messages were added",
}
