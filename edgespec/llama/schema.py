"""JSON schemas in the keywords that llguidance implements.

A keyword that llguidance lacks is rewritten where others say exactly the same. It is ignored, with a note, where a
schema without it allows all that the schema allowed and other servers ignore it as well. All else is refused, with its
place. docs/constrained.md has the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from edgespec.llama.schema_options import Exclusion
from edgespec.llama.schema_words import (
    ANNOTATIONS,
    DIALECTS,
    FORMATS,
    IMPLEMENTED,
    IN_PLACE,
    NOT_SUPPORTED,
    TYPES,
    Place,
    awkward_part,
    shown,
    without_annotations,
)

DEEPEST = 128  # levels of objects and lists
MOST_NOTES = 8
MOST_DEPENDENT = 6  # keys; each doubles the number of alternatives
MOST_ALTERNATIVES = 16
MOST_STEPS = 64  # from reference to reference


def translated(text: str) -> tuple[str, list[str]]:
    """A schema for llguidance, and notes on what is ignored. Raises ValueError, which names the keyword and its place
    as a JSON pointer."""
    schema = _read(text)
    if schema is False:
        raise ValueError("nothing can match it")
    if not isinstance(schema, dict):
        if schema is not True:
            raise ValueError("a schema is an object, true or false")
        return "{}", []
    translation = _Translation(schema)
    return json.dumps(schema, allow_nan=False), [f"JSON schema: {note}" for note in translation.notes]


def _read(text: str) -> Any:
    try:
        schema = json.loads(text)  # says where the text is wrong
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [schema]
    for _ in range(DEEPEST):
        level = [
            part
            for value in level
            if isinstance(value, dict | list)
            for part in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return schema
    raise ValueError(_TOO_DEEP)


class _Translation:
    """Rewrites a schema in place, and its subschemas. A definition is read only if something refers to it."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.notes: list[str] = []
        self._root = root
        self._seen: dict[int, Any] = {id(root): root}
        self._leads_to: dict[int, tuple[Any, Any]] = {}  # schemas, and what their references lead to
        self._exclusion = Exclusion(self._resolved)
        self._reads_all = False  # all definitions are read
        self._waiting: list[tuple[dict[str, Any], Place]] = [(root, ())]
        options = root.get("x-guidance")
        self._is_lenient = isinstance(options, dict) and options.get("lenient") is True
        while self._waiting:
            self._rewrite(*self._waiting.pop())

    def _note(self, text: str) -> None:
        if len(self.notes) < MOST_NOTES:
            self.notes.append(text)
        elif len(self.notes) == MOST_NOTES:
            self.notes.append("more keywords are ignored")

    def _rewrite(self, schema: dict[str, Any], place: Place) -> None:
        self._drop_what_has_no_effect(schema)
        self._ignore(schema, place)
        for keyword, rewrite in (
            ("unevaluatedProperties", self._unevaluated_properties),
            ("unevaluatedItems", self._unevaluated_items),
            ("dependencies", self._dependencies),
            ("dependentRequired", self._dependent_required),
            ("dependentSchemas", self._dependent_schemas),
            ("propertyNames", self._property_names),
            ("minProperties", self._min_properties),
            ("not", self._not),
        ):
            if keyword in schema:
                rewrite(schema, place, schema[keyword])
        for keyword in NOT_SUPPORTED:
            if keyword in schema:
                self._refuse(schema, keyword, place)
        patterns = schema.get("patternProperties")
        self._check_patterns([schema.get("pattern"), *(patterns if isinstance(patterns, dict) else ())], place)
        if "oneOf" in schema and not self._exclusion.are_exclusive(schema["oneOf"]):
            self._note(f"oneOf at {shown(place)} is treated as anyOf: several of its alternatives may match")
        self._read_parts(schema, place)

    def _check_patterns(self, patterns: list[Any], place: Place) -> None:
        for pattern in patterns:
            if isinstance(pattern, str) and (part := awkward_part(pattern)):
                raise ValueError(f"a pattern at {shown(place)} has {part}, which is not supported")

    def _read_parts(self, schema: dict[str, Any], place: Place) -> None:
        for keyword, value in schema.items():
            if keyword in ("properties", "patternProperties") and isinstance(value, dict):
                for name, part in value.items():
                    self._await(part, ((place, keyword), name))
            elif keyword in ("allOf", "anyOf", "oneOf", "prefixItems", "items") and isinstance(value, list):
                for index, part in enumerate(value):
                    self._await(part, ((place, keyword), str(index)))
            elif keyword in ("items", "additionalItems", "additionalProperties"):
                self._await(value, (place, keyword))
            elif keyword == "$ref" and isinstance(value, str):
                found = self._target(value)
                if found is not None:
                    self._await(*found)
                elif not self._reads_all:  # an anchor, perhaps in a definition
                    self._reads_all = True
                    for definitions in ("$defs", "definitions"):
                        parts = self._root.get(definitions)
                        for name, part in parts.items() if isinstance(parts, dict) else ():
                            self._await(part, (((), definitions), name))

    def _await(self, schema: Any, place: Place) -> None:
        if isinstance(schema, dict) and id(schema) not in self._seen:
            self._seen[id(schema)] = schema
            self._waiting.append((schema, place))

    # --- without effect, or ignored -------------------------------------------------------------------------------

    def _drop_what_has_no_effect(self, schema: dict[str, Any]) -> None:
        if "contains" not in schema or (schema.get("minContains") == 0 and "maxContains" not in schema):
            _drop(schema, "contains", "minContains", "maxContains")
        if "if" not in schema or not {"then", "else"} & {*schema}:
            _drop(schema, "if", "then", "else")
        if schema.get("uniqueItems") is False:
            del schema["uniqueItems"]
        for keyword in ("unevaluatedProperties", "unevaluatedItems", "propertyNames"):
            if keyword in schema and without_annotations(schema[keyword]) in (True, {}):
                del schema[keyword]

    def _ignore(self, schema: dict[str, Any], place: Place) -> None:
        at = shown(place)
        if schema.pop("uniqueItems", False):
            self._note(f"uniqueItems at {at} is ignored: items may repeat")
        format, types = schema.get("format"), schema.get("type", "string")
        if isinstance(format, str) and _NUMBERED_UUID.fullmatch(format):
            schema["format"] = "uuid"
        elif isinstance(format, str) and format not in FORMATS:
            del schema["format"]
            if "string" in (types if isinstance(types, list) else [types]):
                self._note(f"format {_short(format)} at {at} is ignored: it is unknown")
        dialect = schema.get("$schema")
        if isinstance(dialect, str) and dialect.rstrip("#") not in DIALECTS:
            del schema["$schema"]
            self._note(f"$schema {_short(dialect)} at {at} is ignored: it is unknown")
        for keyword in schema:
            if keyword not in IMPLEMENTED and keyword not in ANNOTATIONS and not keyword.startswith("x-"):
                self._note(f"the unknown keyword {_short(keyword)} at {at} is ignored")

    def _refuse(self, schema: dict[str, Any], keyword: str, place: Place, why: str = "") -> None:
        """Raise ValueError; drop the keyword with a note if the schema asks for that (`lenient` in `x-guidance`)."""
        said = f'"{keyword}" at {shown((place, keyword))}'
        if not self._is_lenient:
            raise ValueError(f"{said} is not supported{why}")
        del schema[keyword]
        self._note(f"{said} is ignored")

    # --- rewritten ------------------------------------------------------------------------------------------------

    def _unevaluated_properties(self, schema: dict[str, Any], place: Place, value: Any) -> None:
        """Without subschemas for the same object these are the additional properties."""
        if "additionalProperties" not in schema:
            if IN_PLACE & {*schema}:
                self._refuse(schema, "unevaluatedProperties", place, " next to " + _some(IN_PLACE & {*schema}))
                return
            schema["additionalProperties"] = value
        del schema["unevaluatedProperties"]

    def _unevaluated_items(self, schema: dict[str, Any], place: Place, value: Any) -> None:
        """Without subschemas for the same array these are the items."""
        if "items" not in schema:
            others = (IN_PLACE | {"contains"}) & {*schema}
            if others:
                self._refuse(schema, "unevaluatedItems", place, " next to " + _some(others))
                return
            schema["items"] = value
        elif isinstance(schema["items"], list) and "additionalItems" not in schema:
            schema["additionalItems"] = value
        del schema["unevaluatedItems"]

    def _dependencies(self, schema: dict[str, Any], place: Place, value: Any) -> None:
        """The name that older drafts have for dependentRequired and dependentSchemas."""
        if isinstance(value, dict) and not {"dependentRequired", "dependentSchemas"} & {*schema}:
            del schema["dependencies"]
            schema["dependentRequired"] = {name: part for name, part in value.items() if isinstance(part, list)}
            schema["dependentSchemas"] = {name: part for name, part in value.items() if not isinstance(part, list)}

    def _dependent_required(self, schema: dict[str, Any], place: Place, value: Any) -> None:
        if self._can_depend(schema, place, "dependentRequired", value, list):
            for name, others in value.items():
                _add(schema, _either(schema, {"properties": {name: False}}, {"required": [name, *others]}))
            del schema["dependentRequired"]

    def _dependent_schemas(self, schema: dict[str, Any], place: Place, value: Any) -> None:
        if self._can_depend(schema, place, "dependentSchemas", value, dict | bool):
            for name, part in value.items():
                self._await(part, ((place, "dependentSchemas"), name))
                _add(schema, _either(schema, {"properties": {name: False}}, {"required": [name], "allOf": [part]}))
            del schema["dependentSchemas"]

    def _can_depend(self, schema: dict[str, Any], place: Place, keyword: str, value: Any, kind: Any) -> bool:
        if not isinstance(value, dict) or not all(isinstance(part, kind) for part in value.values()):
            raise ValueError(f'"{keyword}" at {shown((place, keyword))} is malformed')
        if len(value) > MOST_DEPENDENT:
            self._refuse(schema, keyword, place, f" for more than {MOST_DEPENDENT} properties")
        return len(value) <= MOST_DEPENDENT

    def _property_names(self, schema: dict[str, Any], place: Place, value: Any) -> None:
        names = without_annotations(self._resolved(value))
        if isinstance(names, dict) and "format" in names:
            names = without_annotations(names, "format")
            self._note(f"format at {shown((place, 'propertyNames'))} is ignored")
        allowed = _named(names)
        if allowed is None:
            self._refuse(schema, "propertyNames", place, " except with pattern, enum, const, minLength or maxLength")
            return
        del schema["propertyNames"]
        if allowed is not True:
            self._check_patterns([*allowed.get("patternProperties", ())], (place, "propertyNames"))
            _add(schema, allowed | {"additionalProperties": False})

    def _min_properties(self, schema: dict[str, Any], place: Place, value: Any) -> None:
        """llguidance knows the number of properties only if all of those that are named are required."""
        required, properties = schema.get("required", []), schema.get("properties")
        if not isinstance(required, list) or not isinstance(properties, dict) or not isinstance(value, int):
            return
        names = {name for name in required if isinstance(name, str)}
        is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
        if value <= len(names):
            del schema["minProperties"]
        elif value == 1 and is_closed and 0 < len(properties) <= MOST_ALTERNATIVES:
            del schema["minProperties"]
            _add(schema, _either(schema, *({"required": [name]} for name in properties)))

    def _not(self, schema: dict[str, Any], place: Place, value: Any) -> None:
        """Complements of types and of required properties have other names; those of most else have none."""
        allowed = _complement(without_annotations(value))
        if allowed is None:
            self._refuse(schema, "not", place)
            return
        del schema["not"]
        if allowed is not True:
            _add(schema, allowed)

    # --- references -----------------------------------------------------------------------------------------------

    def _resolved(self, schema: Any) -> Any:
        """The schema that a reference alone leads to."""
        first = schema
        if id(first) in self._leads_to:
            return self._leads_to[id(first)][1]
        for _ in range(MOST_STEPS):
            reference = schema.get("$ref") if isinstance(schema, dict) else None
            found = self._target(reference) if isinstance(reference, str) else None
            if found is None or without_annotations(schema, "$ref"):
                break
            schema = found[0]
        self._leads_to[id(first)] = (first, schema)
        return schema

    def _target(self, reference: str) -> tuple[Any, Place] | None:
        """The value that a JSON pointer in this document points at; None if there is none, or for another reference."""
        if reference != "#" and not reference.startswith("#/"):
            return None
        value: Any = self._root
        at: Place = ()
        for step in unquote(reference).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(value):
                value = value[int(name[:9])]
            else:
                return None
            at = (at, name)
        return value, at


def _drop(schema: dict[str, Any], *keywords: str) -> None:
    for keyword in keywords:
        schema.pop(keyword, None)


def _add(schema: dict[str, Any], more: Any) -> None:
    """Let what matches the schema match this one too. It comes last: references may point at the others."""
    both = schema.setdefault("allOf", [])
    if not isinstance(both, list):
        raise ValueError("allOf must be a list")
    both.append(more)


def _either(schema: dict[str, Any], *options: dict[str, Any]) -> dict[str, Any]:
    """One of these schemas for objects. A value that is not an object matches, unless the schema itself excludes it."""
    if schema.get("type") == "object":
        options = tuple({"type": "object"} | option for option in options)
    return {"anyOf": [*options]}


def _named(names: Any) -> Any:
    """An object schema that allows properties with names that match a schema, or True; None if it cannot be said."""
    if not isinstance(names, dict):
        return {} if names is False else None
    types = names.get("type", "string")
    if "string" not in (types if isinstance(types, list) else [types]):
        return {}
    rest = without_annotations(names, "type")
    if not rest:
        return True
    if [*rest] == ["pattern"] and isinstance(rest["pattern"], str):
        return {"patternProperties": {rest["pattern"]: True}}
    values = [rest["const"]] if [*rest] == ["const"] else rest.get("enum")
    if len(rest) == 1 and isinstance(values, list):
        return {"properties": {value: True for value in values if isinstance(value, str)}}
    least, most = rest.get("minLength", 0), rest.get("maxLength", "")
    if {*rest} <= {"minLength", "maxLength"} and _is_count(least) and (most == "" or _is_count(most)):
        return {"patternProperties": {rf"^[\s\S]{{{least},{most}}}$": True}}
    return None


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _complement(schema: Any) -> Any:
    """A schema of all that does not match one; None if it cannot be said."""
    if isinstance(schema, bool) or schema == {}:
        return schema is False
    if not isinstance(schema, dict) or not {*schema} <= {"type", "required"}:
        return None
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if not isinstance(types, list) or not {*map(str, types)} <= {*TYPES}:
        return None
    required = schema.get("required")
    if required is None:
        return {"type": [name for name in TYPES if name not in types]}
    if not isinstance(required, list) or not 0 < len(required) <= MOST_ALTERNATIVES or types not in ([], ["object"]):
        return None
    lacks = [{"type": "object", "properties": {str(name): False}} for name in required]
    return {"anyOf": [*lacks, *([{"type": [name for name in TYPES if name != "object"]}] if types else [])]}


def _some(keywords: Iterable[str]) -> str:
    return " and ".join(sorted(keywords))


def _short(text: str) -> str:
    return json.dumps(text if len(text) <= 40 else text[:37] + "...")


_NUMBERED_UUID = re.compile("uuid[1-8]")
_TOO_DEEP = f"it is nested more than {DEEPEST} levels deep"
