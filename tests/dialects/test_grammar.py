"""Grammars of calls: whatever they allow is read as a call of the tool."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answers import read
from tiny_gguf import write_model

import edgespec
from edgespec.dialects.by_name import FUNCTIONARY, GEMMA_4, HARMONY, KIMI_K2, KIMI_K3, LFM2, MUSE, SOLAR
from edgespec.dialects.calls import ToolCall
from edgespec.dialects.dialect import HERMES, Calls, Dialect
from edgespec.dialects.grammar import bare_schema, call_grammar
from edgespec.dialects.reader import reader
from edgespec.runtime.runtime import Runtime

CITY = {"type": "string", "maxLength": 6}
TOOLS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {"city": CITY, "days": {"type": "integer"}, "unit": {"type": "string", "enum": ["C", "F"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
    "go": {
        "type": "object",
        "properties": {"to": {"$ref": "#/$defs/place"}},
        "required": ["to"],
        "additionalProperties": False,
        "$defs": {"place": {"enum": ["Oslo"]}},
    },
}
TAGGED = Calls(
    "tagged",
    call=("<call><name>", "</call>"),
    name=("", "</name>"),
    key=("<key>", "</key>"),
    value=("<value>", "</value>"),
)
DIALECTS = {
    "hermes": Dialect(calls=HERMES),
    "wrapped": Dialect(calls=Calls("json", ("[CALLS]", "[/CALLS]"), keys=("tool", "input", ""), wrapper="function")),
    "by name": Dialect(calls=Calls("json", call=("<call>", "</call>"), keys=("", "", ""))),
    "named": Dialect(calls=Calls("named", call=("<call>", "</call>"), name=("", "<args>"))),
    "tagged": Dialect(calls=TAGGED),
    "kimi k2": KIMI_K2,
    "kimi k3": KIMI_K3,
    "solar": SOLAR,
    "harmony": HARMONY,
    "muse": MUSE,
    "functionary": FUNCTIONARY,
    "bare": Dialect(calls=Calls("json", keys=("name", "parameters", ""))),
    "with ids": Dialect(calls=Calls("named", call=("[C]", ""), id=("[ID]", "[ARGS]"), short_ids=True)),
    "list": Dialect(calls=Calls("json", section=("[C]", ""), keys=("name", "arguments", "id"), short_ids=True)),
    "python": LFM2,
    "gemma": GEMMA_4,
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = write_model(tmp_path_factory.mktemp("grammar") / "tiny.gguf", "llama")
    with edgespec.load(str(file), threads=1, store=False) as runtime:
        yield runtime


@pytest.mark.native
@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("tool", TOOLS)
def test_what_a_grammar_allows_is_a_call(name: str, tool: str, llm: Runtime) -> None:
    dialect = DIALECTS[name]
    grammar = call_grammar(dialect, {tool: TOOLS[tool]}, {})
    opened = {HARMONY: "<|start|>assistant", MUSE: "<|start|>assistant", FUNCTIONARY: ">>>"}.get(dialect)
    for seed in range(3):
        text = str(llm.generate("x", grammar=grammar, seed=seed, max_tokens=600, temperature=1.5))
        found = reader(dialect, TOOLS, opened=opened)
        calls = [part for part in [*found.push(text), *found.end()] if isinstance(part, ToolCall)]
        assert [call.name for call in calls] == [tool], text
        arguments = json.loads(calls[0].arguments)
        assert arguments == {"to": "Oslo"} if tool == "go" else arguments["unit"] in ("C", "F"), text


NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "deep": {
            "type": "object",
            "properties": {
                "of": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2},
                "on": {"type": "boolean"},
            },
            "required": ["of"],
            "additionalProperties": False,
        },
        "any": {"type": ["integer", "null"], "minimum": 0, "maximum": 99},
        "on": {"type": "boolean"},
    },
    "required": ["deep", "on"],
    "additionalProperties": False,
}


@pytest.mark.native
@pytest.mark.parametrize("name", ["tagged", "kimi k3", "python", "gemma", "harmony"])
def test_nested_arguments_have_their_types(name: str, llm: Runtime) -> None:
    dialect = DIALECTS[name]
    grammar = call_grammar(dialect, {"f": NESTED}, {})
    for seed in range(6):
        text = str(llm.generate("x", grammar=grammar, seed=seed, max_tokens=900, temperature=1.5))
        found = reader(dialect, {"f": NESTED}, opened="<|start|>assistant" if dialect is HARMONY else None)
        calls = [part for part in [*found.push(text), *found.end()] if isinstance(part, ToolCall)]
        assert len(calls) == 1, text
        arguments = json.loads(calls[0].arguments)
        assert {*arguments["deep"]["of"]} <= {"a", "b"}
        assert (type(arguments["on"]), {"deep", "on"} <= {*arguments} <= {"deep", "any", "on"}) == (bool, True)


@pytest.mark.native
@pytest.mark.parametrize("name", ["kimi k2", "kimi k3", "solar", "list", "python"])
def test_several_calls_between_the_marks_are_read(name: str, llm: Runtime) -> None:
    dialect, tools = DIALECTS[name], {"go": TOOLS["go"]}
    counts = set[int]()
    for seed in range(6):
        grammar = call_grammar(dialect, tools, {}, several=True)
        text = str(llm.generate("x", grammar=grammar, seed=seed, max_tokens=2000, temperature=2.0))
        found = reader(dialect, tools)
        parts = [*found.push(text), *found.end()]
        calls = [part for part in parts if isinstance(part, ToolCall)]
        assert calls, text
        assert {call.arguments for call in calls} == {'{"to": "Oslo"}'}, text
        counts.add(len(calls))
    assert max(counts) > 1


def test_forms_without_a_grammar_have_a_schema() -> None:
    unusual = {"f": {"type": "object", "properties": {"first name": {"type": "string"}}}}
    assert not call_grammar(Dialect(calls=Calls("named")), TOOLS, {})
    assert not any(call_grammar(dialect, unusual, {}) for dialect in (GEMMA_4, LFM2, Dialect(calls=TAGGED)))
    found = reader(GEMMA_4, TOOLS, is_forced=True)
    text = '{"name": "go", "arguments": {"to": "Oslo"}}'
    assert [part.name for part in [*found.push(text), *found.end()] if isinstance(part, ToolCall)] == ["go"]
    assert read(GEMMA_4, text, 3) == ("", text, [])
    assert [*json.loads(bare_schema(TOOLS))["$defs"]] == ["weather", "go"]


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": {}}, "required": True},
        {"properties": [1]},
        {"properties": {"first name": {"type": "string"}}},
    ],
)
def test_parameters_that_cannot_stand_between_marks_have_a_schema(schema: dict[str, Any]) -> None:
    assert not call_grammar(Dialect(calls=TAGGED), {"f": schema}, {})


@pytest.mark.native
def test_references_and_properties_with_unusual_names_stay(llm: Runtime) -> None:
    schema = {
        "type": "object",
        "properties": {
            "$id": {"type": "object", "properties": {"n": {"enum": [1]}}},
            "y": {"$ref": "#/properties/$id"},
        },
        "required": ["$id", "y"],
        "additionalProperties": False,
    }
    for dialect in (Dialect(calls=TAGGED), Dialect(calls=HERMES)):
        grammar = call_grammar(dialect, {"f": schema}, {})
        text = str(llm.generate("x", grammar=grammar, seed=1, max_tokens=300))
        found = reader(dialect, {"f": schema})
        (call,) = (part for part in [*found.push(text), *found.end()] if isinstance(part, ToolCall))
        assert json.loads(call.arguments).keys() == {"$id", "y"}
    assert json.loads(bare_schema({"f": schema}))["$defs"]["f"]["properties"]["arguments"]["properties"]["$id"]
