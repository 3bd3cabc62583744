"""Objects of a JSON schema that have no other properties than those that the schema names.

The schema language allows all others, and a model that may invent properties does so. OpenAI, llama.cpp's server and
Ollama write only those that are named, and so does this program, unless the schema has `additionalProperties`. All
answers still match the schema that was given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from edgespec.llama.schema import ANNOTATIONS, SAME_OBJECT, add, short, target

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NAMING = ("properties", "patternProperties")
CLOSED = "closed:"  # begins the names of the definitions that are added


def close(root: dict[str, object]) -> None:
    """Close the objects of a schema in place."""
    parts = {id(schema) for schema, is_part in _walk(root) if is_part}
    added: dict[int, str] = {}
    for schema, is_part in [*_walk(root)]:
        if is_part or id(schema) in parts:
            continue
        if (kind := _only_part(schema)) is None:
            _close(schema, root)
        elif kind == "$ref" and (found := target(root, schema["$ref"])) is not None and id(found[0]) in parts:
            # Another schema extends this definition, which therefore stays open.
            name = added.setdefault(id(found[0]), f"{CLOSED}{len(added)}")
            definitions = root.setdefault("$defs", {})
            if isinstance(definitions, dict) and name not in definitions:
                definitions[name] = closed = {"allOf": [{"$ref": schema["$ref"]}]}
                _close(closed, root)
            schema["$ref"] = f"#/$defs/{name}"


def schemas(root: dict[str, object]) -> Iterator[dict[str, object]]:
    """Yield a schema and its subschemas; a definition only if something refers to it."""
    yield from {id(schema): schema for schema, _ in _walk(root)}.values()


@dataclass(slots=True)
class _Object:
    """The properties that a schema and its parts state for the same object."""

    names: dict[str, None] = field(default_factory=dict)
    patterns: dict[str, None] = field(default_factory=dict)
    is_named: bool = False  # some schema names properties
    is_stated: bool = False  # some schema says whether there are others
    least: int = 0


def _close(schema: dict[str, Any], root: dict[str, Any]) -> None:
    """Close the object that a schema and its parts describe together. If each part were closed, nothing would match
    all of them."""
    found = _described(schema, root)
    if not found.is_named or found.is_stated or (found.least > len(found.names) and not found.patterns):
        return
    if not SAME_OBJECT & {*schema}:
        schema["additionalProperties"] = False
        named = schema.setdefault("properties", {})
        for name in found.names:  # a name that is only required may have any value
            named.setdefault(name, True)
        return
    every = schema.setdefault("allOf", [])
    if isinstance(every, list):
        closing: dict[str, object] = {"properties": dict.fromkeys(found.names, True), "additionalProperties": False}
        every.append(closing | {"patternProperties": dict.fromkeys(found.patterns, True)})


def _described(schema: dict[str, object], root: dict[str, object]) -> _Object:
    found, waiting, seen = _Object(), [schema], set[int]()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        patterns = part.get("patternProperties")
        patterns = patterns if isinstance(patterns, dict) else {}
        found.names |= dict.fromkeys(names_in(part))
        found.patterns |= dict.fromkeys(patterns)
        found.is_named |= isinstance(part.get("properties"), dict)
        found.is_named |= any(each is not False for each in patterns.values())
        found.is_stated |= "additionalProperties" in part or ("$ref" in part and target(root, part["$ref"]) is None)
        if isinstance(least := part.get("minProperties"), int):
            found.least = max(found.least, least)
        waiting += _parts(part, root)
    return found


def names_in(schema: dict[str, object]) -> list[str]:
    """Return the names of the properties that a schema names or requires."""
    named, required = schema.get("properties"), schema.get("required")
    given = [*(named if isinstance(named, dict) else ()), *(required if isinstance(required, list) else ())]
    return [name for name in given if isinstance(name, str)]


def _walk(root: dict[str, object]) -> Iterator[tuple[dict[str, object], bool]]:
    """Yield each schema that is reached from the root, and whether it is a part of another one that has more to say
    about the same value. A schema that is reached in both ways is yielded twice."""
    waiting, seen = [(root, False)], set[tuple[int, bool]]()
    while waiting:
        schema, is_part = waiting.pop()
        if (id(schema), is_part) in seen:
            continue
        seen.add((id(schema), is_part))
        yield schema, is_part
        waiting += [(value, False) for value in _values(schema)]
        waiting += [(part, is_part or _only_part(schema) is None) for part in _parts(schema, root)]


def _only_part(schema: dict[str, object]) -> str | None:
    """Return the keyword that alone says what a schema describes, if it is a reference or has alternatives."""
    said = [name for name in schema if name not in ANNOTATIONS and name != "type" and not name.startswith("x-")]
    if len(said) != 1 or said[0] not in SAME_OBJECT:
        return None
    return None if said[0] == "allOf" and isinstance(schema["allOf"], list) and len(schema["allOf"]) > 1 else said[0]


def _parts(schema: dict[str, object], root: dict[str, object]) -> list[dict[str, object]]:
    """Return the schemas that describe the same value."""
    lists = [schema.get(keyword) for keyword in ("allOf", "anyOf", "oneOf")]
    found = [part for parts in lists if isinstance(parts, list) for part in parts if isinstance(part, dict)]
    referred = target(root, schema["$ref"]) if "$ref" in schema else None
    return found + ([referred[0]] if referred and isinstance(referred[0], dict) else [])


def _values(schema: dict[str, object]) -> Iterator[dict[str, object]]:
    """Yield the schemas of properties and items."""
    for keyword in NAMING:
        if isinstance(named := schema.get(keyword), dict):
            yield from (value for value in named.values() if isinstance(value, dict))
    for keyword in ("items", "prefixItems", "additionalItems", "additionalProperties"):
        value = schema.get(keyword)
        yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, dict))


# --- patternProperties ------------------------------------------------------------------------------------------------

# `patternProperties` next to named properties, so that a property can always follow where llguidance lets one begin.
#
# llguidance writes a property under a pattern with any name that matches and that the schema does not name elsewhere.
# It does not see that no such name is left, and after the comma nothing can follow. So patterns that match only names
# of the schema become properties with these names. Names that may not occur at all are a similar trap: llguidance lets
# them begin, and they can never end.


Trie = dict[int, "Trie | str"]
"""Names in JSON, byte by byte; the quote at the end of a name leads to the name itself."""


def without_traps(root: dict[str, object]) -> None:
    """Rewrite the patterns of a schema in place. Raises ValueError for patterns that cannot be followed."""
    found = [
        (schema, patterns) for schema in schemas(root) if isinstance(patterns := schema.get("patternProperties"), dict)
    ]
    if not found:
        return
    trie: Trie = {}
    for name in {name for schema in schemas(root) for name in names_in(schema)}:
        node = trie
        *letters, quote = json.dumps(name, ensure_ascii=False).encode()[1:]
        for letter in letters:
            branch = node.setdefault(letter, {})
            assert isinstance(branch, dict)  # no name continues after its quote
            node = branch
        node[quote] = name
    for schema, patterns in found:
        for pattern in [*patterns]:
            if (names := _names(pattern, trie)) is not None:
                value = patterns.pop(pattern)
                for name in names:
                    _add_property(schema, name, value)
            elif schema.get("additionalProperties") is not False and not _is_possible(patterns[pattern]):
                why = 'that may not occur is not supported unless "additionalProperties" is false'
                raise ValueError(f"the pattern {short(pattern)} of names {why}")
        if not patterns:
            del schema["patternProperties"]


def _names(pattern: str, trie: Trie) -> list[str] | None:
    """Return all names that match a pattern, or None if other names than those in the trie match."""
    matcher = _matcher({"type": "string", "pattern": pattern})
    if matcher is None or not matcher.consume_token(ord('"')):
        return None
    names: list[str] = []

    def follow(node: Trie) -> bool:
        mask = matcher.compute_bitmask()
        letters = [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]
        if not all(letter in node for letter in letters):
            return False
        for letter in letters:
            if isinstance(branch := node[letter], str):
                names.append(branch)
                continue
            matcher.consume_token(letter)
            if not follow(branch):
                return False
            matcher.rollback(1)
        return True

    return names if follow(trie) else None


def _is_possible(schema: object) -> bool:
    """Return whether a value can match a schema; True if this depends on other parts of the document."""
    if not isinstance(schema, dict):
        return schema is not False
    return '"$ref"' in json.dumps(schema) or _matcher(schema) is not None


def _matcher(schema: dict[str, object]) -> LLMatcher | None:
    """Return a matcher of bytes, or None if llguidance refuses the schema."""
    from llguidance import LLMatcher

    try:
        matcher = LLMatcher(_bytes(), LLMatcher.grammar_from_json_schema(json.dumps(schema)), log_level=0)
    except Exception:  # its kind for what it cannot parse: the whole schema is refused for it, with its place
        return None
    return None if matcher.is_error() else matcher


def _add_property(schema: dict[str, Any], name: str, value: Any) -> None:
    """Let the property match `value` in addition to what the schema says of it."""
    properties = schema.setdefault("properties", {})
    known = properties.get(name, True)
    if isinstance(known, dict):
        add(known, value)
    elif known is not False:
        properties[name] = value


@cache
def _bytes() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")
