"""Answers under JSON schemas of many kinds, validated by another library: do all parse and fit, drafted or not?

    .venv/bin/python scripts/check_schemas.py                     # 10 schemas, 20 seeds each, the bundled pair
    .venv/bin/python scripts/check_schemas.py -m target.gguf -md draft.gguf --seeds 5

Every answer is made twice, plainly and with all drafters; --strict says that both must be the same bytes. Prints a
line for each schema, and ends with 1 if an answer does not fit.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import jsonschema

import edgespec
from edgespec.runtime.runtime import Runtime

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("-md", "--draft-model")
    parser.add_argument("-t", "--threads", type=int, default=0)
    parser.add_argument("-n", "--max-tokens", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=20, help="answers a schema")
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    how = {"threads": options.threads, "strict": options.strict, "store": False}
    answers: dict[str, dict[str, list[str]]] = {}
    for spec_type in ("none", "auto"):
        with edgespec.load(options.model, draft_model=options.draft_model, spec_type=spec_type, **how) as llm:
            for name, schema in SCHEMAS.items():
                answers.setdefault(name, {})[spec_type] = ask(llm, schema, options)
    n_bad = 0
    for name, by_type in answers.items():
        wrong = [text for texts in by_type.values() for text in texts if not fits(text, SCHEMAS[name])]
        same = sum(plain == drafted for plain, drafted in zip(*by_type.values(), strict=True))
        n_bad += len(wrong) + (options.strict and same < options.seeds)
        print(
            f"{name:22} {2 * options.seeds - len(wrong)} of {2 * options.seeds} fit, {same} of {options.seeds} the same"
        )
        for text in wrong:
            print(f"  {text!r}")
    sys.exit(n_bad > 0)


def ask(llm: Runtime, schema: dict[str, Any], options: argparse.Namespace) -> list[str]:
    """One answer a seed."""
    text, n = json.dumps(schema), options.max_tokens
    return [
        "".join(event.text for event in llm.generate("As JSON: ", json_schema=text, max_tokens=n, seed=seed))
        for seed in range(options.seeds)
    ]


def fits(text: str, schema: dict[str, Any]) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


if __name__ == "__main__":
    main()
