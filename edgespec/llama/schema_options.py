"""Alternatives of a JSON schema of which one value can match at most one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edgespec.llama.schema_words import TYPES

MOST_OPTIONS = 256  # more alternatives count as overlapping
MOST_VALUES = 256  # of one alternative
MOST_REQUIRED = 8  # properties that are compared

Values = frozenset[tuple[str, Any]]
"""Values with their types: in Python `1 == True`, in JSON they differ."""


class Exclusion:
    """Says whether alternatives exclude each other. `resolved` returns the schema that a reference leads to."""

    def __init__(self, resolved: Callable[[Any], Any]) -> None:
        self._resolved = resolved
        self._known: dict[int, tuple[Any, Values | None]] = {}  # the schemas too, so that no other gets their id

    def are_exclusive(self, options: Any) -> bool:
        """True if it is certain: alternatives are of different types, have different values, or are objects that
        differ in the value of a required property."""
        if not isinstance(options, list) or len(options) > MOST_OPTIONS:
            return False
        of_type: dict[str, list[Any]] = {name: [] for name in TYPES}
        for option in map(self._resolved, options):
            for name in self._types(option):
                of_type[name].append(option)
        return all(
            len(group) < 2 or _differ([self._values(option) for option in group]) or self._differ_in_a_property(group)
            for group in of_type.values()
        )

    def _types(self, schema: Any) -> set[str]:
        """The types that can match, perhaps more."""
        if not isinstance(schema, dict):
            return {*TYPES} if schema is not False else set()
        values = self._values(schema)
        if values is not None:
            return {name for name, _ in values}
        types = schema.get("type", TYPES)
        names = [types] if isinstance(types, str) else types
        return {"number" if name == "integer" else str(name) for name in names} & {*TYPES}

    def _differ_in_a_property(self, options: Sequence[Any]) -> bool:
        """True if all require a property whose values are different."""
        for name in _required(options[0]):
            values = []
            for option in options:
                properties = option.get("properties") if isinstance(option, dict) else None
                if not isinstance(properties, dict) or name not in properties or name not in _required(option):
                    break
                values.append(self._values(self._resolved(properties[name])))
            if len(values) == len(options) and _differ(values):
                return True
        return False

    def _values(self, schema: Any) -> Values | None:
        """The only values that can match; None if there may be others, or too many."""
        if not isinstance(schema, dict):
            return None
        if id(schema) not in self._known:
            values = [schema["const"]] if "const" in schema else schema.get("enum")
            found: Values | None = None
            if isinstance(values, list) and len(values) <= MOST_VALUES:
                is_plain = not any(isinstance(value, dict | list) for value in values)
                found = frozenset((_type(value), value) for value in values) if is_plain else None
            self._known[id(schema)] = (schema, found)
        return self._known[id(schema)][1]


def _required(schema: Any) -> list[str]:
    required = schema.get("required") if isinstance(schema, dict) else None
    return [name for name in required[:MOST_REQUIRED] if isinstance(name, str)] if isinstance(required, list) else []


def _differ(values: Sequence[Values | None]) -> bool:
    """True if no value is in two of these sets."""
    seen: set[tuple[str, Any]] = set()
    for own in values:
        if own is None or not seen.isdisjoint(own):
            return False
        seen.update(own)
    return True


def _type(value: Any) -> str:
    kinds = ((type(None), "null"), (bool, "boolean"), (int | float, "number"), (str, "string"))
    return next(name for kind, name in kinds if isinstance(value, kind))
