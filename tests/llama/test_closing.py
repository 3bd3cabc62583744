"""Objects of JSON schemas: no other properties than the schema names, and no answer that cannot be completed."""

from __future__ import annotations

import itertools
import json
import random
import re
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from edgespec.llama.constraint import compiled, parser_limits

BYTES = LLTokenizer("byte")
NAMES = ("a", "b", "c", "zz")
VALUES: list[Any] = [
    dict(zip(keys, values, strict=True))
    for n in range(4)
    for keys in itertools.combinations(NAMES, n)
    for values in itertools.product([1, "x", {"a": 1, "zz": 1}, {"a": 1}], repeat=n)
]
A: dict[str, Any] = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
B: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "string"}}}
CLOSED = {"additionalProperties": False}
BOTH: dict[str, Any] = {"type": "object", "properties": {"a": {"const": 1}, "b": {"type": "string"}}, "required": ["a"]}
REF, DEFS = {"$ref": "#/$defs/A"}, {"$defs": {"A": A}}

# Schemas, each with one that says the same in full.
SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "an object": (A, A | CLOSED),
    "a required name without a property": (
        B | {"required": ["c"]},
        {"type": "object", "properties": {"b": {"type": "string"}, "c": True}, "required": ["c"]} | CLOSED,
    ),
    "nested objects": (
        {"type": "object", "properties": {"a": A, "b": {"items": A}}},
        {"type": "object", "properties": {"a": A | CLOSED, "b": {"items": A | CLOSED}}} | CLOSED,
    ),
    "a definition": (DEFS | REF, A | CLOSED),
    "a definition as a property": (
        DEFS | {"type": "object", "properties": {"c": REF}},
        {"type": "object", "properties": {"c": A | CLOSED}} | CLOSED,
    ),
    "alternatives": ({"anyOf": [A, B]}, {"anyOf": [A | CLOSED, B | CLOSED]}),
    "alternatives of a typed schema": ({"type": "object", "oneOf": [A, B]}, {"anyOf": [A | CLOSED, B | CLOSED]}),
    "all of several": ({"allOf": [A, B]}, BOTH | CLOSED),
    "one part": (DEFS | {"allOf": [REF], "title": "A"}, A | CLOSED),
    "a definition with more properties": (DEFS | REF | {"properties": {"b": {"type": "string"}}}, BOTH | CLOSED),
    "a definition that is extended elsewhere": (
        DEFS | {"anyOf": [REF, {"type": "object", "properties": {"c": {"allOf": [REF, B]}}, "required": ["c"]}]},
        {"anyOf": [A | CLOSED, {"type": "object", "properties": {"c": BOTH | CLOSED}, "required": ["c"]} | CLOSED]},
    ),
    "alternatives of an object with properties": (
        B | {"anyOf": [{"required": ["b"]}, {"required": ["c"]}]},
        B | {"properties": B["properties"] | {"c": True}, "anyOf": [{"required": ["b"]}, {"required": ["c"]}]} | CLOSED,
    ),
    "patterns": (
        {"type": "object", "patternProperties": {"^z": {"const": 1}}},
        {"type": "object", "patternProperties": {"^z": {"const": 1}}} | CLOSED,
    ),
    "a recursive definition": (
        {"$ref": "#/$defs/N", "$defs": {"N": {"type": "object", "properties": {"a": {"$ref": "#/$defs/N"}}}}},
        {"$ref": "#/$defs/N", "$defs": {"N": {"type": "object", "properties": {"a": {"$ref": "#/$defs/N"}}} | CLOSED}},
    ),
}  # fmt: skip
# Schemas that say themselves which other properties there are.
OPEN: list[dict[str, Any]] = [
    {"type": "object"},
    {"type": "object", "required": ["a"]},
    A | {"additionalProperties": True},
    A | {"additionalProperties": {"type": "string"}},
    {"allOf": [A | {"additionalProperties": True}, B]},
    {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "minProperties": 2},
    A | {"propertyNames": {"pattern": "^[ab]"}},
]


def accepted(schema: dict[str, Any]) -> list[Any]:
    matcher = LLMatcher(BYTES, compiled("json_schema", json.dumps(schema)), log_level=0)

    def matches(value: Any) -> bool:
        trial, raw = matcher.deep_copy(), [*json.dumps(value).encode()]
        return trial.try_consume_tokens(raw) == len(raw) and trial.is_accepting()

    return [value for value in VALUES if matches(value)]


@pytest.mark.parametrize("name", SAME)
def test_objects_have_no_other_properties_than_the_schema_names(name: str) -> None:
    schema, full = SAME[name]
    judge = jsonschema.Draft202012Validator(full)
    assert accepted(schema) == accepted(full) == [value for value in VALUES if judge.is_valid(value)] != []


@pytest.mark.parametrize("schema", OPEN, ids=lambda schema: json.dumps(schema)[:60])
def test_a_schema_that_speaks_of_other_properties_means_what_it_says(schema: dict[str, Any]) -> None:
    judge = jsonschema.Draft202012Validator(schema)
    assert accepted(schema) == [value for value in VALUES if judge.is_valid(value)] != []


# --- patterns ---------------------------------------------------------------------------------------------------------

NUMBER = {"type": "integer", "minimum": 0, "maximum": 9}
PATTERNS: dict[str, dict[str, Any]] = {
    "the name of a property": {"properties": {"a": True}, "patternProperties": {"^a$": NUMBER}},
    "names of all properties": {"properties": {"a": NUMBER, "b": NUMBER}, "patternProperties": {"^[ab]$": NUMBER}},
    "a name that is required": {"properties": {"b": NUMBER}, "patternProperties": {"^(a)$": NUMBER}, "required": ["a"]},
    "names with quotes and accents": {
        "properties": {'a"': NUMBER, "\u00e4": NUMBER},
        "patternProperties": {'^(a"|\u00e4)$': NUMBER},
    },
    "propertyNames": {"properties": {"a": NUMBER}, "propertyNames": {"pattern": "^a$"}},
    "in different parts": {
        "allOf": [{"properties": {"a": NUMBER}}, {"patternProperties": {"^a$": True}, "additionalProperties": False}]
    },
    "in a definition": {
        "$defs": {"A": {"properties": {"a": NUMBER}}},
        "$ref": "#/$defs/A",
        "patternProperties": {"^a$": NUMBER, "^b": NUMBER},
    },
    "one name is left": {"properties": {"a": NUMBER}, "patternProperties": {"^[ab]$": NUMBER}},
    "many names are left": {"properties": {"a": NUMBER}, "patternProperties": {"^a": NUMBER}},
    "another type of value": {"properties": {"a": {"type": "null"}}, "patternProperties": {"^a": NUMBER}},
    "names that may not occur": {"properties": {"a": NUMBER}, "patternProperties": {"^a.": False}},
    "a name that may not occur": {"properties": {"a": NUMBER, "b": NUMBER}, "patternProperties": {"^b$": False}},
    "names without a value": {"patternProperties": {"^a": {"enum": []}, "^b": NUMBER}},
}  # fmt: skip


@pytest.mark.parametrize("name", PATTERNS)
def test_every_answer_under_patterns_can_be_completed(name: str) -> None:
    schema = {"type": "object"} | PATTERNS[name]
    grammar = compiled("json_schema", json.dumps(schema))
    for seed in range(40):
        text = walk(LLMatcher(BYTES, grammar, log_level=0, limits=parser_limits()), random.Random(seed))
        jsonschema.validate(json.loads(text), schema)


def walk(matcher: LLMatcher, rng: random.Random) -> str:
    """Return a text of random bytes that the matcher allows. It prefers the bytes that end names and objects."""
    read = bytearray()
    while not matcher.is_stopped():
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [token for token in range(BYTES.vocab_size) if bits >> token & 1]
        assert allowed, bytes(read)
        ends = [token for token in (*b'"}', BYTES.eos_token) if token in allowed]
        token = rng.choice(ends if ends and rng.random() < 0.1 + len(read) / 60 else allowed)
        assert matcher.consume_token(token)
        if token != BYTES.eos_token:
            read.append(token)
        assert len(read) < 1000
    return read.decode()


@pytest.mark.parametrize("pattern", ["", "^x"])
@pytest.mark.parametrize("value", [False, {"type": "string", "minLength": 2, "maxLength": 1}])
def test_names_that_may_not_occur_beside_others_are_refused(pattern: str, value: Any) -> None:
    schema = {"type": "object", "patternProperties": {pattern: value}, "additionalProperties": True}
    with pytest.raises(ValueError, match=f'pattern "{re.escape(pattern)}" of names that may not occur'):
        compiled("json_schema", json.dumps(schema))
