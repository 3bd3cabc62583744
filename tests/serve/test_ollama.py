"""Ollama's API: the bodies that its clients send, answers whole and as lines, models, and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serving import Serving

from edgespec.core.stats import Stats
from edgespec.dialects.calls import ToolCall
from edgespec.requests.bad_input import BadInputError
from edgespec.serve.chat import Call, End, Piece
from edgespec.serve.ollama import OllamaChatObject, ollama_chat, unloads
from edgespec.settings import Request

CHAT, GENERATE = "/api/chat", "/api/generate"
ASKED = [{"role": "user", "content": "Hello"}]
OPTIONS = {"temperature": 0, "num_predict": 8, "num_ctx": 4096, "seed": 1}
FUNCTION = {"name": "weather", "description": "Tells it", "parameters": {"type": "object", "properties": {}}}
pytestmark = [pytest.mark.native, pytest.mark.cli]


def posted(server: Serving, path: str, body: dict[str, Any], status: int = 200) -> Any:
    return server.posted(path, {"model": "demo", "stream": False} | body, status)


def lines(server: Serving, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of a stream. A body without `stream` asks for one."""
    with server.client() as client, client.stream("POST", path, json={"model": "demo"} | body) as response:
        assert response.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line) for line in response.iter_lines()]


def test_a_chat_is_that_of_the_other_formats(server: Serving) -> None:
    whole = posted(server, CHAT, {"messages": ASKED, "options": OPTIONS, "keep_alive": "5m"})
    other = posted(server, "/v1/chat/completions", {"messages": ASKED, "temperature": 0, "max_tokens": 8})
    assert whole["message"] == {"role": "assistant", "content": other["choices"][0]["message"]["content"]}
    assert (whole["model"], whole["done"], whole["done_reason"]) == ("demo", True, "length")
    assert (whole["eval_count"], whole["prompt_eval_count"]) == (8, other["usage"]["prompt_tokens"])
    assert whole["total_duration"] >= whole["eval_duration"] > 0
    assert whole["created_at"].endswith("Z")


def test_a_stream_has_the_text_in_parts_and_figures_at_the_end(server: Serving) -> None:
    *parts, last = lines(server, CHAT, {"messages": ASKED, "options": OPTIONS})
    whole = posted(server, CHAT, {"messages": ASKED, "options": OPTIONS})
    assert "".join(part["message"]["content"] for part in parts) == whole["message"]["content"]
    assert not any(part["done"] for part in parts)
    assert (last["done"], last["message"]["content"], last["eval_count"]) == (True, "", 8)


def test_a_prompt_is_put_into_the_chat_template_unless_it_is_raw(server: Serving) -> None:
    body = {"prompt": "Hello", "options": OPTIONS}
    chat = posted(server, CHAT, {"messages": [{"role": "system", "content": "Be brief."}, *ASKED], "options": OPTIONS})
    assert posted(server, GENERATE, body | {"system": "Be brief."})["response"] == chat["message"]["content"]
    raw = posted(server, "/v1/completions", {"prompt": "Hello", "temperature": 0, "max_tokens": 8})
    assert posted(server, GENERATE, body | {"raw": True})["response"] == raw["choices"][0]["text"]
    parts = lines(server, GENERATE, body | {"raw": True})
    assert "".join(part["response"] for part in parts) == raw["choices"][0]["text"]


def test_answers_have_the_format_that_was_asked_for(server: Serving) -> None:
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
    body = {"messages": ASKED, "options": {"temperature": 0, "num_predict": 20}}
    for path in (CHAT, GENERATE):
        answer = posted(server, path, body | {"prompt": "Hello", "format": schema})
        assert json.loads(answer["message"]["content"] if path == CHAT else answer["response"]) == {"city": "Rome"}
    assert posted(server, CHAT, body | {"format": "json"})["message"]["content"].startswith("{")
    assert posted(server, CHAT, body | {"format": ""})["message"] == posted(server, CHAT, body)["message"]


def test_log_probabilities(server: Serving) -> None:
    body = {"messages": ASKED, "options": OPTIONS, "logprobs": True, "top_logprobs": 2}
    known = posted(server, CHAT, body)["logprobs"]
    assert len(known) == 8
    assert {len(each["top_logprobs"]) for each in known} == {2}
    parts = lines(server, CHAT, body)
    assert [each for part in parts for each in part.get("logprobs", [])] == known
    assert (
        len(posted(server, GENERATE, {"prompt": "x", "raw": True, "logprobs": True, "options": OPTIONS})["logprobs"])
        == 8
    )


def test_tools_and_their_results_reach_the_template(templated: Serving) -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    said = [*ASKED, {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call]}]
    said.append({"role": "tool", "tool_name": "weather", "content": "sunny"})
    body = {"model": "", "messages": said, "tools": [{"type": "function", "function": FUNCTION}], "options": OPTIONS}
    counted = {key: value for key, value in body.items() if key != "options"}
    with templated.client() as client:
        chat = client.post(CHAT, json=body | {"think": False, "stream": False})
        messages = [
            *ASKED,
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "hm",
                "tool_calls": [call | {"type": "function"}],
            },
            {"role": "tool", "name": "weather", "content": "sunny"},
        ]
        same = counted | {"messages": messages, "enable_thinking": False}
        prompt = client.post("/apply-template", json=same).json()["prompt"]
        n_tokens = client.post("/apply-template", json=same | {"count": True}).json()["n_tokens"]
    assert chat.status_code == 200, chat.text
    assert chat.json()["prompt_eval_count"] == n_tokens
    assert all(part in prompt for part in ('"city": "Rome"', "sunny", "<|tool|>weather", '"description": "Tells it"'))


def test_calls_of_tools_have_objects_as_arguments() -> None:
    writer = OllamaChatObject(Call("m", [Request()]), {})
    end = Piece(0, end=End("tool_calls", Stats(), 3))
    call = Piece(0, tool=ToolCall("weather", '{"city": "Rome"}', 0, "call_1"))
    chunks = [
        chunk for piece in (Piece(0, reasoning="hm"), Piece(0, "Well"), call, end) for chunk in writer.chunks(piece)
    ]
    assert [chunk["message"].get("thinking") for chunk in chunks] == ["hm", None, None, None]
    function = {"index": 0, "name": "weather", "arguments": {"city": "Rome"}}
    assert chunks[2]["message"]["tool_calls"] == [{"id": "call_1", "function": function}]
    assert (chunks[-1]["done"], chunks[-1]["done_reason"]) == (True, "stop")


def test_a_request_without_a_prompt_loads_its_model(server: Serving) -> None:
    assert posted(server, GENERATE, {"keep_alive": "10m"})["done_reason"] == "load"
    assert posted(server, CHAT, {"messages": []})["message"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("value", "is_unloaded"),
    [
        *((value, True) for value in (0, 0.0, -0.0, "0", "0s", "0h", "0m0s", "0.0s", "00ms")),
        *((value, False) for value in (-1, 300, 0.5, "5m", "1h30m", "-1s", "500ms", None)),
    ],
)
def test_only_no_time_unloads_a_model(value: Any, is_unloaded: bool) -> None:
    assert unloads({"keep_alive": value}) is is_unloaded


@pytest.mark.parametrize("value", [False, True, [], {}, "", "abc", "5 m", "5"])
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(BadInputError, match="keep_alive must be a number of seconds or a duration"):
        unloads({"keep_alive": value})


def test_options_without_a_limit_and_whole_numbers_with_a_point(server: Serving) -> None:
    body = {"messages": ASKED, "options": {"temperature": 0, "num_predict": 5.0, "top_k": 40.0, "seed": 1.0}}
    assert posted(server, CHAT, body)["eval_count"] == 5
    served = server.served
    for n in (0, -1, -2):
        assert ollama_chat({"messages": ASKED, "options": {"num_predict": n}}, served).requests[0].max_tokens == (
            ollama_chat({"messages": ASKED}, served).requests[0].max_tokens
        )


def test_models_are_described(server: Serving) -> None:
    with server.client() as client:
        tags, running = (client.get(path).json()["models"] for path in ("/api/tags", "/api/ps"))
        shown = client.post("/api/show", json={"model": "", "name": "demo:latest", "options": None}).json()
        assert "model is missing" in client.post("/api/show", json={"model": ""}).json()["error"]
        assert client.get("/").text.startswith("edgespec is running")
        assert client.head("/").status_code == 200
        assert client.get("/api/version").json()["version"].count(".") == 2
    about = next(each for each in tags if each["name"] == "demo")
    assert about["details"]["quantization_level"] == "Q8_0"
    assert about["size"] > 10**7
    assert len(about["digest"]) == 64
    assert [each["name"] for each in running] == ["demo"]
    assert running[0]["digest"] == about["digest"]
    assert running[0]["context_length"] > 0
    assert (shown["details"], shown["capabilities"][0]) == (about["details"], "completion")
    assert shown["model_info"]["general.architecture"] == "llama"
    assert shown["model_info"]["tokenizer.ggml.tokens"] is None


@pytest.mark.parametrize(
    ("path", "body", "names"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images"),
        (CHAT, {"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
        (CHAT, {"messages": "x"}, "messages"),
        (CHAT, {"messages": ASKED, "format": "xml"}, "format"),
        (CHAT, {"messages": ASKED, "format": {"type": "nothing"}}, "JSON schema"),
        (CHAT, {"messages": ASKED, "_debug_render_only": True}, "_debug_render_only"),
        (CHAT, {"messages": [], "keep_alive": "soon"}, "keep_alive"),
        (CHAT, {"messages": ASKED, "think": "deeply"}, "think"),
        (CHAT, {"messages": ASKED, "options": {"temperature": -3}}, "options.temperature"),
        (CHAT, {"messages": ASKED, "options": {"num_predict": "many"}}, "options.num_predict"),
        (CHAT, {"messages": ASKED, "options": {"mirostat": 2}}, "options.mirostat"),
        (CHAT, {"messages": ASKED, "options": 3}, "options"),
        (GENERATE, {"prompt": "x", "suffix": "y"}, "suffix"),
        (GENERATE, {"prompt": "x", "context": [1, 2]}, "context"),
        (GENERATE, {"prompt": "x", "template": "{{ .Prompt }}"}, "template"),
        (GENERATE, {"prompt": "x", "raw": True, "system": "y"}, "system"),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_name(
    server: Serving, path: str, body: dict[str, Any], names: str
) -> None:
    error = posted(server, path, body, 400)
    assert list(error) == ["error"]
    assert names in error["error"]


def test_unknown_models_and_endpoints(server: Serving) -> None:
    assert "model 'nix' not found" in posted(server, CHAT, {"model": "nix", "messages": ASKED}, 404)["error"]
    assert "model 'nix' not found" in posted(server, "/api/show", {"model": "nix"}, 404)["error"]
    pulled = posted(server, "/api/pull", {"model": "x"}, 404)["error"]
    assert "POST '/api/pull' not found on this server" in pulled
    assert "edgespec pull" in pulled
