"""Fields of OpenAI, Anthropic, vLLM and llama.cpp's server that the server honours under their names."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from serving import Serving
from tiny_gguf import model_metadata, write_model

from edgespec.llama.grammar import Grammars
from edgespec.llama.model import Model
from edgespec.serve.tools.formats import LLAMA, MISTRAL, TAGS, ToolCall, ToolParser
from edgespec.serve.tools.given import calls_in_text, several_calls

CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
HELLO = [{"role": "user", "content": "Hello"}]
CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
CITY["additionalProperties"] = False
ROME = {"city": "Rome"}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
CALL = {"type": "object", "properties": {"name": {"const": "f"}}, "required": ["name"], "additionalProperties": False}
pytestmark = [pytest.mark.native, pytest.mark.cli]


def posted(server: Serving, path: str, status: int = 200, **body: Any) -> Any:
    with server.client() as client:
        response = client.post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


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
    assert "output_config.format must have" in wrong["error"]["message"]


# --- log-probabilities ------------------------------------------------------------------------------------------------


def test_n_probs_are_log_probabilities(server: Serving) -> None:
    asked: dict[str, Any] = {"max_tokens": 5, "seed": 3}
    logprobs = posted(server, CHAT, messages=HELLO, n_probs=2, **asked)["choices"][0]["logprobs"]
    same = posted(server, CHAT, messages=HELLO, logprobs=True, top_logprobs=2, **asked)["choices"][0]["logprobs"]
    assert logprobs == same
    assert posted(server, TEXT, prompt="a", n_probs=2, **asked)["choices"][0]["logprobs"] is not None
    assert posted(server, CHAT, messages=HELLO, n_probs=0, **asked)["choices"][0]["logprobs"] is None


def test_responses_include_log_probabilities_of_their_text(server: Serving) -> None:
    body: dict[str, Any] = {"input": "Hello", "max_output_tokens": 12, "seed": 3}
    asked = body | {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    (part,) = posted(server, RESPONSES, **asked)["output"][0]["content"]
    assert len(part["logprobs"]) == 12
    assert all(len(token["top_logprobs"]) <= 2 and token["logprob"] <= 0 for token in part["logprobs"])
    assert b"".join(bytes(token["bytes"]) for token in part["logprobs"]).decode() == part["text"]
    with server.client() as client, client.stream("POST", RESPONSES, json=asked | {"stream": True}) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: {")]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [token for event in deltas for token in event["logprobs"]] == part["logprobs"]
    assert next(event for event in events if event["type"] == "response.content_part.added")["part"]["logprobs"] == []
    assert posted(server, RESPONSES, **body)["output"][0]["content"][0]["logprobs"] == []
    encrypted = posted(server, RESPONSES, **body, include=["reasoning.encrypted_content"])
    assert encrypted["output"][0]["content"][0]["logprobs"] == []
    assert posted(server, RESPONSES, 400, **body, include="x")["error"]["param"] == "include"


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


@pytest.fixture(scope="module", params=["as text", "as tokens"])
def marked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A vocabulary in which the marks of calls and of reasoning are text, or single tokens as in Qwen's."""
    entries: dict[str, Any] = model_metadata("llama")
    tokens, kinds = [*entries["tokenizer.ggml.tokens"]], [*entries["tokenizer.ggml.token_type"]]
    merges = [*entries["tokenizer.ggml.merges"]]
    if request.param == "as tokens":
        tokens[-6:-3], kinds[-6:-3], merges = ["<think>", "<tool_call>", "</tool_call>"], [4] * 3, merges[:-3]
    names = ("tokens", "token_type", "merges")
    changed = {f"tokenizer.ggml.{name}": made for name, made in zip(names, (tokens, kinds, merges), strict=True)}
    file = write_model(tmp_path_factory.mktemp("marked") / "tiny.gguf", "llama", metadata=changed)
    with Model.load_vocabulary(file) as model:
        yield model


@pytest.fixture(scope="module")
def grammars(marked: Model) -> Grammars:
    return Grammars(marked)


@pytest.mark.parametrize(
    ("several", "text", "holds"),
    [
        (True, '<tool_call>\n{"name": "f"}\n</tool_call>', True),
        (True, '<tool_call>\n{"name": "f"}\n</tool_call>\n<tool_call>\n{"name": "f"}\n</tool_call>', True),
        (True, '<tool_call>\n{"name": "g"}\n</tool_call>', False),
        (True, "Hello", False),
        (False, "Hello", True),
        (False, 'Hello {"name": "g"}', True),
        (False, 'Hello <tool_call>\n{"name": "f"}\n</tool_call> so <tool_call>{"name": "f"}</tool_call>', True),
        (False, '<tool_call>{"name": "g"}</tool_call>', False),
        (False, "<tool_call>no JSON</tool_call>", False),
    ],
)
def test_calls_are_held_to_their_schema_in_the_format_of_the_template(
    marked: Model, grammars: Grammars, several: bool, text: str, holds: bool
) -> None:
    special = {}
    for mark in ("<tool_call>", "</tool_call>"):
        ids = marked.tokenize(mark, parse_special=True)
        if len(ids) == 1 and marked.is_special(ids[0]):
            special[mark] = ids[0]
    grammar = several_calls(TAGS, CALL, special) if several else calls_in_text(TAGS, CALL, special, template="")
    assert grammar is not None
    constraint = grammars.constraint("grammar", grammar, 0)
    tokens = [*marked.tokenize(text, parse_special=True), marked.end_tokens[-1]]
    assert all(constraint.allowed(tokens[:at])[token] for at, token in enumerate(tokens)) == holds


def test_reasoning_is_text_where_marks_are_tokens(marked: Model, grammars: Grammars) -> None:
    ids = marked.tokenize("<tool_call>", parse_special=True)
    if len(ids) > 1:
        assert calls_in_text(TAGS, CALL, {}, template="... <think> ...") is None
        return
    special = {"<tool_call>": ids[0], "</tool_call>": marked.tokenize("</tool_call>", parse_special=True)[0]}
    grammar = calls_in_text(TAGS, CALL, special, template="... <think> ...")
    assert grammar is not None
    constraint = grammars.constraint("grammar", grammar, 0)
    assert constraint.allowed([])[marked.tokenize("<think>", parse_special=True)[0]]


def test_formats_that_cannot_be_held_have_no_grammar() -> None:
    assert several_calls(MISTRAL, CALL, {}) is None
    assert several_calls(TAGS, CALL, {"<tool_call>": 1}) is None
    assert calls_in_text(LLAMA, CALL, {}, template="") is None
    assert calls_in_text(TAGS, CALL, {}, template="<function=") is None
    assert '("; " json){0,7}' in str(several_calls(LLAMA, CALL, {}))
