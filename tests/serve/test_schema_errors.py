"""Errors in schemas name the field that was sent, the tool, and the place in the schema."""

from __future__ import annotations

from typing import Any

import pytest
from serving import Serving

pytestmark = [pytest.mark.native, pytest.mark.cli]
ASKED = [{"role": "user", "content": "a"}]
BAD = {"type": "object", "properties": {"p": {"type": "string", "pattern": "^(?=a)b$"}}, "required": ["p"]}
PLACE = "#/properties/p/pattern: "
NAMED = {"type": "json_schema", "name": "n", "schema": BAD}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"response_format": {"type": "json_schema", "json_schema": NAMED}}, "response_format"),
        ("/v1/chat/completions", {"json_schema": BAD}, "json_schema"),
        ("/v1/chat/completions", {"regex": "(?=a)"}, "regex"),
        ("/v1/responses", {"text": {"format": NAMED}}, "text.format"),
    ],
)
def test_the_field_and_the_place_are_named(server: Serving, path: str, body: dict[str, Any], param: str) -> None:
    asked = {"input": "a"} if path.endswith("responses") else {"messages": ASKED}
    error = server.posted(path, asked | body, 400)["error"]
    assert error["param"] == param
    assert "look-around" in error["message"]
    if param != "regex":
        assert PLACE in error["message"]
        assert "write the pattern in another way" in error["message"]


def test_the_tool_is_named(server: Serving) -> None:
    good = {"type": "function", "function": {"name": "good", "parameters": {"type": "object"}}}
    bad = {"type": "function", "function": {"name": "save/it", "parameters": BAD}}
    body = {"messages": ASKED, "tools": [good, bad], "tool_choice": "required"}
    error = server.posted("/v1/chat/completions", body, 400)["error"]
    assert error["param"] == "tools"
    assert f"tool save/it, {PLACE}" in error["message"]
