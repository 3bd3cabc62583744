"""The keywords of JSON schemas, and places in a schema."""

from __future__ import annotations

from typing import Any

Place = tuple[Any, ...]
"""The place of a subschema: the place of what contains it, and its name there; () is the whole schema."""

TYPES = ("null", "boolean", "number", "string", "array", "object")  # integers are numbers
FORMATS = {
    *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"),
}
IMPLEMENTED = {
    *("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"),
    *("items", "additionalItems", "prefixItems", "minItems", "maxItems"),
    *("properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"),
    *("minLength", "maxLength", "pattern", "format"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("unevaluatedProperties", "unevaluatedItems", "dependencies", "dependentRequired", "dependentSchemas"),
    *("propertyNames", "not", "if", "then", "else", "contains", "minContains", "maxContains"),
    *("$dynamicRef", "$recursiveRef"),
}
NOT_SUPPORTED = (
    *("if", "then", "else", "contains", "minContains", "maxContains", "not", "propertyNames"),
    *("unevaluatedProperties", "unevaluatedItems", "dependencies", "dependentRequired", "dependentSchemas"),
    *("$dynamicRef", "$recursiveRef"),
)
IN_PLACE = {"allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies", "$ref", "$dynamicRef"}
"""Keywords whose subschemas describe the same value."""
ANNOTATIONS = {
    *("title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly", "$comment"),
    *("$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary", "$defs", "definitions"),
    *("contentEncoding", "contentMediaType", "contentSchema", "discriminator", "externalDocs", "xml", "components"),
}
DIALECTS = {
    *(f"http://json-schema.org/draft-0{draft}/schema" for draft in (3, 4, 6, 7)),
    *(f"https://json-schema.org/draft/{draft}/schema" for draft in ("2019-09", "2020-12")),
}

_MOST_SHOWN = 120


def shown(place: Place) -> str:
    """A place as a JSON pointer; its end if it is long."""
    steps: list[str] = []
    while place and sum(map(len, steps)) <= _MOST_SHOWN:
        place, name = place
        steps.append(str(name)[:_MOST_SHOWN].replace("~", "~0").replace("/", "~1"))
    pointer = "".join(f"/{step}" for step in reversed(steps))
    pointer = "".join(letter if letter.isprintable() else "?" for letter in pointer)
    if place or len(pointer) > _MOST_SHOWN:
        return f"#/...{pointer[-_MOST_SHOWN:]}"
    return f"#{pointer}"


def without_annotations(schema: Any, *others: str) -> Any:
    """A schema without what has no effect on what matches, and without other keywords."""
    if not isinstance(schema, dict):
        return schema
    return {
        keyword: value
        for keyword, value in schema.items()
        if keyword not in ANNOTATIONS and keyword not in others and not keyword.startswith("x-")
    }


def awkward_part(pattern: str) -> str:
    """The first part of a regular expression that llguidance lacks; empty if there is none."""
    is_class, at = False, 0
    while at < len(pattern):
        letter, after = pattern[at], pattern[at + 1 : at + 2]
        if letter == "\\":
            at += 1
            if not is_class and after in ("b", "B"):
                return f"a word boundary (\\{after})"
            if not is_class and after and after in "123456789k":
                return f"a backreference (\\{after})"
        elif is_class:
            is_class = letter != "]"
        elif letter == "[":
            is_class = True
        else:
            for mark in ("(?=", "(?!", "(?<=", "(?<!"):
                if pattern.startswith(mark, at):
                    return f"look-around ({mark}...))"
        at += 1
    return ""
