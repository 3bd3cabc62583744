"""From the settings of a row in JSON to fields of a request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, SupportsFloat, TypeGuard

from edgespec.core.sampling import SamplingSettings
from edgespec.core.setting import Kind, SettingError, facts_of
from edgespec.requests.bad_input import BadInputError, JsonObject, object_in, wrong
from edgespec.requests.samplers import ORDERS, ordered
from edgespec.settings import CONSTRAINTS, MAX_SEQUENCES, Constraint, Request, bias_pairs, schema_text, shown


def request_fields(settings: JsonObject, base: SamplingSettings, *, also: Sequence[str] = ()) -> dict[str, Any]:
    """Return fields of a `Request` from settings of it and of `SamplingSettings`, by their names, and from `ORDERS`.

    Sampling settings that are missing are those of `base`. The engine checks what depends on the model. Raises
    BadInputError for a value of the wrong kind, and for an unknown name; it suggests a setting or a name in `also`.
    """
    changes: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    orders = {name: settings[name] for name in ORDERS if name in settings}
    for name, value in settings.items():
        if name in orders:
            continue
        if name not in CONVERTERS:
            meant = get_close_matches(name, [*CONVERTERS, *also], 1)
            raise BadInputError(f"{shown(name)} is not supported" + "".join(f" (meant: {close}?)" for close in meant))
        (sampling if name in _SAMPLING else changes)[name] = CONVERTERS[name](name, value)
    if not changes.keys().isdisjoint(CONSTRAINTS):  # a constraint replaces any other
        changes = dict.fromkeys(CONSTRAINTS, "") | changes
    if sampling:
        try:
            changes["sampling"] = replace(base, **sampling)
        except SettingError as error:
            raise BadInputError(str(error), error.field) from error
    if orders:
        changes["sampling"], fills = ordered(changes.get("sampling", base), orders)
        changes |= {"infill": True} if fills else {}
    return changes


def checked_n(value: object) -> int:
    """Return a number of samples. Raises BadInputError."""
    if not is_integer(value) or not 1 <= value <= MAX_SEQUENCES:
        raise wrong("n", f"be an integer from 1 to {MAX_SEQUENCES}", value)
    return value


def is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


Converter = Callable[[str, object], object]
"""Returns the value of a named setting as the request has it. Raises BadInputError."""


def _checked(is_valid: Callable[[object], bool], must: str) -> Converter:
    def convert(name: str, value: object) -> object:
        if not is_valid(value):
            raise wrong(name, must, value)
        return value

    return convert


_integer = _checked(is_integer, "be an integer")
_number = _checked(lambda value: isinstance(value, float) or is_integer(value), "be a number")
_text = _checked(lambda value: isinstance(value, str), "be a string")
_flag = _checked(lambda value: isinstance(value, bool), "be true or false")


def _texts(name: str, value: object) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise wrong(name, "be a string or a list of strings", value)
    return tuple(texts)


def _stops(name: str, value: object) -> tuple[str, ...]:
    """Return the texts without empty ones, which some clients always send and other servers ignore too."""
    return tuple(filter(None, _texts(name, value)))


def _breakers(name: str, value: object) -> tuple[str, ...]:
    """Return breakers from a list of texts, or from a list in JSON, with or without its brackets: so other servers
    accept them. An empty text breaks nothing."""
    if isinstance(value, str) and value.strip()[:1] in ("[", '"'):
        with suppress(ValueError, RecursionError):
            value = json.loads(value if value.strip()[0] == "[" else f"[{value}]")
    return _stops(name, value)


def _ids(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not all(map(is_integer, value)):
        raise wrong(name, "be a list of token ids", value)
    return tuple(value)


def _schema(name: str, value: object) -> str:
    """Return a schema as JSON; a string is JSON already."""
    try:
        text = schema_text(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInputError(f"{name} cannot be parsed ({error})", name) from error
    if not isinstance(text, str):
        raise wrong(name, "be a schema", value)
    return text


def _biases(name: str, value: object) -> tuple[tuple[int, float], ...]:
    """Return (id, bias) pairs from pairs or an object; false bans a token, since JSON has no infinity."""
    pairs: Any = bias_pairs(value)
    try:
        return tuple((_token_id(token), _bias(bias)) for token, bias in pairs)
    except (TypeError, ValueError, OverflowError) as error:
        raise wrong(name, 'be {"token id": bias} or pairs of them', value) from error


def _token_id(value: object) -> int:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise TypeError
    return int(value)


def _bias(value: object) -> float:
    if value is False:
        return float("-inf")
    if isinstance(value, bool | str) or not isinstance(value, SupportsFloat):
        raise TypeError
    return float(value)


def _adapters(name: str, value: object) -> tuple[tuple[int | str, float], ...]:
    """Return (adapter, scale) pairs from the objects of llama.cpp's server, in which `id` is a number or a name."""
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        raise wrong(name, 'be a list of {"id": adapter, "scale": number}', value)
    found = [(each.get("id"), each.get("scale")) for each in value]
    for id, scale in found:
        if not (is_integer(id) or isinstance(id, str)) or not (is_integer(scale) or isinstance(scale, float)):
            raise wrong(name, 'be a list of {"id": adapter, "scale": number}', value)
    return tuple(found)


_KINDS: dict[Kind, Converter] = {
    "integer": _integer,
    "number": _number,
    "flag": _flag,
    **dict.fromkeys(("choice", "text", "constraint", "drafters", "pace"), _text),
    "texts": _texts,
    "stops": _stops,
    "breakers": _breakers,
    "ids": _ids,
    "biases": _biases,
    "adapters": _adapters,
    "schema": _schema,
}
_SAMPLING = facts_of(SamplingSettings)
CONVERTERS: dict[str, Converter] = {
    name: _KINDS[facts.kind] for name, facts in {**_SAMPLING, **facts_of(Request)}.items() if facts.row
}
"""How each setting that a row can have is read, by its name."""
SETTINGS = tuple(name for name in CONVERTERS if name not in (*CONSTRAINTS, "logprobs"))
"""The settings that requests of all formats have under the same names."""

# --- constraints, under the names of OpenAI, vLLM and llama.cpp's server ---------------------------------------------

Reader = Callable[[str, object], tuple[str, object]]
"""Reads the value of a named field. Returns the constraint as a setting and its value. Raises BadInputError."""

OBJECT = {"type": "object"}
_SIGN = re.compile(r"([\\.+*?()|\[\]{}^$#&~/-])")


def take_constraint(fields: dict[str, object]) -> dict[str, object]:
    """Remove all fields that constrain the answer from `fields`, and return the constraint as a setting by its name.

    An empty constraint, such as `{"json_schema": ""}`, removes the default one. Raises BadInputError.
    """
    found: dict[str, tuple[str, object]] = {}
    for name in (*CONSTRAINTS, *_READERS):
        if name in fields:
            value = fields.pop(name)
            found[name] = (name, value) if name in CONSTRAINTS else _READERS[name](name, value)
    constraints = [name for name, (_, value) in found.items() if value not in (None, "")]
    if len(constraints) > 1:
        raise BadInputError(f"{constraints[0]} and {constraints[1]} cannot be combined", constraints[0])
    return dict([found[name] for name in constraints] or [*found.values()][:1])


def _response_format(name: str, value: object) -> tuple[str, object]:
    format = object_in(value)
    kind = format.get("type")
    if kind == "text":
        return "json_schema", ""
    if kind == "json_object":
        return "json_schema", format.get("schema") or OBJECT
    described = format.get("json_schema", format) if kind == "json_schema" else None
    if not isinstance(described, Mapping) or described.get("schema") is None:
        raise wrong(name, "be text, json_object or json_schema with a schema", value)
    return "json_schema", described["schema"]


def _as(kind: Constraint) -> Reader:
    return lambda name, value: (kind, value)


def _choice(name: str, value: object) -> tuple[str, object]:
    """Return an expression that matches one of several texts."""
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
        raise wrong(name, "be a list of texts", value)
    return "regex", "|".join(_SIGN.sub(r"\\\1", text) for text in value)


def _structured_outputs(name: str, value: object) -> tuple[str, object]:
    if not isinstance(value, Mapping):
        raise wrong(name, "be an object", value)
    kinds = [kind for kind in _STRUCTURES if value.get(kind) not in (None, False)]
    if len(kinds) != 1:
        raise wrong(name, f"have one of {', '.join(_STRUCTURES)}", value)
    return _STRUCTURES[kinds[0]](f"{name}.{kinds[0]}", value[kinds[0]])


_STRUCTURES: dict[str, Reader] = {
    "json": _as("json_schema"),
    "regex": _as("regex"),
    "choice": _choice,
    "grammar": _as("grammar"),
    "json_object": lambda name, value: ("json_schema", OBJECT),
}
_READERS = {
    "response_format": _response_format,
    "guided_json": _as("json_schema"),
    "guided_regex": _as("regex"),
    "guided_choice": _choice,
    "guided_grammar": _as("grammar"),
    "structured_outputs": _structured_outputs,
}
