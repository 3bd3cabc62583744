"""Answers under JSON schemas of many kinds, judged by another library: all fit, and drafts change no byte."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

import edgespec

WORD = {"type": "string", "minLength": 1, "maxLength": 8}
SCHEMAS: dict[str, dict[str, Any]] = {
    "flat object": {
        "type": "object",
        "properties": {"name": WORD, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "nested objects": {
        "type": "object",
        "properties": {
            "a": {
                "type": "object",
                "properties": {
                    "b": {"type": "object", "properties": {"c": {"type": "boolean"}}, "required": ["c"]},
                    "d": {"type": "null"},
                },
                "required": ["b", "d"],
                "additionalProperties": False,
            }
        },
        "required": ["a"],
        "additionalProperties": False,
    },
    "enumerations": {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green", "blue"]}, "size": {"enum": [1, 2, None, "many"]}},
        "required": ["colour", "size"],
        "additionalProperties": False,
    },
    "bounded numbers": {
        "type": "object",
        "properties": {
            "x": {"type": "number", "minimum": -1, "maximum": 1},
            "n": {"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 1000},
        },
        "required": ["x", "n"],
        "additionalProperties": False,
    },
    "array": {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": 255},
        "minItems": 3,
        "maxItems": 3,
    },
    "array of objects": {
        "type": "array",
        "items": {"type": "object", "properties": {"id": WORD}, "required": ["id"], "additionalProperties": False},
        "minItems": 1,
        "maxItems": 3,
    },
    "$ref": {
        "$defs": {"point": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 2}},
        "type": "object",
        "properties": {"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}},
        "required": ["from", "to"],
        "additionalProperties": False,
    },
    "recursive $ref": {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer", "minimum": 0, "maximum": 9},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 2},
                },
                "required": ["value", "children"],
                "additionalProperties": False,
            },
            "leaf": {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/leaves"}]},
            "leaves": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        },
        "$ref": "#/$defs/tree",
    },
    "one of several": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": "circle"}, "radius": {"type": "integer", "minimum": 1, "maximum": 99}},
                "required": ["kind", "radius"],
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {"kind": {"const": "square"}, "side": {"type": "integer", "minimum": 1, "maximum": 99}},
                "required": ["kind", "side"],
                "additionalProperties": False,
            },
        ]
    },
    "patterns and formats": {
        "type": "object",
        "properties": {
            "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
            "host": {"type": "string", "format": "ipv4"},
        },
        "required": ["code", "host"],
        "additionalProperties": False,
    },
}


@pytest.mark.slow
def test_answers_fit_their_schema_and_are_the_same_with_drafts() -> None:
    answers: dict[str, list[list[str]]] = {}
    for spec_type in ("none", "auto"):
        with edgespec.load("demo", spec_type=spec_type, threads=1, store=False) as llm:
            for name, schema in SCHEMAS.items():
                answers.setdefault(name, []).append([ask(llm, schema, seed=1)])
    for name, (plain, drafted) in answers.items():
        assert plain == drafted, name
        for text in plain:
            jsonschema.validate(json.loads(text), SCHEMAS[name], format_checker=jsonschema.FormatChecker())


def ask(llm: edgespec.Runtime, schema: dict[str, Any], seed: int) -> str:
    events = llm.generate("As JSON: ", json_schema=json.dumps(schema), max_tokens=200, seed=seed)
    return "".join(event.text for event in events)
