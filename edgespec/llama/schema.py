"""JSON schemas in the keywords that llguidance implements.

A few keywords that llguidance lacks are rewritten with others that mean exactly the same. A keyword is ignored, with a
note, if other servers ignore it as well and the schema without it allows everything that it allowed before. All other
keywords are refused with their place in the schema. docs/constrained.md has the table.
"""

from __future__ import annotations

import json
import re
from urllib.parse import unquote

MOST_NOTES = 8
MOST_SHOWN = 120  # characters of a place

FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"}
IMPLEMENTED = {
    *("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"),
    *("items", "additionalItems", "prefixItems", "minItems", "maxItems"),
    *("properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"),
    *("minLength", "maxLength", "pattern", "format"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
REFUSED = (
    *("if", "then", "else", "contains", "minContains", "maxContains", "not", "propertyNames"),
    *("unevaluatedProperties", "unevaluatedItems", "dependencies", "dependentRequired", "dependentSchemas"),
    *("$dynamicRef", "$recursiveRef"),
)
ANNOTATIONS = {
    *("title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly", "$comment"),
    *("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$defs", "definitions"),
    *("contentEncoding", "contentMediaType", "contentSchema", "discriminator", "externalDocs", "xml", "components"),
}
SAME_OBJECT = {"allOf", "anyOf", "oneOf", "$ref"}  # keywords whose subschemas describe the same value
DIALECTS = {
    *(f"http://json-schema.org/draft-0{draft}/schema" for draft in (3, 4, 6, 7)),
    *(f"https://json-schema.org/draft/{draft}/schema" for draft in ("2019-09", "2020-12")),
}
# Patterns that libraries write with look-around, and patterns without it that match the same texts.
_WITHOUT_LOOKAROUND = {
    # Pydantic's Decimal
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$": r"^[+-]?(\d+\.?\d*|\.\d+)$",
    # Zod's email()
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$": (
        r"^([A-Za-z0-9_'+\-]+\.?)*[A-Za-z0-9_+\-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
    ),
}
_NUMBERED_UUID = re.compile("uuid[1-8]")


def translated(text: str) -> tuple[str, list[str]]:
    """Return a schema for llguidance, and notes about its ignored keywords. Raises ValueError, which names the keyword
    and its place as a JSON pointer."""
    schema = json.loads(text)  # its error says where the text is wrong
    if schema is False:
        raise ValueError("nothing can match it")
    if not isinstance(schema, dict):
        if schema is not True:
            raise ValueError("a schema is an object, true or false")
        return "{}", []
    translation = _Translation(schema)
    notes = [f"JSON schema: {note}" for note in translation.notes[:MOST_NOTES]]
    if len(translation.notes) > MOST_NOTES:
        notes.append("JSON schema: more keywords are ignored")
    return json.dumps(schema, allow_nan=False), notes


def patterns_in(text: str) -> list[tuple[str, str]]:
    """Return the regular expressions of a schema that `translated` accepts, each with its place."""
    schema = json.loads(text)
    return _Translation(schema).patterns if isinstance(schema, dict) else []


class _Translation:
    """Rewrites a schema in place, with its subschemas. A definition is read only if something refers to it."""

    def __init__(self, root: dict[str, object]) -> None:
        self.notes: list[str] = []
        self.patterns: list[tuple[str, str]] = []
        self._root = root
        # The schemas that were read, by their ids. They are kept, so that no other object can get the same id.
        self._seen: dict[int, object] = {id(root): root}
        self._waiting = [(root, "#")]  # schemas, each with its place
        self._reads_definitions = False
        options = root.get("x-guidance")
        self._is_lenient = isinstance(options, dict) and options.get("lenient") is True
        while self._waiting:
            self._rewrite(*self._waiting.pop())

    def _rewrite(self, schema: dict[str, object], place: str) -> None:
        self._ignore(schema, place)
        if "unevaluatedProperties" in schema and not SAME_OBJECT & {*schema}:
            schema.setdefault("additionalProperties", schema.pop("unevaluatedProperties"))
        if schema.get("not") in (True, {}):
            add(schema, False)
            del schema["not"]
        if "propertyNames" in schema:
            self._property_names(schema, place)
        for keyword in REFUSED:
            if keyword in schema:
                said = f'"{keyword}" at {_below(place, keyword)}'
                if not self._is_lenient:
                    raise ValueError(f"{said} is not supported")
                del schema[keyword]
                self.notes.append(f"{said} is ignored")
        if isinstance(pattern := schema.get("pattern"), str):
            schema["pattern"] = pattern = _WITHOUT_LOOKAROUND.get(pattern, pattern)
            self.patterns.append((pattern, _below(place, "pattern")))
        if isinstance(parts := schema.get("patternProperties"), dict):
            self.patterns += [(name, _below(place, "patternProperties", name)) for name in parts]
        for keyword, value in schema.items():
            self._read_parts(keyword, value, place)

    def _read_parts(self, keyword: str, value: object, place: str) -> None:
        if keyword in ("properties", "patternProperties") and isinstance(value, dict):
            for name, part in value.items():
                self._await(part, _below(place, keyword, name))
        elif keyword in ("allOf", "anyOf", "oneOf", "prefixItems", "items") and isinstance(value, list):
            for index, part in enumerate(value):
                self._await(part, _below(place, keyword, str(index)))
        elif keyword in ("items", "additionalItems", "additionalProperties"):
            self._await(value, _below(place, keyword))
        elif keyword == "$ref" and isinstance(value, str):
            found = target(self._root, value)
            if found is not None:
                self._await(*found)
            elif not self._reads_definitions:  # an anchor, perhaps in a definition
                self._reads_definitions = True
                for definitions in ("$defs", "definitions"):
                    parts = self._root.get(definitions)
                    for name, part in parts.items() if isinstance(parts, dict) else ():
                        self._await(part, _below("#", definitions, name))

    def _await(self, schema: object, place: str) -> None:
        if isinstance(schema, dict) and id(schema) not in self._seen:
            self._seen[id(schema)] = schema
            self._waiting.append((schema, place))

    def _ignore(self, schema: dict[str, object], place: str) -> None:
        if schema.pop("uniqueItems", False):
            self.notes.append(f"uniqueItems at {place} is ignored: items may repeat")
        format, types = schema.get("format"), schema.get("type", "string")
        if isinstance(format, str) and _NUMBERED_UUID.fullmatch(format):
            schema["format"] = "uuid"
        elif isinstance(format, str) and format not in FORMATS:
            del schema["format"]
            if "string" in (types if isinstance(types, list) else [types]):
                self.notes.append(f"format {short(format)} at {place} is ignored: it is unknown")
        dialect = schema.get("$schema")
        if isinstance(dialect, str) and dialect.rstrip("#") not in DIALECTS:
            del schema["$schema"]
            self.notes.append(f"$schema {short(dialect)} at {place} is ignored: it is unknown")
        if "oneOf" in schema and "discriminator" not in schema:
            self.notes.append(f"oneOf at {place} is treated as anyOf: several of its alternatives may match")
        for keyword in _without_annotations(schema):
            if keyword not in IMPLEMENTED and keyword not in REFUSED:
                self.notes.append(f"the unknown keyword {short(keyword)} at {place} is ignored")

    def _property_names(self, schema: dict[str, object], place: str) -> None:
        """Write names with a pattern, or from a list, as properties; other names are refused."""
        names = schema["propertyNames"]
        found = target(self._root, names.get("$ref")) if isinstance(names, dict) else None
        if found:
            names = found[0]
        if not isinstance(names, dict):
            return
        names = _without_annotations(names)
        if names.pop("type", "string") != "string":
            return
        if names.pop("format", None) is not None:
            self.notes.append(f"format at {_below(place, 'propertyNames')} is ignored")
        values = [names["const"]] if "const" in names else names.get("enum")
        if len(names) == 1 and isinstance(names.get("pattern"), str):
            add(schema, {"patternProperties": {names["pattern"]: True}, "additionalProperties": False})
        elif len(names) == 1 and isinstance(values, list):
            properties = {value: True for value in values if isinstance(value, str)}
            add(schema, {"properties": properties, "additionalProperties": False})
        elif names:
            return
        del schema["propertyNames"]


def target(root: object, reference: object) -> tuple[object, str] | None:
    """Return the value that a JSON pointer in a document points at, and its place; None if there is none, or for
    another kind of reference."""
    if not isinstance(reference, str) or (reference != "#" and not reference.startswith("#/")):
        return None
    value: object = root
    names = [step.replace("~1", "/").replace("~0", "~") for step in unquote(reference).split("/")[1:]]
    for name in names:
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(value):
            value = value[int(name[:9])]
        else:
            return None
    return value, _below("#", *names)


def _without_annotations(schema: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in schema.items() if name not in ANNOTATIONS and not name.startswith("x-")}


def add(schema: dict[str, object], more: object) -> None:
    """Let only those values match the schema that match `more` too. `more` comes last, since references may point at
    the other subschemas by number."""
    both = schema.setdefault("allOf", [])
    if not isinstance(both, list):
        raise ValueError("allOf must be a list")
    both.append(more)


def _below(place: str, *names: str) -> str:
    """Return the place of a subschema as a JSON pointer; only its end if it is long."""
    for name in names:
        step = name[:MOST_SHOWN].replace("~", "~0").replace("/", "~1")
        place += "/" + "".join(letter if letter.isprintable() else "?" for letter in step)
    return place if len(place) <= 2 * MOST_SHOWN else f"#/...{place[-MOST_SHOWN:]}"


def short(text: str) -> str:
    return json.dumps(text if len(text) <= 40 else text[:37] + "...")
