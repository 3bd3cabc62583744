"""Reads the parameters of calls whose names and values are between marks, such as `<parameter=NAME>`.

Models do not escape values, so a value may contain any of the marks. It ends where another parameter of the tool
begins, or with the call, and the call ends with the last marks that can be its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from edgespec.dialects.objects import as_json, loads, quoted
from edgespec.dialects.source import ENDED, Begun, Source, Steps, UnfinishedError, begun
from edgespec.llama.schema import target

LONGEST_MARKS = 256  # the characters from the marks that end a call to the end of those that begin another one
_ATTRIBUTE = re.compile(r'="[^"]*"')
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True)
class ParameterMarks:
    """The marks of calls with parameters: around the name of one, around its value, and after all of a call.

    `next` are those that begin another call. An attribute in a mark may have another value, such as a type. With
    `has_lines`, line breaks after the first mark of a value and before the second one are parts of the marks.
    """

    key: tuple[str, str]
    value: tuple[str, str]
    ends: tuple[str, ...]
    next: tuple[str, ...]
    has_lines: bool = False

    @property
    def has_elements(self) -> bool:
        """True if the name of a parameter is a part of the marks around it, so that its value may have others in it."""
        return "{name}" in self.value[1]

    @cached_property
    def name(self) -> re.Pattern[str]:
        return re.compile(rf"\s*{self._named}")

    @cached_property
    def loose(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        return re.compile(self._between), re.compile(self._ends)

    @cached_property
    def by_line(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """The patterns where values have lines of their own."""
        return re.compile(rf"\n{self._between}"), re.compile(rf"\n(?:{self._ends})")

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """The beginnings of the marks that may end a value."""
        marks = (self.value[1] or self.key[0], self.ends[0])
        return tuple(re.split(r'\s|="', mark.strip())[0] for mark in marks)

    @cached_property
    def next_call(self) -> re.Pattern[str]:
        return re.compile("|".join(map(pattern, self.next)))

    @property
    def _named(self) -> str:
        return rf"{pattern(self.key[0])}\s*([^<>\s\"/][^<>\s\"]*?)\s*{pattern(self.key[1])}" + (
            rf"\s*{pattern(self.value[0])}" if self.value[0] else ""
        )

    @property
    def _between(self) -> str:
        return rf"{pattern(self.value[1])}\s*(?={self._named})"

    @property
    def _ends(self) -> str:
        first, *rest = map(pattern, self.ends)
        more = "".join(rf"(?:\s*{mark})?" for mark in rest)
        whole = r"\s*".join([first, *rest])
        return rf"{pattern(self.value[1])}\s*{first}{more}|{whole}"


def pattern(mark: str) -> str:
    """Return a pattern for a mark, in which attributes may have other values."""
    mark = mark.replace("{name}", "NAME_OF_PARAMETER")
    escaped = re.escape(mark).replace("NAME_OF_PARAMETER", r"[^<>\s]+")
    return _ATTRIBUTE.sub('="[^"]*"', escaped.replace(r"\ ", r"\s+").replace("\\\n", r"\s*"))


def parameters(marks: ParameterMarks, source: Source, name: str, schema: object) -> Steps[None]:
    """Read the parameters of a call, which begin here."""
    first = yield from source.when(lambda arrived, _: _first(marks, arrived, source.at))
    yield Begun(name)
    yield "{"
    if isinstance(first, int):
        source.at = first
    else:
        yield from (_Elements if marks.has_elements else _Values)(marks, source, schema, first).steps()
    yield "}"
    yield ENDED


def _first(marks: ParameterMarks, text: str, start: int) -> re.Match[str] | int:
    """Return the name of the next parameter, or the end of a call without another one. Raises UnfinishedError, and
    ValueError if something else is there."""
    if (first := marks.name.match(text, start)) is not None:
        return first
    said = text[start:].lstrip()
    opened, closed = marks.key[0], marks.ends[0]
    if said.startswith(closed):
        return len(text) - len(said) + len(closed)
    if closed.startswith(said) or said.startswith(opened) or opened.startswith(said):
        raise UnfinishedError
    raise ValueError("no parameter")


class _Parameters:
    """Yields the parameters of a call as JSON. Values that are texts are yielded as they arrive, others when they are
    complete."""

    def __init__(self, marks: ParameterMarks, source: Source, schema: object, first: re.Match[str]) -> None:
        self._marks, self._source, self._schema, self._first = marks, source, schema, first
        self._declared, self._is_open = _properties(schema)
        self._names: list[str] = []
        self._start = self._sent = 0  # where the value begins, and up to where it has been yielded
        self._is_text = False

    def _key(self, name: str) -> str:
        before = ", " if self._names else ""
        self._names.append(name)
        return f"{before}{as_json(name)}: "

    def _begin(self, name: str, start: int) -> Steps[None]:
        self._start = self._sent = self._source.at = start
        self._is_text = is_text(self._declared.get(name), self._schema)
        yield self._key(name) + ('"' if self._is_text else "")

    def _until(self, stops: Sequence[str], *, holds_blanks: bool) -> Steps[int]:
        """Yield the text up to the first of these marks, and return its place."""
        place, source = self._sent, self._source
        while not (found := [at for stop in stops if (at := source.text.find(stop, place)) >= 0]):
            place = max(place, len(source.text) - max(begun(source.text, stop) for stop in stops))
            yield self._more(place, holds_blanks=holds_blanks)
            yield from source.wait()
        yield self._more(min(found), holds_blanks=holds_blanks)
        return min(found)

    def _more(self, end: int, *, holds_blanks: bool) -> str:
        text = self._source.text[self._sent : end] if self._is_text else ""
        text = text.rstrip() if holds_blanks else text
        self._sent += len(text)
        return quoted(text)

    def _end(self, value: str) -> str:
        """Return the rest of a value that is complete."""
        if self._is_text:
            return quoted(value[self._sent - self._start :]) + '"'
        return self._typed(self._names[-1], value)

    def _typed(self, name: str, value: str) -> str:
        try:
            return as_json(_value(value, self._declared.get(name), self._schema))
        except ValueError:
            return as_json(value)


class _Values(_Parameters):
    """Values that have no others in them. They are certain up to the next mark that may end them. If no parameter
    follows there, the end of the call decides where the value ends."""

    _searched = 0  # no mark of another call begins before it

    def steps(self) -> Steps[None]:
        source, name = self._source, self._first
        while name.end() == len(source.text):
            yield from source.wait()
        is_by_line = self._marks.has_lines and source.text[name.end()] == "\n"
        between = (self._marks.by_line if is_by_line else self._marks.loose)[0]
        while True:
            while name.end() == len(source.text):
                yield from source.wait()
            yield from self._begin(name[1], name.end() + (self._marks.has_lines and source.text[name.end()] == "\n"))
            stop = self._searched = yield from self._until(self._marks.stops, holds_blanks=True)
            while not ((found := between.match(source.text, stop - is_by_line)) and self._may_follow(found[1])):
                if (texts := self._whole()) is not None:
                    yield from self._rest(texts)
                    return
                yield from source.wait()
            value = source.text[self._start : max(self._start, found.start())]
            yield self._end(value.removesuffix("\n") if self._marks.has_lines and not is_by_line else value)
            following = self._marks.name.match(source.text, found.end())
            assert following is not None
            name = following

    def _may_follow(self, name: str) -> bool:
        return name not in self._names and (self._is_open or name in self._declared)

    def _whole(self) -> dict[str, str] | None:
        """Return the values of the call if it is complete: at the end of the answer, or when another call begins. The
        whole call is read then, so that a mark in a value is only tried while it is new."""
        source, place = self._source, self._searched
        self._searched = max(place, len(source.text) - LONGEST_MARKS)
        if not source.is_over and not self._marks.next_call.search(source.text, place):
            return None
        try:
            texts, source.at = _values_at(self._marks, source.text, self._first, self._schema, source.is_over)
        except UnfinishedError:
            return None
        return texts

    def _rest(self, texts: Mapping[str, str]) -> Steps[None]:
        yield self._end(texts[self._names[-1]])
        for name in [*texts][len(self._names) :]:
            yield self._key(name) + self._typed(name, texts[name])


class _Elements(_Parameters):
    """Values in elements whose marks have the name. An element with others in it is an object."""

    def steps(self) -> Steps[None]:
        source, name = self._source, self._first
        while True:
            yield from self._begin(name[1], name.end())
            character = yield from source.visible()
            if not self._marks.key[0].startswith(character):
                yield from self._until([self._closing(name)], holds_blanks=False)
            value, end = yield from self._element(name)
            yield self._end(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            source.at = end
            following = yield from source.when(lambda text, _: _first(self._marks, text, source.at))
            if isinstance(following, int):
                source.at = following
                return
            name = following

    def _closing(self, name: re.Match[str]) -> str:
        return self._marks.value[1].replace("{name}", name[1])

    def _element(self, name: re.Match[str]) -> Steps[tuple[object, int]]:
        """Read an element, once its end has arrived: reading it again for each piece would take long."""
        source, closing, searched = self._source, self._closing(name), name.end()
        while not source.is_over and source.text.find(closing, searched) < 0:
            searched = max(name.end(), len(source.text) - len(closing))
            yield from source.wait()
        return (yield from source.when(lambda text, _: _element(self._marks, text, name)))


def _values_at(
    marks: ParameterMarks, text: str, first: re.Match[str], schema: object, ended: bool
) -> tuple[dict[str, str], int]:
    """Return the values of the parameters, as texts, and the end of the call. Raises UnfinishedError."""
    is_by_line = marks.has_lines and text.startswith("\n", first.end())
    is_by_line &= not (ended and not marks.by_line[1].search(text, first.end()))
    between, ends = marks.by_line if is_by_line else marks.loose
    stop, end = _end_of_call(marks, text, first.end(), ends, ended)
    declared, is_open = _properties(schema)
    found: dict[str, str] = {}
    name: re.Match[str] | None = first
    while name is not None:
        others = (
            each
            for each in between.finditer(text, name.end(), stop)
            if each[1] not in (*found, name[1]) and (is_open or each[1] in declared)
        )
        following = next(others, None)
        value = text[name.end() : following.start() if following else stop]
        if marks.has_lines:
            value = value.removeprefix("\n")
            value = value if is_by_line else value.removesuffix("\n")
        found[name[1]] = value
        name = marks.name.match(text, following.end()) if following else None
    return found, end


def _element(marks: ParameterMarks, text: str, name: re.Match[str]) -> tuple[object, int]:
    """Return the value of the element that begins with `name`, and its end. Raises UnfinishedError."""
    closing = marks.value[1].replace("{name}", name[1])
    start = name.end()
    if marks.name.match(text, start):
        found: dict[str, object] = {}
        while (inner := marks.name.match(text, start)) is not None:
            value, start = _element(marks, text, inner)
            if isinstance(value, str):
                with suppress(ValueError):
                    value = json.loads(value)
            found[inner[1]] = value
        end = re.compile(rf"\s*{re.escape(closing)}").match(text, start)
        if end is None:
            raise UnfinishedError
        return found, end.end()
    opened = re.escape(marks.key[0])
    ends = re.compile(rf"{re.escape(closing)}(?=\s*(?:{opened}|{pattern(marks.ends[0])}))")
    end = ends.search(text, start)
    if end is None:
        raise UnfinishedError
    return text[start : end.start()], end.end()


def _end_of_call(marks: ParameterMarks, text: str, start: int, ends: re.Pattern[str], ended: bool) -> tuple[int, int]:
    """Return where the last value of a call ends, and the end of the call. Raises UnfinishedError."""
    candidates = [*ends.finditer(text, start)]
    for number, candidate in enumerate(candidates):
        rest = text[candidate.end() :].lstrip()
        if not ended and any(mark.startswith(rest) for mark in (*marks.next, *marks.ends[1:])):
            raise UnfinishedError
        another = marks.next_call.search(text, candidate.end())
        is_last = number + 1 == len(candidates)
        if not is_last and (another is None or candidates[number + 1].start() < another.start()):
            continue  # a value with the marks that end a call
        if is_last and another is None and not ended:
            raise UnfinishedError
        return candidate.start(), candidate.end()
    stop = text.rfind(marks.ends[0], start)
    if not ended or stop < 0:
        raise UnfinishedError
    return stop, stop + len(marks.ends[0])


def _properties(schema: object) -> tuple[Mapping[str, object], bool]:
    """Return the properties of a tool, and whether it takes others."""
    schema = schema if isinstance(schema, dict) else {}
    return properties_in(schema), schema.get("additionalProperties") is not False


def properties_in(schema: Mapping[str, object]) -> Mapping[str, object]:
    """Return the schemas of the properties that a schema names."""
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


# --- types ------------------------------------------------------------------------------------------------------------


def kinds_of(described: object, root: object) -> set[str]:
    """Return the types that a value may have, given its schema and the whole schema; none if any."""
    return {type for part in _alternatives(described, root) for type in _types(part)}


def is_text(described: object, root: object) -> bool:
    """Return whether a value can only be a text, given its schema and the whole schema."""
    return kinds_of(described, root) == {"string"}


def listed_values(described: object, root: object) -> list[object]:
    """Return the only values that a schema allows; none if it does not list them."""
    return [value for part in _alternatives(described, root) for value in _listed(part)]


def _value(text: str, described: object, root: object) -> object:
    """Return a value with the type of its schema. A text that does not match stays a text."""
    if text in listed_values(described, root) or is_text(described, root):
        return text
    types = kinds_of(described, root)
    word = text.strip()
    value: object = text
    if "boolean" in types and word in ("True", "False"):  # as templates in Python's Jinja write them
        value = word == "True"
    elif word == "null" or (word == "None" and "null" in types and "string" not in types):
        value = None
    else:
        try:
            value = loads(text)
        except ValueError:
            return text
    if isinstance(value, float) and value.is_integer() and "integer" in types and "number" not in types:
        value = int(value)
    kind = "null" if value is None else _TYPES[type(value)]
    fits = not types or kind in types or (kind == "integer" and "number" in types)
    return value if fits or "string" not in types else text


def _alternatives(schema: object, root: object) -> Iterator[dict[str, object]]:
    """Yield the schemas that say what a value may be, each once, with those of its references and combinations."""
    waiting, seen = [schema], set[int]()
    for each in waiting:
        if not isinstance(each, dict) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [found[0]] if (found := target(root, each.get("$ref"))) else []
        for keyword in ("anyOf", "oneOf", "allOf"):
            waiting += parts if isinstance(parts := each.get(keyword), list) else []


def _listed(schema: Mapping[str, object]) -> list[object]:
    values = schema.get("enum")
    return [*(values if isinstance(values, list) else []), *([schema["const"]] if "const" in schema else [])]


def _types(schema: Mapping[str, object]) -> Iterator[str]:
    declared = schema.get("type")
    if isinstance(declared, str | list):
        yield from [declared] if isinstance(declared, str) else filter(lambda each: isinstance(each, str), declared)
    else:
        yield from ("null" if value is None else _TYPES[type(value)] for value in _listed(schema))
    if schema.get("nullable") is True:
        yield "null"
