"""Reads the parameters of calls whose names and values stand between marks, such as `<parameter=NAME>`.

Models do not escape values, so a value may contain any of the marks. It ends where another parameter of the tool
begins, or with the call, and the call ends with the last marks that can be its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from edgespec.llama.schema import target

_ATTRIBUTE = re.compile(r'="[^"]*"')
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


class UnfinishedError(Exception):
    """The text may become a call when more of it arrives."""


@dataclass(frozen=True)
class ParameterMarks:
    """The marks of calls with parameters: around the name of one, around its value, and after all of a call.

    `next` are those that begin another call. An attribute in a mark may have another value, such as a type.
    """

    key: tuple[str, str]
    value: tuple[str, str]
    ends: tuple[str, ...]
    next: tuple[str, ...]

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


def parameters_at(marks: ParameterMarks, text: str, start: int, schema: Any, ended: bool) -> tuple[dict[str, str], int]:
    """Return the values of the parameters that begin at `start`, as texts, and the end of the call. Raises
    UnfinishedError, and ValueError if there is no call."""
    first, begun = marks.name.match(text, start), text[start:].lstrip()
    if first is None:
        opened, closed = marks.key[0], marks.ends[0]
        if begun.startswith(closed):
            return {}, len(text) - len(begun) + len(closed)
        if closed.startswith(begun) or begun.startswith(opened) or opened.startswith(begun):
            raise UnfinishedError
        raise ValueError("no parameter")
    if marks.has_elements:
        return _elements_at(marks, text, start, ended)
    is_by_line = text.startswith("\n", first.end())
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
        value = text[name.end() : following.start() if following else stop].removeprefix("\n")
        found[name[1]] = value if is_by_line else value.removesuffix("\n")
        name = marks.name.match(text, following.end()) if following else None
    return found, end


def _elements_at(marks: ParameterMarks, text: str, start: int, ended: bool) -> tuple[dict[str, str], int]:
    """Return the values of elements, as texts, and the end of the call. An element with others in it is an object."""
    found: dict[str, str] = {}
    while (name := marks.name.match(text, start)) is not None:
        value, start = _element(marks, text, name)
        found[name[1]] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    end = re.compile(rf"\s*{pattern(marks.ends[0])}").match(text, start)
    if end is None:
        raise ValueError("the call has no end") if ended else UnfinishedError
    return found, end.end()


def _element(marks: ParameterMarks, text: str, name: re.Match[str]) -> tuple[Any, int]:
    """Return the value of the element that begins with `name`, and its end. Raises UnfinishedError."""
    closing = marks.value[1].replace("{name}", name[1])
    start = name.end()
    if marks.name.match(text, start):
        found: dict[str, Any] = {}
        while (inner := marks.name.match(text, start)) is not None:
            value, start = _element(marks, text, inner)
            for loaded in (json.loads, str):
                try:
                    found[inner[1]] = loaded(value) if isinstance(value, str) else value
                    break
                except ValueError:
                    continue
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
    """Return where the last value of a call ends, and the end of the call. Raises UnfinishedError, ValueError."""
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
    if not ended:
        raise UnfinishedError
    stop = text.rfind(marks.ends[0], start)
    if stop < 0:
        raise ValueError("the call has no end")
    return stop, stop + len(marks.ends[0])


def _properties(schema: Any) -> tuple[Mapping[str, Any], bool]:
    """Return the properties of a tool, and whether it takes others."""
    schema = schema if isinstance(schema, dict) else {}
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}, schema.get("additionalProperties") is not False


# --- types ------------------------------------------------------------------------------------------------------------


def typed(texts: Mapping[str, str], schema: Any, loads: Callable[[str], Any]) -> dict[str, Any]:
    """Return parameters with the types of a tool's schema. A text that does not match stays a text."""
    properties, _ = _properties(schema)
    return {name: _value(text, properties.get(name), schema, loads) for name, text in texts.items()}


def is_text(described: Any, root: Any) -> bool:
    """Return whether a value can only be a text, given its schema and the whole schema."""
    return {type for part in _alternatives(described, root) for type in _types(part)} == {"string"}


def listed_values(described: Any, root: Any) -> list[Any]:
    """Return the only values that a schema allows; none if it does not list them."""
    return [value for part in _alternatives(described, root) for value in _listed(part)]


def _value(text: str, described: Any, root: Any, loads: Callable[[str], Any]) -> Any:
    if text in listed_values(described, root) or is_text(described, root):
        return text
    types = {type for part in _alternatives(described, root) for type in _types(part)}
    word = text.strip()
    value: Any = text
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


def _alternatives(schema: Any, root: Any) -> Iterator[dict[str, Any]]:
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


def _listed(schema: Mapping[str, Any]) -> list[Any]:
    values = schema.get("enum")
    return [*(values if isinstance(values, list) else []), *([schema["const"]] if "const" in schema else [])]


def _types(schema: Mapping[str, Any]) -> Iterator[str]:
    declared = schema.get("type")
    if isinstance(declared, str | list):
        yield from [declared] if isinstance(declared, str) else filter(lambda each: isinstance(each, str), declared)
    else:
        yield from ("null" if value is None else _TYPES[type(value)] for value in _listed(schema))
    if schema.get("nullable") is True:
        yield "null"
