"""Reads the parameters of calls in XML: `<parameter=NAME>`, the value on lines of its own, `</parameter>`.

Models do not escape values, so a value may contain any of the marks. It ends where another parameter of the tool
begins, or with the call, and the call ends with the last marks that can be its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from edgespec.llama.schema import target

_OPEN, _END = "<parameter=", "</function>"
_NAME = re.compile(r"\s*<parameter=([^>\s]+)>")
_BETWEEN = r"</parameter>\s*(?=<parameter=([^>\s]+)>)"
_ENDS = r"</parameter>\s*</function>(?:\s*</tool_call>)?|</function>\s*</tool_call>"
_NEXT = ("<tool_call>", "<function=")
_NEXT_CALL = re.compile("|".join(_NEXT))
_LOOSE = re.compile(_BETWEEN), re.compile(_ENDS)
_BY_LINE = re.compile(rf"\n{_BETWEEN}"), re.compile(rf"\n(?:{_ENDS})")  # where values have lines of their own
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


class UnfinishedError(Exception):
    """The text may become a call when more of it arrives."""


def parameters_at(text: str, start: int, schema: Any, ended: bool) -> tuple[dict[str, str], int]:
    """Return the values of the parameters that begin at `start`, as texts, and the end of the call. Raises
    UnfinishedError, and ValueError if there is no call."""
    first, begun = _NAME.match(text, start), text[start:].lstrip()
    if first is None:
        if begun.startswith(_END):
            return {}, len(text) - len(begun) + len(_END)
        if _END.startswith(begun) or begun.startswith(_OPEN) or _OPEN.startswith(begun):
            raise UnfinishedError
        raise ValueError("no parameter")
    is_by_line = text.startswith("\n", first.end())
    marks = _BY_LINE if is_by_line and not (ended and not _BY_LINE[1].search(text, first.end())) else _LOOSE
    stop, end = _end_of_call(text, first.end(), marks[1], ended)
    declared, is_open = _properties(schema)
    found: dict[str, str] = {}
    name: re.Match[str] | None = first
    while name is not None:
        others = (
            each
            for each in marks[0].finditer(text, name.end(), stop)
            if each[1] not in (*found, name[1]) and (is_open or each[1] in declared)
        )
        following = next(others, None)
        value = text[name.end() : following.start() if following else stop].removeprefix("\n")
        found[name[1]] = value if marks is _BY_LINE else value.removesuffix("\n")
        name = _NAME.match(text, following.end()) if following else None
    return found, end


def _end_of_call(text: str, start: int, ends: re.Pattern[str], ended: bool) -> tuple[int, int]:
    """Return where the last value of a call ends, and the end of the call. Raises UnfinishedError, ValueError."""
    candidates = [*ends.finditer(text, start)]
    for number, candidate in enumerate(candidates):
        rest = text[candidate.end() :].lstrip()
        if not ended and any(mark.startswith(rest) for mark in (*_NEXT, "</tool_call>")):
            raise UnfinishedError
        another = _NEXT_CALL.search(text, candidate.end())
        is_last = number + 1 == len(candidates)
        if not is_last and (another is None or candidates[number + 1].start() < another.start()):
            continue  # a value with the marks that end a call
        if is_last and another is None and not ended:
            raise UnfinishedError
        return candidate.start(), candidate.end()
    if not ended:
        raise UnfinishedError
    stop = text.rfind(_END, start)
    if stop < 0:
        raise ValueError("the call has no end")
    return stop, stop + len(_END)


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


def _value(text: str, described: Any, root: Any, loads: Callable[[str], Any]) -> Any:
    parts = [*_alternatives(described, root)]
    listed = [value for part in parts for value in _listed(part)]
    if text in listed:
        return text
    types = {type for part in parts for type in _types(part)}
    if types == {"string"}:
        return text
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
