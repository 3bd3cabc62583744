"""Reading answers of dialects in pieces."""

from __future__ import annotations

import json
from typing import Any

from edgespec.dialects.calls import ToolCall
from edgespec.dialects.dialect import Dialect
from edgespec.dialects.reader import reader

SCHEMAS: dict[str, Any] = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "now": {"type": "object", "properties": {}},
}


def read(dialect: Dialect, text: str, size: int, opened: str | None = None) -> tuple[str, str, list[Any]]:
    """Return the reasoning, the content and the calls of an answer that arrives in pieces."""
    found = reader(dialect, SCHEMAS, opened=opened)
    parts = [part for at in range(0, len(text), size) for part in found.push(text[at : at + size])] + found.end()
    said = {"thinking": "", "answer": ""}
    for part in parts:
        if not isinstance(part, ToolCall):
            said[part[0]] += part[1]
    calls = [(part.name, json.loads(part.arguments)) for part in parts if isinstance(part, ToolCall)]
    return said["thinking"], said["answer"], calls
