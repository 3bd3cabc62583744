"""Calls whose values contain marks, texts that only mention them, and values of every type."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.dialects.calls import Format, ToolCall, ToolParser
from edgespec.dialects.forms import LLAMA, MISTRAL, TAGS

TEXT = {"type": "string"}
FILE = {"type": "object", "properties": {"content": TEXT, "path": TEXT, "n": {"type": "integer"}}}
MARKS = (
    *("<parameter=content>", "<parameter=path>", "</parameter>", "</function>", "</tool_call>", "<tool_call>"),
    *("<function=w>", "[TOOL_CALLS]", "{", "}", '"', "a", " ", "\n"),
)


def read(format: Format, text: str, size: int, schema: Any = FILE) -> tuple[list[Any], str]:
    """Return the arguments of the calls, and the rest of a text that arrives in parts of `size` characters."""
    parser = ToolParser(format, {"w": schema})
    parts = [part for at in range(0, len(text), size) for part in parser.feed(text[at : at + size])]
    parts += parser.end()
    calls = [json.loads(part.arguments) for part in parts if isinstance(part, ToolCall)]
    return calls, "".join(part for part in parts if isinstance(part, str))


def in_xml(*calls: dict[str, str]) -> str:
    """Return calls as templates of Qwen-Coder write them."""
    return "\n".join(
        "<tool_call>\n<function=w>\n"
        + "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in call.items())
        + "</function>\n</tool_call>"
        for call in calls
    )


def in_json(**arguments: Any) -> str:
    return json.dumps({"name": "w", "arguments": arguments})


@pytest.mark.parametrize("size", [1, 4, 10**6])
@pytest.mark.parametrize(
    ("content", "path"),
    [
        ("a </parameter> b </function> c", "x"),
        ("\n a \n\n", ""),
        ("<tool_call>\n<function=w>\n<parameter=content>\nin\n</parameter>\n</function>\n</tool_call>\nout", "x"),
        ("a</parameter></function></tool_call>b", "</parameter>"),
        ("x</parameter><parameter=path>y", "<parameter=content>"),
        ("<function=w>", "</function>\n</tool_call> and more"),
        ('{"a": "</tool_call>"}', "12"),
    ],
)
def test_a_value_in_xml_is_the_whole_text_between_its_marks(content: str, path: str, size: int) -> None:
    call = {"content": content, "path": path}
    other = {"path": content, "content": path}
    assert read(TAGS, f"Yes.\n{in_xml(call)}", size) == ([call], "Yes.")
    assert read(TAGS, in_xml({"path": path}, other), size)[0][-1] == other


@pytest.mark.parametrize("size", [1, 4, 10**6])
@pytest.mark.parametrize(
    ("format", "text", "calls", "said"),
    [
        (TAGS, f"<tool_call>\n{in_json(path='a </tool_call> b')}\n</tool_call>", [{"path": "a </tool_call> b"}], ""),
        (TAGS, f"<tool_call>{in_json(n=1)}\n{in_json(n=2)}</tool_call> Done.", [{"n": 1}, {"n": 2}], " Done."),
        (TAGS, f"<tool_call>{in_json(n=1)}, {in_json(n=2)}", [{"n": 1}, {"n": 2}], ""),
        (TAGS, f"<tool_call>{in_json(n=1)} {{or}}</tool_call>", [{"n": 1}], " {or}</tool_call>"),
        (
            TAGS,
            "<tool_call><function=w><parameter=n>1</parameter></function>"
            "<function=w>\n</function>\n</tool_call>",
            [{"n": 1}, {}],
            "",
        ),
        (TAGS, f"Use <tool_call>: <tool_call>{in_json(n=1)}</tool_call>", [{"n": 1}], "Use <tool_call>:"),
        (TAGS, "The mark <function=w> begins a call, <function=x and <tool_call>{name} too", [], None),
        (TAGS, "<function=w>\n<parameter=path>\nx\n</function>", [{"path": "x"}], ""),
        (TAGS, "<tool_call>\n<function=w>\n<parameter=path>\nx</parameter>\n</function>", [{"path": "x"}], ""),
        (MISTRAL, "The mark [TOOL_CALLS] is for calls", [], None),
        (MISTRAL, f"[TOOL_CALLS]{in_json(path='[ARGS]{')}{in_json(n=2)}", [{"path": "[ARGS]{"}, {"n": 2}], ""),
        (LLAMA, in_json(content="<|python_tag|>{;"), [{"content": "<|python_tag|>{;"}], ""),
    ],
)  # fmt: skip
def test_marks_in_texts_and_prose_about_marks(
    format: Format, text: str, calls: list[Any], said: str | None, size: int
) -> None:
    assert read(format, text, size) == (calls, text if said is None else said)


def test_prose_that_mentions_a_mark_is_not_held_back() -> None:
    for format, text in (
        (TAGS, "The mark <function=w> begins a call"),
        (TAGS, "<tool_call>{name} and so on, and so on"),
        (MISTRAL, "[TOOL_CALLS] is a mark"),
    ):
        assert "".join(map(str, ToolParser(format, {"w": FILE}).feed(text))) == text


@given(st.lists(st.sampled_from(MARKS), max_size=12).map("".join), st.sampled_from([TAGS, MISTRAL, LLAMA]))
def test_a_text_has_the_same_calls_however_it_arrives(text: str, format: Format) -> None:
    whole = read(format, text, 10**6)
    assert read(format, text, 1) == whole
    assert read(format, text, 3) == whole


@given(st.lists(st.sampled_from(MARKS), max_size=6).map("".join))
def test_texts_in_json_may_contain_any_mark(content: str) -> None:
    text = f"<tool_call>\n{in_json(content=content)}\n</tool_call>"
    assert read(TAGS, text, 3) == ([{"content": content}], "")


ROOT: dict[str, Any] = {
    "$defs": {"size": {"type": ["integer", "null"]}, "yes": {"$ref": "#/$defs/flag"}, "flag": {"type": "boolean"}}
}
ROOT["$defs"] |= {"a flag": {"type": "boolean"}, "pair": {"prefixItems": [{}, {"type": "boolean"}]}}
ROOT["$defs"] |= {"loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/flag"}]}}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (TEXT, "12", "12"),
        (TEXT, "null", "null"),
        (TEXT, " true ", " true "),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "integer"}, "3.0", 3),
        ({"type": "number"}, "3.0", 3.0),
        ({"type": "integer"}, "many", "many"),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": ["integer", "null"]}, "None", None),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "None", "None"),
        ({"type": ["string", "null"]}, "12", "12"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "true", "true"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "7", 7),
        ({"type": "string", "nullable": True}, "null", None),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": ["1", 2]}, "2", 2),
        ({"enum": ["null", None]}, "null", "null"),
        ({"const": "true"}, "true", "true"),
        ({"$ref": "#/$defs/size"}, "4", 4),
        ({"$ref": "#/$defs/yes"}, "True", True),
        ({"allOf": [{"$ref": "#/$defs/yes"}]}, "False", False),
        ({"type": "array", "items": TEXT}, '["a", 1]', ["a", 1]),
        ({"type": "object"}, '{"a": null}', {"a": None}),
        ({}, "12", 12),
        ({}, "a", "a"),
        (True, "[1]", [1]),
        ({"$ref": "#/properties/v"}, "1", 1),
        ({"type": "number"}, "NaN", "NaN"),
        ({"$ref": "#/$defs/a%20flag"}, "True", True),
        ({"$ref": "#/$defs/pair/prefixItems/1"}, "True", True),
        ({"$ref": "#/$defs/loop"}, "True", True),
        ({"anyOf": [{"$ref": "#/$defs/loop"}] * 300}, "True", True),
    ],
)
def test_values_in_xml_have_the_types_of_the_schema(schema: Any, text: str, value: Any) -> None:
    described = {"type": "object", "properties": {"v": schema}, **ROOT}
    ((call,), _) = read(TAGS, in_xml({"v": text}), 5, described)
    assert call == {"v": value}
    assert type(call["v"]) is type(value)
