"""`patternProperties` next to named properties, so that a property can always follow where llguidance lets one begin.

llguidance writes a property under a pattern with any name that matches and that the schema does not name elsewhere. It
does not see that no such name is left, and after the comma nothing can follow. So patterns that match only names of
the schema become properties with these names. Names that may not occur at all are a similar trap: llguidance lets them
begin, and they can never end.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from edgespec.llama.closing import names_in, schemas
from edgespec.llama.schema import add, short

Trie = dict[int, Any]
"""Names in JSON, byte by byte; the quote at the end of a name leads to the name itself."""


def without_traps(root: dict[str, Any]) -> None:
    """Rewrite the patterns of a schema in place. Raises ValueError for patterns that cannot be followed."""
    found = [schema for schema in schemas(root) if isinstance(schema.get("patternProperties"), dict)]
    if not found:
        return
    trie: Trie = {}
    for name in {name for schema in schemas(root) for name in names_in(schema)}:
        node = trie
        *letters, quote = json.dumps(name, ensure_ascii=False).encode()[1:]
        for letter in letters:
            node = node.setdefault(letter, {})
        node[quote] = name
    for schema in found:
        patterns = schema["patternProperties"]
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
            if isinstance(name := node[letter], str):
                names.append(name)
                continue
            matcher.consume_token(letter)
            if not follow(node[letter]):
                return False
            matcher.rollback(1)
        return True

    return names if follow(trie) else None


def _is_possible(schema: Any) -> bool:
    """Return whether a value can match a schema; True if this depends on other parts of the document."""
    if not isinstance(schema, dict):
        return schema is not False
    return '"$ref"' in json.dumps(schema) or _matcher(schema) is not None


def _matcher(schema: dict[str, Any]) -> LLMatcher | None:
    """Return a matcher of bytes, or None if llguidance refuses the schema."""
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
    return LLTokenizer("byte")
