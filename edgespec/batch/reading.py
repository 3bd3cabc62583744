"""From the input of a job to its rows, or to errors that say what is wrong with a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256

from edgespec.batch.input import MOST_BYTES, Inventory, Line, Shard
from edgespec.errors import UsageError
from edgespec.requests.bad_input import BadInputError, wrong
from edgespec.requests.documents import with_texts
from edgespec.requests.fields import Fields
from edgespec.requests.images import parts_of
from edgespec.requests.known_fields import MESSAGE, check
from edgespec.requests.messages import ROLES, message_in, message_of
from edgespec.requests.openai import from_openai, is_openai
from edgespec.requests.row import BadRow, Form, Id, Row, mark_of, row_key
from edgespec.requests.row_settings import checked_n, is_integer, request_fields
from edgespec.settings import Message, Request, shown, with_system

ASKED = ("messages", "prompt", "system", "add_system_prompt")


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults of rows.

    Attributes:
        request: the settings of rows that do not set them.
        seed: each row's seed is computed from this one and the row's id.
        chat: prompts are user messages rather than texts to complete.
        system: the system message of chats.
        n: the number of samples per row.
    """

    request: Request
    seed: int
    chat: bool
    system: str = ""
    n: int = 1


class RowReader:
    """Reads rows. Rows with a key in `done` are skipped, and removed from `done`.

    Raises UsageError if a row has changed since it was answered (its mark differs), so that no answer is taken for the
    answer to another question. With a `shard`, only its rows are returned; `inventory` counts them.
    """

    def __init__(self, defaults: Defaults, done: dict[int, str] | None = None, shard: Shard | None = None) -> None:
        self._defaults = defaults
        self._done = {} if done is None else done
        self._seen: set[int] = set()
        self.inventory = Inventory(shard) if shard else None

    def from_lines(self, lines: Iterable[Line]) -> Iterator[Row | BadRow]:
        """Yield rows from lines of JSON."""
        for number, line in self.inventory.watch(lines) if self.inventory else lines:
            try:
                value = _parsed(line)
            except BadInputError as error:
                if self._takes(number):
                    yield BadRow(None, number, str(error))
            else:
                yield from self._rows(value, number)

    def from_values(self, values: Iterable[object]) -> Iterator[Row | BadRow | None]:
        """Yield rows from the values of such lines; None if there is no row yet."""
        number = 0
        for value in values:
            number += value is not None
            yield from self._rows(value, number) if value is not None else (None,)

    def _rows(self, value: object, line: int) -> Iterator[Row | BadRow]:
        """Yield the row, unless it is done."""
        try:
            given = _given(value)
            id, form = _id(given, line), _form(given)
        except BadInputError as error:
            if self._takes(line):
                yield BadRow(None, line, str(error))
            return
        if not self._takes(id):
            return
        key, mark = row_key(id), mark_of(id, given)
        if key in self._seen:
            yield BadRow(None, line, f"duplicate id {shown(id)}", form)
            return
        self._seen.add(key)
        if key in self._done:
            if self._done.pop(key) not in ("", mark):
                raise UsageError(
                    f"row {shown(id)} (line {line}) has changed since it was answered",
                    hint="use another output file for other rows, or start over (--overwrite)",
                )
            return
        try:
            yield self._row(given, id, line, form, mark)
        except BadInputError as error:
            yield BadRow(id, line, str(error), form)
        except Exception as error:  # any error in a row concerns only that row
            yield BadRow(id, line, f"cannot read the line ({type(error).__name__})", form)

    def _takes(self, id: Id) -> bool:
        return self.inventory is None or self.inventory.takes(id)

    def _row(self, given: dict[str, object], id: Id, line: int, form: Form, mark: str) -> Row:
        given = {name: value for name, value in given.items() if name not in ("id", "custom_id")}
        if form != "own":
            given = from_openai(given)
        n = checked_n(given.pop("n", self._defaults.n))
        asked = {name: given.pop(name, None) for name in ASKED}
        base = self._defaults.request
        changes = {"seed": self._seed(id)} | request_fields(given, base.sampling, also=ASKED)
        changes |= _prompt(asked, self._defaults, is_text=form == "text_completion")
        return Row(id, line, replace(base, **changes), n, form, mark)

    def _seed(self, id: Id) -> int:
        """Return 48 bits computed from the seed of the job and the id, not from the place of the row."""
        return int.from_bytes(sha256(f"{self._defaults.seed} {json.dumps(id)}".encode()).digest()[:6], "big")


def id_on(number: int, line: bytes | None) -> Id:
    """Return the id of the row on a line, or the number of the line."""
    try:
        return _id(_given(_parsed(line)), number)
    except BadInputError:
        return number


def _parsed(line: bytes | None) -> object:
    if line is None:
        raise BadInputError(f"it is larger than {MOST_BYTES // 1000000} MB")
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        is_text = isinstance(error, json.JSONDecodeError) and error.pos == 0
        why = 'each line is one like {"prompt": "..."}' if is_text else error
        raise BadInputError(f"it is not JSON ({why})") from error


def _given(value: object) -> dict[str, object]:
    """Return the fields of the row that are not null."""
    if not isinstance(value, Mapping):
        raise BadInputError("it is not a JSON object")
    return {name: part for name, part in value.items() if part is not None}


def _id(given: Mapping[str, object], line: int) -> Id:
    if "id" in given and "custom_id" in given:
        raise BadInputError("it has two ids: id and custom_id")
    id = given.get("id", given.get("custom_id", line))
    if not isinstance(id, str) and not is_integer(id):
        raise wrong("id", "be a string or an integer", id)
    return id


def _form(given: Mapping[str, object]) -> Form:
    if not is_openai(given):
        return "own"
    return "text_completion" if given.get("url") == "/v1/completions" else "chat.completion"


def _prompt(asked: Mapping[str, object], defaults: Defaults, *, is_text: bool) -> dict[str, object]:
    """Return the prompt or the messages of a row as fields of a request."""
    messages, prompt, system, adds_system = (asked[name] for name in ASKED)
    if (messages is None) == (prompt is None):
        both = "neither a prompt nor messages" if messages is None else "both a prompt and messages"
        raise BadInputError(f"it has {both}")
    if system is not None and not isinstance(system, str):
        raise wrong("system", "be a string", system)
    if adds_system not in (None, True, False):
        raise wrong("add_system_prompt", "be true or false", adds_system)
    if system is None and adds_system is False:
        defaults = replace(defaults, system="")
    if messages is not None:
        return {"messages": _with_system(_messages(messages), system, defaults)}
    if not isinstance(prompt, str):
        raise wrong("prompt", "be a string", prompt)
    if defaults.chat and not is_text:
        if not prompt:
            raise BadInputError("the prompt is empty")
        return {"messages": _with_system((Message("user", prompt),), system, defaults)}
    if system:
        raise BadInputError("a system message needs a chat template; this prompt is completed verbatim")
    return {"prompt": prompt}


def _with_system(turns: tuple[Message, ...], system: str | None, defaults: Defaults) -> tuple[Message, ...]:
    if system is not None and any(turn.role == "system" for turn in turns):
        raise BadInputError("it has two system messages, one of them in messages")
    return with_system(turns, defaults.system if system is None else system)


def _messages(value: object) -> tuple[Message, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise BadInputError("messages must be a non-empty list of messages")
    messages = with_texts("messages", [*value])
    return tuple(_message(f"messages[{index}]", message) for index, message in enumerate(messages))


def _message(where: str, value: object) -> Message:
    if not isinstance(value, Mapping):
        raise wrong(where, "be an object with role and content", value)
    if not value.get("role"):
        raise BadInputError(f"{where} has no role")
    if unknown := check(value, MESSAGE):
        raise BadInputError(f"{unknown[0].removesuffix(' ignored')} of {where} is not supported")
    if value["role"] in ROLES:
        return message_in(where, dict(value))
    fields = Fields(value, where=where)  # some templates know other roles
    role, content = fields.text("role"), parts_of(f"{where}.content", fields.take("content"))
    return message_of(role, *content, name=fields.text("name"))
