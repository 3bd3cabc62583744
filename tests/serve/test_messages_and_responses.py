"""Anthropic's Messages and OpenAI's Responses, whole and as events."""

from __future__ import annotations

import json
from time import monotonic, sleep
from typing import Any

import pytest
from serving import Serving

from edgespec.core.stats import Stats
from edgespec.dialects.calls import CallPiece, ToolCall
from edgespec.serve.anthropic import MessageObject
from edgespec.serve.chat import Call, End, Piece
from edgespec.serve.responses import ResponseObject
from edgespec.settings import Request

MESSAGES, COUNT, RESPONSES = "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"
ASKED = [{"role": "user", "content": "Hello"}]
PLACE = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
pytestmark = [pytest.mark.native, pytest.mark.cli]


def streamed(server: Serving, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, each with its type as its name."""
    with server.client() as client, client.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200
        blocks = [block for block in "\n".join(response.iter_lines()).split("\n\n") if block.startswith("event: ")]
    events = []
    for block in blocks:
        name, data = block.split("\n", 1)
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


# --- Messages ---------------------------------------------------------------------------------------------------------


def test_a_message_is_the_answer_of_a_chat_and_its_stream(server: Serving) -> None:
    body = {"messages": ASKED, "system": [{"type": "text", "text": "Be brief."}], "max_tokens": 9, "seed": 2}
    whole = server.posted(MESSAGES, body)
    chat = [{"role": "system", "content": "Be brief."}, *ASKED]
    same = server.posted("/v1/chat/completions", {"messages": chat, "max_tokens": 9, "seed": 2})
    assert whole["content"] == [{"type": "text", "text": same["choices"][0]["message"]["content"]}]
    assert whole["stop_reason"] == "max_tokens"
    assert whole["usage"]["output_tokens"] == 9
    events = streamed(server, MESSAGES, body)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert text == whole["content"][0]["text"]
    used = events[-2]["usage"]
    assert used["input_tokens"] + used["cache_read_input_tokens"] == server.posted(COUNT, body)["input_tokens"]


def test_a_stop_sequence_is_reported(server: Serving) -> None:
    body = {"messages": ASKED, "max_tokens": 20, "temperature": 0}
    text = server.posted(MESSAGES, body)["content"][0]["text"]
    whole = server.posted(MESSAGES, body | {"stop_sequences": [text[4:7]]})
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", text[4:7])


def test_tools_of_messages(server: Serving) -> None:
    tools = [{"name": "weather", "description": "of a city", "input_schema": PLACE}]
    body: dict[str, Any] = {"messages": ASKED, "tools": tools, "max_tokens": 60}
    body["tool_choice"] = {"type": "any", "disable_parallel_tool_use": True}
    whole = server.posted(MESSAGES, body)
    (block,) = whole["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "weather", {"city": "Rome"})
    assert whole["stop_reason"] == "tool_use"
    events = streamed(server, MESSAGES, body)
    kinds = [event["type"] for event in events]
    assert [*dict.fromkeys(kinds[1:-2])] == ["content_block_start", "content_block_delta", "content_block_stop"]
    pieces = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == block["input"]
    eager = body | {"tools": [tools[0] | {"eager_input_streaming": True}]}
    deltas = [event["delta"] for event in streamed(server, MESSAGES, eager) if event["type"] == "content_block_delta"]
    assert len(deltas) > len(pieces)  # which have whole members
    assert json.loads("".join(delta["partial_json"] for delta in deltas)) == block["input"]
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": [{"type": "text", "text": "sunny"}]}
    talk = [*ASKED, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, block]}]
    talk.append({"role": "user", "content": [result, {"type": "text", "text": "So?"}]})
    assert server.posted(MESSAGES, {"messages": talk, "tools": tools, "max_tokens": 2})["type"] == "message"


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": None},
        {"messages": 3},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": 3}]}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": [], "content": 3}]}]},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "often"}},
        {"n": 2},
    ],
)
def test_errors_of_messages_are_anthropics(server: Serving, body: dict[str, Any]) -> None:
    error = server.posted(MESSAGES, {"messages": ASKED, "max_tokens": 2} | body, 400)
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"


def test_what_claude_code_tells_the_service_is_left_out(server: Serving) -> None:
    """The block differs in each session: with it at the beginning, nothing of a prompt would be cached for the next."""
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.9c6; cc_entrypoint=sdk-cli;"}
    rest = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    counts = [server.posted(COUNT, {"messages": ASKED, "system": system}) for system in ([billing, *rest], rest)]
    assert counts[0] == counts[1]
    spoken = [{"type": "text", "text": f"{billing['text']}\nBe brief."}]
    assert server.posted(COUNT, {"messages": ASKED, "system": spoken})["input_tokens"] > counts[0]["input_tokens"]


def test_tools_that_a_client_has_found_are_results(server: Serving) -> None:
    def count(*parts: dict[str, Any], status: int = 200) -> Any:
        call = {"type": "tool_use", "id": "a", "name": "ToolSearch", "input": {"query": "fetch"}}
        result = {"type": "tool_result", "tool_use_id": "a", "content": [*parts]}
        talk = [*ASKED, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        return server.posted(COUNT, {"messages": talk}, status)

    text = {"type": "text", "text": "The tool WebFetch can be called now."}
    assert count({"type": "tool_reference", "tool_name": "WebFetch"}) == count(text)
    error = count({"type": "tool_reference", "tool_name": 3}, status=400)["error"]
    assert "messages[2].content[0].content[0].tool_name" in error["message"]


def test_a_prompt_that_is_too_long_and_a_model_that_is_not_there(server: Serving) -> None:
    long = {"messages": [{"role": "user", "content": "one two " * 3000}], "max_tokens": 2, "stream": True}
    assert server.posted(MESSAGES, long, 400)["error"]["message"].startswith("prompt is too long: ")
    assert server.posted(COUNT, long)["input_tokens"] > 3000
    assert server.posted(MESSAGES, long | {"model": "x"}, 404)["error"]["type"] == "not_found_error"


# --- Responses --------------------------------------------------------------------------------------------------------


def test_a_response_is_the_answer_of_a_chat_and_its_stream(server: Serving) -> None:
    body = {"input": "Hello", "instructions": "Be brief.", "max_output_tokens": 9, "seed": 2}
    whole = server.posted(RESPONSES, body)
    chat = [{"role": "system", "content": "Be brief."}, *ASKED]
    same = server.posted("/v1/chat/completions", {"messages": chat, "max_tokens": 9, "seed": 2})
    (item,) = whole["output"]
    assert item["status"] == "incomplete"
    assert item["content"][0]["text"] == same["choices"][0]["message"]["content"]
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    events = streamed(server, RESPONSES, body)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    text = "".join(event["delta"] for event in events if event["type"].endswith("text.delta"))
    assert events[2]["item"]["content"] == []
    assert text == item["content"][0]["text"] == events[-1]["response"]["output"][0]["content"][0]["text"]
    items = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    as_items = server.posted(RESPONSES, {"input": items, "max_output_tokens": 9, "seed": 2})
    assert as_items["output"][0]["content"] == item["content"]


def test_tools_of_responses(server: Serving) -> None:
    tools = [{"type": "function", "name": "weather", "parameters": PLACE}]
    choice = {"type": "function", "name": "weather"}
    body: dict[str, Any] = {"input": "Hello", "tools": tools, "tool_choice": choice, "max_output_tokens": 60}
    (call,) = server.posted(RESPONSES, body)["output"]
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "weather", {"city": "Rome"})
    kinds = [event["type"] for event in streamed(server, RESPONSES, body)]
    assert "response.function_call_arguments.done" in kinds
    assert kinds[-1] == "response.completed"
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": []}
    talk = [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}, thought, call, result]
    assert server.posted(RESPONSES, {"input": talk, "tools": tools, "max_output_tokens": 2})["output"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [{"type": "mcp"}], "tool_choice": "required"}, "tool_choice"),
        ({"background": True}, "background"),
        (
            {"tools": [{"type": "mcp"}], "tool_choice": {"type": "allowed_tools", "tools": [{"namespace": 3}]}},
            "tool_choice.tools[0].namespace",
        ),
    ],
)
def test_what_responses_cannot_honour_is_named(server: Serving, body: dict[str, Any], param: str) -> None:
    assert server.posted(RESPONSES, {"input": "Hello"} | body, 400)["error"]["param"] == param


# --- tools and items of other providers -------------------------------------------------------------------------------

RUN = {"type": "object", "properties": {"cmd": {"enum": ["ls"]}}, "required": ["cmd"], "additionalProperties": False}
HOSTED: list[dict[str, Any]] = [
    {"type": "web_search", "external_web_access": True},
    {"type": "function", "name": "run", "parameters": RUN, "strict": False},
    {"type": "namespace", "name": "agents", "description": "d", "tools": [
        {"type": "function", "name": "stop", "parameters": RUN, "defer_loading": True},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "s: /x/"}},
    ]},
    {"type": "custom", "name": "apply_patch", "description": "Edits files."},
    {"type": "mcp", "server_label": "x", "server_url": "https://example.org", "require_approval": "never"},
]  # fmt: skip


def wait_for_notes(server: Serving, begins: list[str]) -> None:
    """Wait for the record of a request, which comes after its answer, with notes that begin like this."""
    until_s, found = monotonic() + 60, list[list[str]]()
    while begins not in found:
        assert monotonic() < until_s, found
        sleep(0.01)
        found = [[note.split(":")[0] for note in record.get("notes", ())] for record in server.records]


def test_tools_that_a_provider_runs_are_left_out_with_a_note(server: Serving) -> None:
    body: dict[str, Any] = {"input": "Hello", "tools": HOSTED, "max_output_tokens": 2, "text": {"verbosity": "low"}}
    assert server.posted(RESPONSES, body)["output"]
    wait_for_notes(server, ["tools[0] is left out", "tools[4] is left out", "'verbosity' has no effect"])
    chat = {"messages": ASKED, "tools": [{"type": "web_search_preview"}], "max_tokens": 2, "verbosity": "high"}
    assert server.posted("/v1/chat/completions", chat)["choices"]
    message = {"messages": ASKED, "tools": [{"type": "bash_20250124", "name": "bash"}], "max_tokens": 2}
    assert server.posted(MESSAGES, message)["content"]
    wait_for_notes(server, ["tools[0] is left out"])
    assert any("tools of type 'bash_20250124' do not exist here" in str(each.get("notes")) for each in server.records)


@pytest.mark.parametrize(
    ("choice", "item"),
    [
        ({"type": "function", "name": "run"}, {"type": "function_call", "name": "run", "arguments": '{"cmd": "ls"}'}),
        (
            {"type": "function", "name": "stop", "namespace": "agents"},
            {"type": "function_call", "name": "stop", "namespace": "agents", "arguments": '{"cmd": "ls"}'},
        ),
        ({"type": "custom", "name": "apply_patch"}, {"type": "custom_tool_call", "name": "apply_patch"}),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "run"}]},
            {"type": "function_call", "name": "run"},
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "stop", "namespace": "agents"}],
            },
            {"type": "function_call", "name": "stop", "namespace": "agents"},
        ),
    ],
)
def test_calls_of_functions_groups_and_texts_come_back_as_they_were_given(
    server: Serving, choice: Any, item: dict[str, Any]
) -> None:
    body: dict[str, Any] = {"input": "Hi", "tools": HOSTED, "tool_choice": choice, "seed": 1, "max_output_tokens": 120}
    (call,) = server.posted(RESPONSES, body)["output"]
    assert call | item == call
    events = streamed(server, RESPONSES, body)
    (done,) = (event["item"] for event in events if event["type"] == "response.output_item.done")
    fixed = ("id", "call_id")
    assert {k: v for k, v in done.items() if k not in fixed} == {k: v for k, v in call.items() if k not in fixed}
    field, kind = ("input", "custom_tool_call_input") if "input" in call else ("arguments", "function_call_arguments")
    text = "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta")
    assert text == call[field]
    output = {"type": call["type"] + "_output", "call_id": call["call_id"], "output": "done"}
    assert server.posted(RESPONSES, {"input": [*ASKED, call, output], "tools": HOSTED, "max_output_tokens": 2})


def test_a_text_is_the_input_of_a_custom_tool_in_chats(server: Serving) -> None:
    tools = [{"type": "custom", "custom": {"name": "note", "description": "d", "format": {"type": "text"}}}]
    choice = {"type": "custom", "custom": {"name": "note"}}
    body = {"messages": ASKED, "tools": tools, "tool_choice": choice, "seed": 3, "max_tokens": 200}
    message = server.posted("/v1/chat/completions", body)["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert (call["type"], call["custom"]["name"]) == ("custom", "note")
    talk = [*ASKED, message, {"role": "tool", "tool_call_id": call["id"], "content": "ok"}]
    prompt = server.posted("/apply-template", {"messages": talk, "tools": tools})["prompt"]
    assert json.dumps({"name": "note", "arguments": {"input": call["custom"]["input"]}}, ensure_ascii=False) in prompt


def test_items_of_other_tools_are_calls_or_left_out_with_a_note(server: Serving) -> None:
    items = [
        *ASKED,
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
        {
            "type": "local_shell_call",
            "call_id": "a",
            "action": {"type": "exec", "command": ["ls"]},
            "status": "completed",
        },
        {"type": "local_shell_call_output", "call_id": "a", "output": "x"},
        {"type": "mcp_call", "name": "look", "arguments": "{}", "server_label": "s", "output": "found", "error": None},
        {"type": "compaction", "encrypted_content": "zz"},
    ]
    assert server.posted(RESPONSES, {"input": items, "max_output_tokens": 2})["output"]
    wait_for_notes(server, ["input[1] is left out", "input[5] is left out"])
    blocks = [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "text", "text": "So.", "citations": None},
    ]
    talk = [*ASKED, {"role": "assistant", "content": blocks}, *ASKED]
    assert server.posted(MESSAGES, {"messages": talk, "max_tokens": 2})["content"]
    wait_for_notes(server, [f"messages[1].content[{index}] is left out" for index in (0, 1)])


def test_results_of_shells_are_json(server: Serving) -> None:
    said = {"stdout": "a.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    call = {"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"]}}
    as_object, as_text = (
        server.posted(
            RESPONSES,
            {
                "input": [*ASKED, call, {"type": "shell_call_output", "call_id": "a", "output": output}],
                "max_output_tokens": 2,
            },
        )["usage"]["input_tokens"]
        for output in ([said, said], f"{json.dumps(said)}\n{json.dumps(said)}")
    )
    assert as_object == as_text


# --- reasoning, text and a call in one answer -------------------------------------------------------------------------

CALL = Call("m", [Request()])
PIECES = [
    Piece(0, reasoning="h"),
    Piece(0, reasoning="m"),
    Piece(0, "Yes."),
    Piece(0, tool=CallPiece("f", "", 0, "a")),
    Piece(0, tool=CallPiece("f", '{"x": ', 0, "a")),
    Piece(0, tool=CallPiece("f", "1}", 0, "a")),
    Piece(0, tool=ToolCall("f", '{"x": 1}', 0, "a")),
    Piece(0, end=End("tool_calls", Stats(), 5)),
]


def test_the_stop_sequence_that_was_met_is_named(server: Serving) -> None:
    body = {"messages": ASKED, "max_tokens": 20, "temperature": 0}
    text = server.posted(MESSAGES, body)["content"][0]["text"]
    stops = ["\x00never", text[9:12], text[3:6]]
    first = min(stops[1:], key=lambda stop: text.index(stop) + len(stop))
    message = server.posted(MESSAGES, body | {"stop_sequences": stops})
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", first)
    *_, delta, end = streamed(server, MESSAGES, body | {"stop_sequences": stops})
    assert delta["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": first}
    assert end == {"type": "message_stop"}


def test_blocks_and_items_of_an_answer_with_everything() -> None:
    answer = MessageObject(CALL, {})
    events = [event for piece in PIECES for event in answer.chunks(piece)]
    assert [block["type"] for block in answer.object["content"]] == ["thinking", "text", "tool_use"]
    assert answer.object["content"][0]["thinking"] == "hm"
    starts = [event["index"] for event in events if event["type"] == "content_block_start"]
    assert starts == [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2]
    response = ResponseObject(CALL, {})
    events = [event for piece in PIECES for event in response.chunks(piece)]
    items = events[-1]["response"]["output"]
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
    assert all(item["status"] == "completed" for item in items)
    assert [e["output_index"] for e in events if e["type"] == "response.output_item.done"] == [0, 1, 2]


def test_the_usage_counts_tokens_of_reasoning(templated: Serving) -> None:
    """The template opens the reasoning, which this model does not end."""
    body: dict[str, Any] = {"messages": ASKED, "max_tokens": 5, "seed": 1, "n": 2}
    used = templated.posted("/v1/chat/completions", body)["usage"]
    assert (used["completion_tokens"], used["completion_tokens_details"]) == (10, {"reasoning_tokens": 10})
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    with templated.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as response:
        *_, last, _ = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert json.loads(last)["usage"]["completion_tokens_details"] == {"reasoning_tokens": 10}
    asked = {"input": "Hello", "max_output_tokens": 5, "seed": 1}
    assert templated.posted(RESPONSES, asked)["usage"]["output_tokens_details"] == {"reasoning_tokens": 5}
    assert streamed(templated, RESPONSES, asked)[-1]["response"]["usage"]["output_tokens_details"] == {
        "reasoning_tokens": 5
    }
    off = templated.posted(RESPONSES, asked | {"reasoning": {"effort": "none"}})
    assert off["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}


def test_thinking_may_be_switched_off_in_the_template(templated: Serving) -> None:
    body: dict[str, Any] = {"messages": ASKED, "max_tokens": 3, "seed": 1}
    assert templated.posted(MESSAGES, body)["content"][0]["type"] == "thinking"
    off = templated.posted(MESSAGES, body | {"thinking": {"type": "disabled"}})
    assert off["content"][0]["type"] == "text"
