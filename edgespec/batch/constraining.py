"""The fields of a request that constrain the answer, under the names of OpenAI, vLLM and llama.cpp's server."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from edgespec.batch.bad_input import BadInputError, UnsupportedError, wrong
from edgespec.settings import CONSTRAINTS, Constraint, shown

Reader = Callable[[str, Any], tuple[str, Any]]
"""Reads the value of a named field. Returns the constraint as a setting and its value. Raises BadInputError."""

OBJECT = {"type": "object"}
_SIGN = re.compile(r"([\\.+*?()|\[\]{}^$#&~/-])")


def take_constraint(fields: dict[str, Any]) -> dict[str, Any]:
    """Remove all fields that constrain the answer from `fields`, and return the constraint as a setting by its name.

    An empty constraint, such as `{"json_schema": ""}`, removes the default one. Raises BadInputError.
    """
    found: dict[str, tuple[str, Any]] = {}
    for name in (*CONSTRAINTS, *_READERS):
        if name in fields:
            value = fields.pop(name)
            found[name] = (name, value) if name in CONSTRAINTS else _READERS[name](name, value)
    constraints = [name for name, (_, value) in found.items() if value not in (None, "")]
    if len(constraints) > 1:
        raise BadInputError(f"{constraints[0]} and {constraints[1]} cannot be combined", constraints[0])
    return dict([found[name] for name in constraints] or [*found.values()][:1])


def _response_format(name: str, value: Any) -> tuple[str, Any]:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        return "json_schema", ""
    if kind == "json_object":
        return "json_schema", value.get("schema") or OBJECT
    described = value.get("json_schema", value) if kind == "json_schema" else None
    if not isinstance(described, Mapping) or described.get("schema") is None:
        raise wrong(name, "be text, json_object or json_schema with a schema", value)
    return "json_schema", described["schema"]


def _as(kind: Constraint) -> Reader:
    return lambda name, value: (kind, value)


def _choice(name: str, value: Any) -> tuple[str, Any]:
    """Return an expression that matches one of several texts."""
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
        raise wrong(name, "be a list of texts", value)
    return "regex", "|".join(_SIGN.sub(r"\\\1", text) for text in value)


def _structured_outputs(name: str, value: Any) -> tuple[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong(name, "be an object", value)
    kinds = [kind for kind in _STRUCTURES if value.get(kind) not in (None, False)]
    if len(kinds) != 1:
        raise wrong(name, f"have one of {', '.join(_STRUCTURES)}", value)
    return _STRUCTURES[kinds[0]](f"{name}.{kinds[0]}", value[kinds[0]])


def _any_object(name: str, value: Any) -> tuple[str, Any]:
    if value is not True:
        raise UnsupportedError(name, f"{shown(value)} cannot be honoured; use json for a schema")
    return "json_schema", OBJECT


_STRUCTURES = {
    "json": _as("json_schema"),
    "regex": _as("regex"),
    "choice": _choice,
    "grammar": _as("grammar"),
    "json_object": _any_object,
}
_READERS = {
    "response_format": _response_format,
    "guided_json": _as("json_schema"),
    "guided_regex": _as("regex"),
    "guided_choice": _choice,
    "guided_grammar": _as("grammar"),
    "structured_outputs": _structured_outputs,
}
