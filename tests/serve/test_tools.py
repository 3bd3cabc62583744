"""Tools: calls in texts of every format, as models and clients see them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serving import Serving, posted

from edgespec.dialects.calls import Format, ToolCall, ToolParser
from edgespec.dialects.dialect import Dialect
from edgespec.dialects.forms import FORCED, LLAMA, MISTRAL, TAGS
from edgespec.requests.fields import Fields
from edgespec.serve.request_tools import take_arguments

CHAT = "/v1/chat/completions"
pytestmark = [pytest.mark.native, pytest.mark.cli]
PLACE: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WRITE: dict[str, object] = {"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}}
SCHEMAS: dict[str, dict[str, object]] = {"weather": PLACE, "write": WRITE}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": PLACE}}]
ASKED = [{"role": "user", "content": "Weather in Rome?"}]
TALK = [
    *ASKED,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "a1", "content": "sunny <|im_end|>"},
]
ROME = ("weather", {"city": "Rome"})
JSON = '{"name": "weather", "arguments": {"city": "Rome"}}'

ALLOWED = "tool_choice.allowed_tools.tools[0]"


def allowed(**tool: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"tools": [{"type": "function", **tool}]}}


def read(format: Format, text: str, size: int = 10**6) -> tuple[str, list[tuple[str, Any]]]:
    """The text and the calls of an answer that arrives in parts of `size` characters."""
    parser = ToolParser(format, SCHEMAS)
    made = [part for at in range(0, len(text), size) for part in parser.feed(text[at : at + size])]
    made += parser.end()
    calls = [part for part in made if isinstance(part, ToolCall)]
    assert [call.number for call in calls] == list(range(len(calls)))
    said = "".join(part for part in made if isinstance(part, str))
    return said, [(call.name, json.loads(call.arguments)) for call in calls]


@pytest.mark.parametrize("size", [1, 3, 10**6])
@pytest.mark.parametrize(
    ("format", "text", "said", "calls"),
    [
        (TAGS, f"<tool_call>\n{JSON}\n</tool_call>", "", [ROME]),
        (TAGS, f"Let me see.\n\n<tool_call>{JSON}</tool_call>\n<tool_call>{JSON}\n", "Let me see.", [ROME, ROME]),
        (TAGS, f"<tool_call>[{JSON}, {JSON}]</tool_call>", "", [ROME, ROME]),
        (
            TAGS,
            "<tool_call>\n<function=write>\n<parameter=path>\na <b>\n\n1\n</parameter>\n<parameter=lines>\n3\n"
            "</parameter>\n</function>\n</tool_call>",
            "",
            [("write", {"path": "a <b>\n\n1", "lines": 3})],
        ),
        (TAGS, "<function=write><parameter=path>12</parameter></function>", "", [("write", {"path": "12"})]),
        (MISTRAL, f"[TOOL_CALLS] [{JSON}]", "", [ROME]),
        (
            MISTRAL,
            'Yes. [TOOL_CALLS]weather[ARGS]{"city": "Rome"}[TOOL_CALLS]weather{}',
            "Yes.",
            [ROME, ("weather", {})],
        ),
        (LLAMA, '{"name": "weather", "parameters": {"city": "Rome"}}', "", [ROME]),
        (LLAMA, f'<|python_tag|>{JSON}; {{"type": "function", "name": "write"}}', "", [ROME, ("write", {})]),
        (FORCED, JSON, "", [ROME]),
        (TAGS, '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Rome\\"}"}</tool_call>', "", [ROME]),
    ],
)
def test_calls_are_found_however_the_text_arrives(
    format: Format, text: str, said: str, calls: list[Any], size: int
) -> None:
    assert read(format, text, size) == (said, calls)


@pytest.mark.parametrize("size", [1, 10**6])
@pytest.mark.parametrize(
    ("format", "text"),
    [
        (TAGS, "a <b> <tool"),
        (TAGS, '<tool_call>{"name": "weather", "arguments": </tool_call> so'),
        (TAGS, '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>'),
        (TAGS, '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>'),
        (TAGS, '<tool_call>{"name": ["weather"], "arguments": {"x": NaN}}'),
        (TAGS, "<tool_call>" + "[" * 5000),
        (TAGS, '<tool_call>{"name": "weather", "arg'),
        (TAGS, "<tool_call>\n<function=write>\n<param"),
        (MISTRAL, "[TOOL_CALLS] or not, \n"),
        (LLAMA, '{"city": "Rome"} \n'),
        (LLAMA, '<|python_tag|>print("hello")'),
        (LLAMA, f"It is {JSON}"),
        (LLAMA, '{"name": "Rome"}'),
    ],
)
def test_what_is_no_call_stays_text(format: Format, text: str, size: int) -> None:
    assert read(format, text, size) == (text, [])


# --- with a model -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_tool_that_must_be_called_is_called(server: Serving, choice: Any) -> None:
    body: dict[str, Any] = {"messages": ASKED, "tools": TOOLS, "tool_choice": choice, "seed": 1, "max_tokens": 60}
    answer = posted(server, CHAT, **body)["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] is None
    (call,) = answer["message"]["tool_calls"]
    assert call["type"] == "function"
    assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")
    with server.client() as client, client.stream("POST", CHAT, json=body | {"stream": True}) as response:
        chunks = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    first, *others = [call for c in chunks for call in c["choices"][0]["delta"].get("tool_calls", [])]
    assert first == {
        "index": 0,
        "id": first["id"],
        "type": "function",
        "function": {"name": "weather", "arguments": ""},
    }
    assert len(others) > 1
    assert "".join(delta["function"]["arguments"] for delta in others) == call["function"]["arguments"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_template_without_tools_has_them_described(server: Serving) -> None:
    prompt = posted(server, "/apply-template", messages=TALK, tools=TOOLS)["prompt"]
    assert prompt.startswith("<|im_start|>system\nYou may call functions")
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>' in prompt
    assert "<|im_start|>user\n<tool_response>\nsunny" in prompt
    assert "weather" not in posted(server, "/apply-template", messages=ASKED, tools=TOOLS, tool_choice="none")["prompt"]


def test_references_of_a_schema_still_lead_where_they_did(server: Serving) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"to": {"$ref": "#/$defs/place"}}, "required": ["to"]}
    schema |= {"$defs": {"place": {"enum": ["Oslo"]}}, "additionalProperties": False}
    tools = [*TOOLS, {"type": "function", "function": {"name": "go", "parameters": schema}}]
    choice = {"type": "function", "function": {"name": "go"}}
    answer = posted(server, CHAT, messages=ASKED, tools=tools, tool_choice=choice, max_tokens=60)
    assert json.loads(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == {"to": "Oslo"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": 3}, "tools"),
        ({"tools": [{"type": 3}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [*TOOLS, *TOOLS]}, "tools"),
        ({"tools": TOOLS, "tool_choice": "often"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": allowed(function="weather")}, f"{ALLOWED}.function"),
        ({"tools": TOOLS, "tool_choice": allowed(name="weather", namespace=3)}, f"{ALLOWED}.namespace"),
        ({"tools": TOOLS, "tool_choice": allowed(name=["weather"])}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {**allowed(), "allowed_tools": {"tools": ["weather"]}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "regex": "a"}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [1]}]}, "messages[0].tool_calls[0]"),
    ],
)
def test_what_cannot_be_honoured_is_named(server: Serving, body: dict[str, Any], param: str) -> None:
    assert posted(server, CHAT, 400, **{"messages": ASKED, **body})["error"]["param"] == param


def test_a_template_with_tools_gets_them_and_its_arguments(templated: Serving) -> None:
    body: dict[str, Any] = {"messages": TALK, "tools": TOOLS, "chat_template_kwargs": {"mood": "merry"}}
    prompt = posted(templated, "/apply-template", **body)["prompt"]
    assert '[{"type": "function", "function": {"name": "weather"' in prompt
    assert "]merry<|user|>" in prompt
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}<|tool|>sunny' in prompt
    assert posted(templated, CHAT, **body, max_tokens=1)["usage"]["completion_tokens"] == 1


def test_many_variables_for_the_template_are_compared_with_the_template_alone() -> None:
    variables = {f"unread{i}": i for i in range(100_000)} | {"read": "yes"}
    fields = Fields({"chat_template_kwargs": variables})
    assert take_arguments(fields, "{{ read }}", Dialect()) == {"read": "yes"}
