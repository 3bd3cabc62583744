"""Fields of OpenAI, Anthropic, vLLM and llama.cpp's server that the server honours under their names."""

from __future__ import annotations

import json
import time
from copy import copy
from typing import Any

import pytest
from serving import Serving, posted

from edgespec.dialects.calls import ToolCall, ToolParser
from edgespec.dialects.forms import TAGS
from edgespec.gguf_file.chat_templates import ChatTemplates
from edgespec.serve.openai import chat_call

CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
HELLO = [{"role": "user", "content": "Hello"}]
CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
CITY["additionalProperties"] = False
ROME = {"city": "Rome"}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
pytestmark = [pytest.mark.native, pytest.mark.cli]


# --- constraints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"guided_json": CITY}, '{"city": "Rome"}'),
        ({"structured_outputs": {"json": json.dumps(CITY)}}, '{"city": "Rome"}'),
        ({"response_format": {"type": "json_object", "schema": {"const": 7}}}, "7"),
        ({"response_format": {"type": "json_schema", "schema": {"const": 7}}}, "7"),
        ({"guided_regex": "ab{3}"}, "abbb"),
        ({"structured_outputs": {"regex": "ab{3}"}, "response_format": {"type": "text"}}, "abbb"),
        ({"guided_choice": ["a+(b) | [c]\\d ~ #-&/ü\n"]}, "a+(b) | [c]\\d ~ #-&/ü\n"),
        ({"structured_outputs": {"choice": ["yes"]}}, "yes"),
        ({"guided_grammar": 'root ::= "so"'}, "so"),
    ],
)
def test_a_constraint_has_many_names(server: Serving, asked: dict[str, Any], said: str) -> None:
    answer = posted(server, CHAT, messages=HELLO, max_tokens=60, **asked)["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == (said, "stop")
    assert posted(server, TEXT, prompt="a", max_tokens=60, **asked)["choices"][0]["text"] == said


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"])
def test_no_line_end_of_other_programs_is_in_a_body_or_a_stream(server: Serving, path: str) -> None:
    asked = [{"role": "user", "content": "x"}]
    body = {"regex": "a\u2028b\u2029c\u0085d", "max_tokens": 20}
    body |= {"input": asked} if path.endswith("responses") else {"messages": asked}
    if path.startswith("/api"):
        body = {"messages": asked, "format": {"const": "a\u2028b\u2029c\u0085d"}}
    with server.client() as client:
        for stream in (False, True):
            text = client.post(path, json=body | {"stream": stream}).content.decode()
            assert "\\u2028" in text
            assert not {"\x85", "\u2028", "\u2029"} & {*text}


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"guided_json": {}, "guided_regex": "a"}, "guided_json"),
        ({"response_format": {"type": "json_object"}, "json_schema": {"const": 1}}, "json_schema"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"guided_choice": []}, "guided_choice"),
        ({"best_of": 3, "n": 2}, "best_of"),
        ({"n_probs": 99}, "n_probs"),
    ],
)
def test_contradictions_are_refused_by_name(server: Serving, asked: dict[str, Any], param: str) -> None:
    assert posted(server, CHAT, 400, messages=HELLO, **asked)["error"]["param"] == param


def test_messages_have_a_format_for_their_output(server: Serving) -> None:
    format = {"type": "json_schema", "schema": CITY}
    asked = {"format": format, "effort": "low"}
    answer = posted(server, MESSAGES, messages=HELLO, max_tokens=60, output_config=asked)
    assert [json.loads(block["text"]) for block in answer["content"]] == [ROME]
    wrong = posted(server, MESSAGES, 400, messages=HELLO, max_tokens=9, output_config={"format": {"type": "xml"}})
    assert "output_config.format must be" in wrong["error"]["message"]


# --- log-probabilities ------------------------------------------------------------------------------------------------


def test_n_probs_are_log_probabilities(server: Serving) -> None:
    asked: dict[str, Any] = {"max_tokens": 5, "seed": 3}
    logprobs = posted(server, CHAT, messages=HELLO, n_probs=2, **asked)["choices"][0]["logprobs"]
    same = posted(server, CHAT, messages=HELLO, logprobs=True, top_logprobs=2, **asked)["choices"][0]["logprobs"]
    assert logprobs == same
    assert posted(server, TEXT, prompt="a", n_probs=2, **asked)["choices"][0]["logprobs"] is not None
    assert posted(server, CHAT, messages=HELLO, n_probs=0, **asked)["choices"][0]["logprobs"] is None


def test_responses_have_no_log_probabilities(server: Serving) -> None:
    body: dict[str, Any] = {"input": "Hello", "max_output_tokens": 2, "seed": 3}
    encrypted = posted(server, RESPONSES, **body, top_logprobs=0, include=["reasoning.encrypted_content"])
    assert encrypted["output"][0]["content"][0]["logprobs"] == []
    asked: dict[str, Any]
    for asked in ({"include": "x"}, {"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}):
        assert posted(server, RESPONSES, 400, **body, **asked)["error"]["param"] == next(iter(asked))


# --- ends -------------------------------------------------------------------------------------------------------------


def test_ends_and_bad_words_reach_the_engine(server: Serving) -> None:
    asked: dict[str, Any] = {"prompt": "def f(", "max_tokens": 20, "seed": 4, "return_tokens": True}
    whole = posted(server, TEXT, **asked)["choices"][0]["tokens"]
    ids = [token["id"] for token in whole]
    cut = posted(server, TEXT, **asked, stop_token_ids=[ids[5]])["choices"][0]
    assert [token["id"] for token in cut["tokens"]] == ids[: ids.index(ids[5])]
    assert cut["finish_reason"] == "stop"
    longer = posted(server, TEXT, **asked, stop_token_ids=[ids[5]], min_tokens=15)["choices"][0]
    assert len(longer["tokens"]) >= 15
    word = next(token["text"] for token in whole if token["text"].strip())
    without = posted(server, TEXT, **asked, bad_words=[word])["choices"][0]["tokens"]
    assert word not in [token["text"] for token in without]
    error = posted(server, TEXT, 400, **asked, min_tokens=21)["error"]
    assert (error["param"], error["message"][:28]) == ("min_tokens", "min_tokens must be at most m")


def test_a_prompt_can_be_kept_out_of_the_cache(server: Serving) -> None:
    messages = [{"role": "user", "content": "Tell me about the rivers of Europe. " * 20}]
    posted(server, CHAT, messages=messages, max_tokens=1)
    for asked, is_cached in ((True, True), (False, False)):
        usage = posted(server, CHAT, messages=messages, max_tokens=1, cache_prompt=asked)["usage"]
        assert (usage["prompt_tokens_details"]["cached_tokens"] > 0) == is_cached


# --- reasoning and results --------------------------------------------------------------------------------------------


def test_effort_reaches_templates_that_read_it_and_is_noted_elsewhere(templated: Serving, server: Serving) -> None:
    def prompt(**asked: Any) -> str:
        named = [HELLO[0] | {"name": "Ann"}]
        return str(posted(templated, "/apply-template", messages=named, **asked)["prompt"])

    assert prompt(reasoning_effort="high").startswith("high/True")
    assert prompt(reasoning_effort="none").startswith("/False")
    assert "/True<|user|>AnnHello" in prompt(reasoning_effort="none", enable_thinking=True)
    posted(server, CHAT, messages=HELLO, max_tokens=1, reasoning_effort="high")
    posted(server, RESPONSES, input="Hello", max_output_tokens=1, enable_thinking=False)
    noted(server, "'reasoning_effort' has no effect")
    noted(server, "'enable_thinking' has no effect")


def said(server: Serving, **body: Any) -> tuple[str, str]:
    """The text of all tokens of an answer, and of its reasoning."""
    body |= {"messages": HELLO, "max_tokens": 40, "seed": 2, "ignore_eos": True, "return_tokens": True}
    choice = posted(server, CHAT, **body)["choices"][0]
    text = "".join(token["text"] for token in choice["tokens"])
    return text, choice["message"].get("reasoning_content", "")


def test_reasoning_is_limited_under_the_names_of_several_servers(templated: Serving) -> None:
    whole, _ = said(templated)
    for name in ("reasoning_budget", "reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget"):
        text, reasoning = said(templated, **{name: 3})
        thought, _, answer = text.partition("\n</think>\n\n")
        assert answer
        assert whole.startswith(thought)
        assert reasoning == thought.strip("\n")
        assert said(templated, **{name: 3}, spec_type="none")[0] == text
        assert said(templated, **{name: -1})[0] == whole
    body: dict[str, Any] = {"messages": HELLO, "max_tokens": 40, "seed": 2, "ignore_eos": True}
    body["thinking"] = {"type": "enabled", "budget_tokens": 3}
    blocks = posted(templated, MESSAGES, **body)["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"]
    assert posted(templated, CHAT, 400, messages=HELLO, reasoning_budget=-2)["error"]["param"] == "reasoning_budget"
    body["thinking"] = {"type": "enabled", "budget_tokens": 0}
    assert "thinking.budget_tokens must" in posted(templated, MESSAGES, 400, **body)["error"]["message"]


@pytest.mark.parametrize("asked", [{"reasoning_effort": "none"}, {"enable_thinking": False}, {"reasoning_budget": 0}])
def test_an_answer_without_reasoning_needs_no_switch_in_the_template(templated: Serving, asked: dict[str, Any]) -> None:
    text, reasoning = said(templated, **asked)
    assert (reasoning, "</think>" in text) == ("", False)
    model = copy(templated.served)
    model.templates = ChatTemplates("{{ messages[0].content }}<think>\n")
    call = chat_call({"messages": HELLO, **asked}, model)
    assert (call.requests[0].reasoning_budget, call.notes) == (0, [])


def test_unknown_fields_are_in_the_log_for_every_endpoint(server: Serving) -> None:
    posted(server, "/tokenize", content="a", fields_of_tokenize=1)
    posted(server, "/v1/messages/count_tokens", messages=[HELLO[0] | {"odd": 1}], tools=[])
    noted(server, "'fields_of_tokenize' ignored")
    noted(server, "'messages[0].odd' ignored")


def noted(server: Serving, text: str) -> None:
    """Wait until the log has a note; a request is logged after its answer is sent."""
    while not any(text in str(record.get("notes")) for record in server.records):
        time.sleep(0.01)


def test_a_result_that_is_an_error_says_so_to_the_model(server: Serving) -> None:
    call = {"type": "tool_use", "id": "a", "name": "weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "no such city"}
    tools = [{"name": "weather", "input_schema": CITY}]
    counts = []
    for is_error in (True, False):
        blocks = [{"role": "user", "content": [result | {"is_error": is_error}]}]
        talk = [*HELLO, {"role": "assistant", "content": [call]}, *blocks]
        counts.append(posted(server, "/v1/messages/count_tokens", messages=talk, tools=tools)["input_tokens"])
    assert counts[0] > counts[1]


# --- tools ------------------------------------------------------------------------------------------------------------


def test_at_most_one_call_where_calls_must_not_be_parallel(server: Serving) -> None:
    body: dict[str, Any] = {"messages": HELLO, "tools": TOOLS, "max_tokens": 300, "seed": 1, "tool_choice": "required"}
    alone = posted(server, CHAT, **body, parallel_tool_calls=False)["choices"][0]["message"]["tool_calls"]
    assert [json.loads(call["function"]["arguments"])["city"] for call in alone] == ["Rome"]
    tools = [{"name": "weather", "input_schema": CITY}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    answer = posted(server, MESSAGES, messages=HELLO, tools=tools, tool_choice=choice, max_tokens=300)
    assert [block["type"] for block in answer["content"]] == ["tool_use"]
    two = '<tool_call>{"name": "f"}</tool_call>\n<tool_call>{"name": "f"}</tool_call> so'
    parser = ToolParser(TAGS, {"f": {}}, 1)
    parts = parser.feed(two) + parser.end()
    assert [part.name for part in parts if isinstance(part, ToolCall)] == ["f"]
