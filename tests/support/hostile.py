"""Constraints that crash, block or slow down llguidance."""

from __future__ import annotations

import json

from edgespec.settings import Constraint


def chain_of_references(n: int) -> str:
    """A schema whose definitions refer to each other, one after the other."""
    links = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(n)}
    return json.dumps({"$ref": "#/$defs/d0", "$defs": {**links, f"d{n}": {"type": "null"}}})


def chain_of_objects(n: int) -> str:
    """A schema of objects that each hold one of the next kind."""
    links = {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}, "required": ["a"]}
        for i in range(n)
    }
    return json.dumps({"$ref": "#/$defs/d0", "$defs": {**links, f"d{n}": {"type": "null"}}})


def chain_of_rules(n: int) -> str:
    """Lark rules that each use the next one."""
    return "%llguidance {}\nstart: r0\n" + "\n".join(f'r{i}: "a" r{i + 1}' for i in range(n)) + f'\nr{n}: "b"'


TOO_DEEP: dict[str, tuple[Constraint, str]] = {
    "references": ("json_schema", chain_of_references(3000)),
    "objects": ("json_schema", chain_of_objects(1000)),
    "rules": ("grammar", chain_of_rules(4000)),
}
ENDLESS = json.dumps({"allOf": [{"type": "integer", "multipleOf": prime} for prime in (101, 103, 107, 109)]})
# Masks of this rule take so long that a machine twenty times as fast would still refuse it.
AMBIGUOUS_RULE = 'e ::= e e | e e e | e e e e e | e "+" e | "a" | ""'
AMBIGUOUS = f"root ::= e\n{AMBIGUOUS_RULE}"
# The same, later than any text that is written in the trial.
AMBIGUOUS_LATER = f"root ::= [bc]{{160}} e\n{AMBIGUOUS_RULE}"
PERSON = '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'
