"""The fields of a request that constrain the answer, under the names of OpenAI, vLLM and llama.cpp's server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from edgespec.batch.row import BadRowError, UnsupportedError
from edgespec.settings import CONSTRAINTS, shown

OBJECT = {"type": "object"}
_SIGN = re.compile(r"([\\.+*?()|\[\]{}^$#&~/-])")


def take_constraint(fields: dict[str, Any]) -> dict[str, Any]:
    """Remove all fields that constrain the answer from `fields`, and return the constraint as a setting by its name.

    An empty constraint, such as `{"json_schema": ""}`, removes the default one. Raises BadRowError.
    """
    found: dict[str, tuple[str, Any]] = {}
    for name in (*CONSTRAINTS, *_READERS):
        if name in fields:
            value = fields.pop(name)
            found[name] = (name, value) if name in CONSTRAINTS else _READERS[name](name, value)
    constraints = [name for name, (_, value) in found.items() if value not in (None, "")]
    if len(constraints) > 1:
        raise BadRowError(f"{constraints[0]} and {constraints[1]} cannot be combined", constraints[0])
    return dict([found[name] for name in constraints] or [*found.values()][:1])


def _response_format(name: str, value: Any) -> tuple[str, Any]:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        return "json_schema", ""
    if kind == "json_object":
        return "json_schema", value.get("schema") or OBJECT
    described = value.get("json_schema", value) if kind == "json_schema" else None
    if not isinstance(described, Mapping) or described.get("schema") is None:
        wanted = "must be text, json_object or json_schema with a schema"
        raise BadRowError(f"{name} {wanted}, not {shown(value)}", name)
    return "json_schema", described["schema"]


def _schema(name: str, value: Any) -> tuple[str, Any]:
    return "json_schema", value


def _regex(name: str, value: Any) -> tuple[str, Any]:
    return "regex", value


def _grammar(name: str, value: Any) -> tuple[str, Any]:
    return "grammar", value


def _choice(name: str, value: Any) -> tuple[str, Any]:
    """Return an expression that matches one of several texts."""
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
        raise BadRowError(f"{name} must be a list of texts, not {shown(value)}", name)
    return "regex", "|".join(_SIGN.sub(r"\\\1", text) for text in value)


def _structured_outputs(name: str, value: Any) -> tuple[str, Any]:
    if not isinstance(value, Mapping):
        raise BadRowError(f"{name} must be an object, not {shown(value)}", name)
    kinds = [kind for kind in _STRUCTURES if value.get(kind) not in (None, False)]
    if len(kinds) != 1:
        raise BadRowError(f"{name} must have one of {', '.join(_STRUCTURES)}, not {shown(value)}", name)
    return _STRUCTURES[kinds[0]](f"{name}.{kinds[0]}", value[kinds[0]])


def _any_object(name: str, value: Any) -> tuple[str, Any]:
    if value is not True:
        raise UnsupportedError(f"{shown(value)} cannot be honoured; use json for a schema", name)
    return "json_schema", OBJECT


_STRUCTURES = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": _any_object,
}
_READERS = {
    "response_format": _response_format,
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "structured_outputs": _structured_outputs,
}
