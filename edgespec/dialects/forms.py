"""The forms of calls, which read calls as they arrive."""

from __future__ import annotations

import re
from dataclasses import replace

from edgespec.dialects.calls import CallReader, Format, Schemas
from edgespec.dialects.dialect import HERMES, Calls
from edgespec.dialects.literals import gemma_members, python_call
from edgespec.dialects.objects import known_name, members, object_calls
from edgespec.dialects.parameters import ParameterMarks, parameters, pattern
from edgespec.dialects.source import ENDED, WAIT, Begun, Source, Steps, UnfinishedError, after_blanks


def format_of(calls: Calls) -> Format:
    """Return how calls of a dialect are read. If models are known to write more forms than their template shows, all of
    these are read."""
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
    """Return the marks that are next to each other in one mark."""
    return [part for part in re.split(r"\s+(?=[<\[])|(?<=>)(?=<)", mark) if part]


class _Form:
    """Reads the calls of a dialect: the marks around them, and with `_body` the calls."""

    needs_mark = False  # a call begins with the last mark before it

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._opens = parts_of(calls.call[0])
        self._closes = [*parts_of(calls.call[1]), *parts_of(calls.section[1])]

    def __call__(self, source: Source, schemas: Schemas) -> Steps[None]:
        if (yield from source.passed(self._calls.section[0])) and not self._calls.call[0]:
            source.at = after_blanks(source.text, source.at)
        has_mark = False
        for mark in self._opens:
            has_mark = yield from source.passed(mark)
        if self.needs_mark and self._opens and not has_mark:
            raise ValueError("no call")
        yield from self._body(source, schemas)
        for mark in self._closes:
            yield from source.passed(mark)

    def _body(self, source: Source, schemas: Schemas) -> Steps[None]:
        raise NotImplementedError


class _Objects(_Form):
    """Calls that are objects of JSON, or lists of them."""

    def _body(self, source: Source, schemas: Schemas) -> Steps[None]:
        is_bare = source.at == source.start
        if (yield from source.visible(_BLANKS)) not in "{[":
            raise ValueError("no call")
        is_single = is_bare or ";" in self._calls.between
        yield from object_calls(source, schemas, self._calls, is_bare=is_bare, is_single=is_single)


_BLANKS = re.compile(r"[ \t\r\n;]*")
_ID = re.compile(r"\s*[\w.:-]*")
_NAME = re.compile(r"\s*(?:functions\.)?([\w.\-/]+?)(?::\d+)?(?=[^\w.\-/:]|\Z)")


class _Named(_Form):
    """Calls that are the name of a tool and an object of JSON."""

    def _body(self, source: Source, schemas: Schemas) -> Steps[None]:
        if self._calls.name[0]:  # after an id
            found = yield from source.when(lambda arrived, _: _before_mark(arrived, source.at))
            source.at = found.end()
            if not (yield from source.passed(self._calls.name[0])):
                raise ValueError("no call")
        name, source.at = yield from source.when(
            lambda arrived, is_over: self._head(arrived, source.at, schemas, is_over)
        )
        yield Begun(name)
        yield from members(source)
        yield "}"
        yield ENDED

    def _head(self, text: str, start: int, schemas: Schemas, is_over: bool) -> tuple[str, int]:
        """Return the name of a call, and the place of its object."""
        found, brace = _NAME.match(text, start), text.find("{", start)
        name_end, id = self._calls.name[1], self._calls.id
        if brace < 0:
            raise UnfinishedError if not is_over and _may_name(text[start:], schemas) else ValueError("no call")
        if found is None:
            raise ValueError("no call")
        between = text[found.end() : brace].strip()
        if id[0] and between.startswith(id[0]):
            between = re.sub(r"^\s*[\w.:-]*\s*", "", between.removeprefix(id[0])).removeprefix(id[1])
        if between not in ("", name_end, id[1]):
            raise ValueError("no call")
        return known_name(found[1], schemas), brace


def _before_mark(text: str, at: int) -> re.Match[str]:
    """Return the id before a mark, which may be empty."""
    found = _ID.match(text, at)
    assert found is not None
    if found.end() == len(text):
        raise UnfinishedError
    return found


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
        ends = tuple(parts_of(calls.call[1]) or parts_of(calls.section[1]))
        self._marks = ParameterMarks(calls.key, calls.value, ends, next_marks, calls.has_lines)
        self._closes = [*ends[1:], *parts_of(calls.section[1])]
        follows = "|".join(map(re.escape, (calls.key[0], self._marks.ends[0])))
        name_end = f"{pattern(calls.name[1])}|" if calls.name[1] else ""
        self._name = re.compile(rf'\s*([^<>\s"]+)\s*(?:{name_end}(?={follows}))')

    def _body(self, source: Source, schemas: Schemas) -> Steps[None]:
        found = yield from source.when(lambda arrived, is_over: self._head(arrived, source.at, schemas, is_over))
        source.at = found.end()
        name = known_name(found[1], schemas)
        yield from parameters(self._marks, source, name, schemas[name])

    def _head(self, text: str, start: int, schemas: Schemas, is_over: bool) -> re.Match[str]:
        if (found := self._name.match(text, start)) is not None:
            return found
        raise UnfinishedError if not is_over and _may_name(text[start:], schemas) else ValueError("no call")


class _Python(_Form):
    """Calls that are a list of calls in Python."""

    def _body(self, source: Source, schemas: Schemas) -> Steps[None]:
        is_another = True
        while is_another:
            yield from python_call(source, schemas)
            is_another = yield from source.passed(",")


class _Gemma(_Form):
    """Calls of Gemma 4: a name and an object whose texts are between marks."""

    def _body(self, source: Source, schemas: Schemas) -> Steps[None]:
        def head(arrived: str, is_over: bool) -> int:
            if (brace := arrived.find("{", source.at)) >= 0:
                return brace
            raise UnfinishedError if not is_over and _may_name(arrived[source.at :], schemas) else ValueError("no call")

        brace = yield from source.when(head)
        name, source.at = known_name(source.text[source.at : brace].strip(), schemas), brace
        yield Begun(name)
        yield from gemma_members(source)
        yield "}"
        yield ENDED


class _Either(_Form):
    """Calls in one of two forms."""

    def __init__(self, one: CallReader, other: CallReader) -> None:
        self._forms = (one, other)

    def __call__(self, source: Source, schemas: Schemas) -> Steps[None]:
        one, other = self._forms
        has_begun = False
        try:
            for step in one(source, schemas):
                has_begun |= isinstance(step, Begun)
                yield step
        except (UnfinishedError, ValueError):
            if has_begun:
                raise
            source.at = source.start
            yield from other(source, schemas)


class Arguments:
    """Reads a text that is nothing but the arguments of a call, as JSON."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, source: Source, schemas: Schemas) -> Steps[None]:
        if (yield from source.visible()) != "{":
            raise ValueError("no call")
        yield Begun(known_name(self._name, schemas))
        yield from members(source)
        while not source.text[source.at :].strip():
            if source.is_over:
                yield "}"
                yield ENDED
                return
            yield WAIT
        raise ValueError("more than one value")


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
    has_lines=True,
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
