"""The forms of calls, which read the calls at the beginning of a text."""

from __future__ import annotations

import re
from dataclasses import replace

from edgespec.dialects.calls import Format, Reader, Schemas, ToolCall
from edgespec.dialects.dialect import HERMES, Calls
from edgespec.dialects.literals import gemma_value, python_call
from edgespec.dialects.objects import after_blanks, arguments_text, call_of, calls_at, known_name, loads, value_at
from edgespec.dialects.parameters import ParameterMarks, UnfinishedError, parameters_at, pattern, typed


def format_of(calls: Calls) -> Format:
    """Return how calls of a dialect are read. Where models are known to write more than their template shows, all of it
    is read."""
    parts = parts_of(calls.call[0])
    opened = [mark for mark in (calls.section[0], *parts[:1], *parts[-1:]) if mark]
    if TOOL_CALLS in opened:
        return MISTRAL
    if HERMES.call[0] in opened and (calls.form == "json" or calls.call[0] == QWEN_CODER.call[0]):
        return TAGS
    if not opened:
        return LLAMA
    if calls.form == "tagged" and not (parts_of(calls.call[1]) or parts_of(calls.section[1])):
        return TAGS  # the end of a call is unknown
    return Format(tuple(dict.fromkeys(opened)), FORMS[calls.form](calls), short_ids=calls.short_ids)


def parts_of(mark: str) -> list[str]:
    """Return the marks that stand next to each other in one."""
    return [part for part in re.split(r"\s+(?=[<\[])|(?<=>)(?=<)", mark) if part]


class _Form:
    """Reads the calls of a dialect: what stands around them, and with `_body` a call."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._opens = parts_of(calls.call[0])
        self._closes = parts_of(calls.call[1])

    needs_mark = False  # a call begins with the last mark before it

    def __call__(self, text: str, schemas: Schemas, ended: bool) -> tuple[list[ToolCall], int]:
        start = _passed(text, 0, self._calls.section[0], ended)
        if self._calls.section[0] and start and not self._calls.call[0]:
            start = after_blanks(text, start)
        for mark in self._opens:
            before, start = start, _passed(text, start, mark, ended)
        if self.needs_mark and self._opens and start == before:
            raise ValueError("no call")
        made, end = self._body(text, start, schemas, ended, is_bare=not start)
        for mark in (*self._closes, *parts_of(self._calls.section[1])):
            end = _passed(text, end, mark, ended)
        return made, end

    def _body(
        self, text: str, start: int, schemas: Schemas, ended: bool, *, is_bare: bool
    ) -> tuple[list[ToolCall], int]:
        raise NotImplementedError


def _passed(text: str, start: int, mark: str, ended: bool) -> int:
    """Return the end of a mark, before which there may be blanks, or `start` if another text is there. Raises
    UnfinishedError."""
    place = after_blanks(text, start)
    if not mark:
        return start
    if text.startswith(mark, place):
        return place + len(mark)
    if mark.startswith(text[place:]) and not ended:
        raise UnfinishedError
    return start


class _Objects(_Form):
    """Calls that are objects of JSON, or lists of them."""

    def _body(
        self, text: str, start: int, schemas: Schemas, ended: bool, *, is_bare: bool
    ) -> tuple[list[ToolCall], int]:
        start += len(text[start:]) - len(text[start:].lstrip(" \t\r\n;"))
        if start == len(text):
            raise UnfinishedError
        if text[start] not in "{[":
            raise ValueError("no call")
        if is_bare and not _may_be_call(text, start):
            raise ValueError("no call")
        if is_bare or ";" in self._calls.between:
            value, end = value_at(text, start)
            return [call_of(value, schemas, self._calls)], end
        return calls_at(text, start, schemas, ended, self._calls)


_FIRST_KEY = re.compile(r'[\[{\s]*("\w*"?)?')
_KEYS = ('"name"', '"type"', '"function"', '"parameters"', '"arguments"', '"tool_name"')


def _may_be_call(text: str, start: int) -> bool:
    """Return whether an object without marks begins as a call does."""
    first = _FIRST_KEY.match(text, start)
    return first is not None and any(key.startswith(first[1] or "") for key in _KEYS)


_ID = re.compile(r"\A\s*[\w.:-]*")
_NAME = re.compile(r"\s*(?:functions\.)?([\w.\-/]+?)(?::\d+)?(?=[^\w.\-/:]|\Z)")


class _Named(_Form):
    """Calls that are the name of a tool and an object of JSON."""

    def _body(
        self, text: str, start: int, schemas: Schemas, ended: bool, *, is_bare: bool
    ) -> tuple[list[ToolCall], int]:
        if self._calls.name[0]:  # after an id
            place = start + len(text[start:]) - len(_ID.sub("", text[start:], count=1))
            start = _passed(text, place, self._calls.name[0], ended)
            if start == place:
                raise ValueError("no call")
        found, brace = _NAME.match(text, start), text.find("{", start)
        name_end, id = self._calls.name[1], self._calls.id
        if brace < 0:
            raise UnfinishedError if not ended and _may_name(text[start:], schemas) else ValueError("no call")
        if found is None:
            raise ValueError("no call")
        between = text[found.end() : brace].strip()
        if id[0] and between.startswith(id[0]):
            between = re.sub(r"^\s*[\w.:-]*\s*", "", between.removeprefix(id[0])).removeprefix(id[1])
        if between not in ("", name_end, id[1]):
            raise ValueError("no call")
        value, end = value_at(text, brace)
        return [ToolCall(known_name(found[1], schemas), arguments_text(value))], end


def _may_name(text: str, schemas: Schemas) -> bool:
    """Return whether a text begins with the name of a tool, or may do so when more of it arrives."""
    said = text.lstrip().removeprefix("functions.")
    return any(said.startswith(name) or name.startswith(said) for name in schemas) or "functions.".startswith(said)


class _Tagged(_Form):
    """Calls that are the name of a tool and arguments between marks."""

    needs_mark = True

    def __init__(self, calls: Calls) -> None:
        super().__init__(calls)
        next_marks = tuple(filter(None, (calls.section[0], *self._opens)))
        ends = tuple(self._closes or parts_of(calls.section[1]))
        self._marks = ParameterMarks(calls.key, calls.value, ends, next_marks)
        self._closes = []
        follows = "|".join(map(re.escape, (calls.key[0], self._marks.ends[0])))
        name_end = f"{pattern(calls.name[1])}|" if calls.name[1] else ""
        self._name = re.compile(rf'\s*([^<>\s"]+)\s*(?:{name_end}(?={follows}))')

    def __call__(self, text: str, schemas: Schemas, ended: bool) -> tuple[list[ToolCall], int]:
        made, end = super().__call__(text, schemas, ended)
        for mark in (*self._marks.ends[1:], *parts_of(self._calls.section[1])):
            end = _passed(text, end, mark, ended)
        return made, end

    def _body(
        self, text: str, start: int, schemas: Schemas, ended: bool, *, is_bare: bool
    ) -> tuple[list[ToolCall], int]:
        found = self._name.match(text, start)
        if found is None:
            raise UnfinishedError if not ended and _may_name(text[start:], schemas) else ValueError("no call")
        name = known_name(found[1], schemas)
        texts, end = parameters_at(self._marks, text, found.end(), schemas[name], ended)
        return [ToolCall(name, arguments_text(typed(texts, schemas[name], loads)))], end


class _Python(_Form):
    """Calls that are a list of calls in Python."""

    def _body(
        self, text: str, start: int, schemas: Schemas, ended: bool, *, is_bare: bool
    ) -> tuple[list[ToolCall], int]:
        made, end = list[ToolCall](), start
        while True:
            call, end = python_call(text, end, schemas)
            made.append(call)
            end = _passed(text, end, ",", ended)
            if end == len(text) and not ended:
                raise UnfinishedError
            if text[end - 1] != ",":
                return made, end


class _Gemma(_Form):
    """Calls of Gemma 4: a name and an object whose texts stand between marks."""

    def _body(
        self, text: str, start: int, schemas: Schemas, ended: bool, *, is_bare: bool
    ) -> tuple[list[ToolCall], int]:
        brace = text.find("{", start)
        if brace < 0:
            raise UnfinishedError if not ended and _may_name(text[start:], schemas) else ValueError("no call")
        name = known_name(text[start:brace].strip(), schemas)
        value, end = gemma_value(text, brace)
        return [ToolCall(name, arguments_text(value))], end


class _Either(_Form):
    """Calls in one of two forms."""

    def __init__(self, one: Reader, other: Reader) -> None:
        self._forms = (one, other)

    def __call__(self, text: str, schemas: Schemas, ended: bool) -> tuple[list[ToolCall], int]:
        is_unfinished = False
        for form in self._forms:
            try:
                return form(text, schemas, ended)
            except UnfinishedError:
                is_unfinished = True
            except ValueError:
                continue
        raise UnfinishedError if is_unfinished else ValueError("no call")


def or_bare(format: Format) -> Format:
    """Return a format that also reads calls as JSON without marks at the beginning of an answer."""
    return replace(format, read=_Either(format.read, FORCED.read), bare=True)


FORMS = {"json": _Objects, "named": _Named, "tagged": _Tagged, "python": _Python, "gemma": _Gemma}


QWEN_CODER = Calls(
    "tagged",
    call=("<tool_call>\n<function=", "</function>\n</tool_call>"),
    name=("", ">"),
    key=("<parameter=", ">"),
    value=("", "</parameter>"),
)
TOOL_CALLS = "[TOOL_CALLS]"
_MISTRAL = Calls("named", call=(TOOL_CALLS, ""), name=("", "[ARGS]"), id=("[CALL_ID]", "[ARGS]"))
_LLAMA = Calls("json", call=("<|python_tag|>", ""), keys=("name", "parameters", ""), between=";")

TAGS = Format(("<tool_call>", "<function="), _Either(_Objects(HERMES), _Tagged(QWEN_CODER)))
MISTRAL = Format(
    (TOOL_CALLS,), _Either(_Objects(Calls("json", section=(TOOL_CALLS, ""))), _Named(_MISTRAL)), short_ids=True
)
LLAMA = Format(("<|python_tag|>",), _Objects(_LLAMA), bare=True)
FORCED = Format((), _Objects(replace(_LLAMA, call=("", ""))), bare=True)
