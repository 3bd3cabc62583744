"""The server on a real port: answers, streams, clients that leave, and many at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import psutil
import pytest
from endless import ENDLESS_BODY
from serving import Serving

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
pytestmark = [pytest.mark.native, pytest.mark.cli]


@pytest.fixture
def client(server: Serving) -> Iterator[httpx2.Client]:
    with server.client() as opened:
        yield opened


def post(client: httpx2.Client, path: str, **body: Any) -> dict[str, Any]:
    """What is answered, which is no error."""
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def streamed(client: httpx2.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    """The chunks of a stream, which ends with [DONE]."""
    with client.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def refused(client: httpx2.Client, path: str, **body: Any) -> dict[str, Any]:
    """The error that a body is refused with."""
    response = client.post(path, json=body)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def content_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


# --- answers ----------------------------------------------------------------------------------------------------------


def test_a_chat_is_answered_with_usage_and_figures_of_its_drafts(client: httpx2.Client) -> None:
    answer = post(client, CHAT, model="demo", messages=HELLO, max_tokens=8, seed=3)
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "demo"
    assert answer["seed"] == 3
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 8
    assert {"prompt_n", "cache_n", "predicted_per_token_ms", "draft_n", "draft_n_accepted"} <= set(answer["timings"])
    assert {"accepted_per_pos", "by_source"} <= set(answer["timings"])


def test_a_stream_has_the_text_of_the_whole_answer(client: httpx2.Client) -> None:
    body = {"messages": HELLO, "max_tokens": 12, "seed": 5}
    chunks = streamed(client, CHAT, **body, stream_options={"include_usage": True})
    first, *middle, end, usage = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in middle)
    assert text == content_of(post(client, CHAT, **body))
    assert end["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 12
    assert usage["timings"]["predicted_n"] == 12
    assert [chunk for chunk in chunks if "timings" in chunk] == [usage]  # Open WebUI adds up the figures of chunks


def test_n_samples_and_several_prompts_are_choices(client: httpx2.Client) -> None:
    answer = post(client, TEXT, prompt=["def f(", "import "], n=2, max_tokens=5, seed=1)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    one = post(client, TEXT, prompt="import ", max_tokens=5, seed=1)
    assert one["choices"][0]["text"] == answer["choices"][2]["text"]
    assert answer["usage"]["completion_tokens"] == 20
    parts = streamed(client, TEXT, prompt=["def f(", "import "], n=2, max_tokens=5, seed=1)
    texts = ["", "", "", ""]
    for part in parts:
        texts[part["choices"][0]["index"]] += part["choices"][0]["text"]
    assert texts == [choice["text"] for choice in answer["choices"]]


def test_logprobs_are_those_of_every_token_also_in_a_stream(client: httpx2.Client) -> None:
    body = {"messages": HELLO, "max_tokens": 10, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    whole = post(client, CHAT, **body)["choices"][0]["logprobs"]["content"]
    assert len(whole) == 10
    assert all(len(token["top_logprobs"]) == 2 and token["logprob"] <= 0 for token in whole)
    chunks = streamed(client, CHAT, **body)
    parts = [token for c in chunks for token in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert parts == whole
    columns = post(client, TEXT, prompt="def f(", max_tokens=6, logprobs=1, seed=1)["choices"][0]
    assert "".join(columns["logprobs"]["tokens"]) == columns["text"]


def test_a_schema_and_a_stop_string_are_obeyed(client: httpx2.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    assert json.loads(content_of(post(client, CHAT, messages=HELLO, response_format=wanted, max_tokens=60))) == {
        "a": "x"
    }
    text = post(client, TEXT, prompt="def f(", max_tokens=20, temperature=0)["choices"][0]["text"]
    stop = text[4:7]
    cut = post(client, TEXT, prompt="def f(", max_tokens=20, temperature=0, stop=[stop])["choices"][0]
    assert cut["text"] == text[: text.index(stop)]
    assert cut["finish_reason"] == "stop"
    assert post(client, TEXT, prompt="def f(", regex="ab|cd", seed=1)["choices"][0]["text"] in ("ab", "cd")


def test_the_same_request_alone_and_among_seven_others_gives_the_same_text(server: Serving) -> None:
    body = {"messages": HELLO, "max_tokens": 24, "seed": 11, "temperature": 1.0}

    def ask(number: int) -> str:
        with server.client() as client:
            other = {"messages": [{"role": "user", "content": f"Count to {number}" * number}], "max_tokens": 40}
            return content_of(post(client, CHAT, **(other if number else body)))

    alone = ask(0)
    with ThreadPoolExecutor(8) as threads:
        texts = list(threads.map(ask, [1, 2, 3, 0, 4, 5, 6, 7]))
    assert texts[3] == alone


# --- what cannot be honoured ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 7}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 10_000}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"grammar": "root ::= 1", "json_schema": {}}, "grammar"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"mirostat": 2}, "mirostat"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"spec_type": "lookup"}, "spec_type"),
        ({"spec_type": "sufix"}, "spec_type"),
        ({"spec_type": ["suffix"]}, "spec_type"),
        ({"pace": "fast"}, "pace"),
        ({"pace": "fixed:" + "9" * 5000}, "pace"),
        ({"pace": "fixed:40"}, "pace"),
        ({"pace": "fixed:4", "draft_n_max": 3}, "pace"),
        ({"draft_n_max": -1}, "draft_n_max"),
        ({"draft_n_max": 40}, "draft_n_max"),
        ({"draft_n_max": "many"}, "draft_n_max"),
        ({"verify": "hope"}, "verify"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_named(client: httpx2.Client, body: dict[str, Any], param: str) -> None:
    error = refused(client, CHAT, **({"messages": HELLO} | body))
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/messages", "/v1/responses"])
def test_every_endpoint_lets_a_request_say_how_to_draft(client: httpx2.Client, path: str) -> None:
    body: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "messages": HELLO}
    if path == TEXT:
        body["prompt"] = "import os\n"
    if path == "/v1/responses":
        body = {"temperature": 0, "max_output_tokens": 24, "input": "Hello"}
    plain = post(client, path, **body, spec_type="none")
    two = post(client, path, **body, spec_type="draft", pace="fixed:2", verify="block", strict=True)
    one = post(client, path, **body, spec_type="draft,suffix", pace="fixed:1", draft_n_max=1)
    assert plain["timings"]["draft_n"] == 0 < one["timings"]["draft_n"]
    assert len(one["timings"]["proposed_per_pos"]) == 1
    assert len(two["timings"]["proposed_per_pos"]) == 2
    assert {*two["timings"]["by_source"]} == {"draft"}
    texts = [json.dumps(answer.get("choices") or answer.get("content")) for answer in (plain, one, two)]
    if path == "/v1/responses":
        texts = [answer["output"][0]["content"][0]["text"] for answer in (plain, one, two)]
    assert texts[0] == texts[1] == texts[2]
    assert "verify" in client.post(path, json=body | {"verify": "hope"}).json()["error"]["message"]
    refusal = client.post(path, json=body | {"spec_type": "corpus", "stream": True})
    assert refusal.status_code == 400
    assert "spec_type: drafter corpus is not loaded: loaded: " in refusal.json()["error"]["message"]


def test_an_unknown_field_is_ignored_and_noted(server: Serving, client: httpx2.Client) -> None:
    post(client, CHAT, messages=HELLO, max_tokens=1, frobnicate=3)
    while not any("'frobnicate'" in str(record.get("notes")) for record in server.records):  # logged after the answer
        time.sleep(0.01)


def test_a_prompt_beyond_the_context_is_reported_in_both_styles(client: httpx2.Client) -> None:
    error = refused(client, CHAT, messages=[{"role": "user", "content": "one two three " * 2000}], stream=True)
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > error["n_ctx"] == 1024


def test_a_model_that_is_not_there_is_not_found(client: httpx2.Client) -> None:
    response = client.post(CHAT, json={"model": "/etc/passwd", "messages": HELLO})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


# --- other endpoints -------------------------------------------------------------------------------------------------


def test_tokens_templates_and_the_state_of_the_server(client: httpx2.Client) -> None:
    ids = post(client, "/tokenize", content="Hello world")["tokens"]
    assert post(client, "/detokenize", tokens=ids)["content"] == "Hello world"
    assert post(client, "/apply-template", messages=HELLO)["prompt"].startswith("<|im_start|>user\nHello")
    assert refused(client, "/detokenize", tokens=[10**9])["type"] == "invalid_request_error"
    assert client.get("/health").json() == {"status": "ok"}
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["demo"]
    assert client.get("/v1/models/demo").json()["id"] == "demo"
    assert client.get("/v1/models/other").status_code == 404
    assert client.get("/props").json()["total_slots"] == len(client.get("/slots").json()) == 4
    metrics = client.get("/metrics").text
    assert "llamacpp:tokens_predicted_total" in metrics
    assert "vllm:spec_decode_num_draft_tokens_total" in metrics
    assert "edgespec:prefix_cache_hits_total " in metrics and "edgespec:prefix_cache_limit_bytes" in metrics
    assert client.get("/nowhere").json()["error"]["type"] == "not_found_error"


def test_long_texts_are_read_during_answers(server: Serving, client: httpx2.Client) -> None:
    endless = {"prompt": "def f(", "ignore_eos": True, "max_tokens": 200, "stream": True}
    with client.stream("POST", TEXT, json=endless) as response, ThreadPoolExecutor(2) as threads:
        lines = response.iter_lines()
        next(lines)
        with server.client() as one, server.client() as another:
            ids = threads.submit(post, one, "/tokenize", content="x" * 100_000)
            refusal = threads.submit(another.post, TEXT, json={"prompt": "x" * 200_000})
            n_meanwhile = sum(1 for line in lines if line and not (ids.done() and refusal.done()))
            assert len(ids.result()["tokens"]) == 25_000
            assert refusal.result().json()["error"]["code"] == "context_length_exceeded"
        assert n_meanwhile > 20
    assert refused(client, "/tokenize", content="x" * 2_000_000)["param"] == "content"


# --- clients that leave, queues, and workers that die -----------------------------------------------------------------


def wait_until_free(server: Serving) -> None:
    """Until no answer is open, and no slot is busy."""
    with server.client() as client:
        while server.served.n_open or any(slot["is_processing"] for slot in client.get("/slots").json()):
            time.sleep(0.02)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(server: Serving, stream: bool) -> None:
    body = json.dumps(ENDLESS_BODY | {"stream": stream, "n": 16}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as sock:
        head = f"POST {TEXT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        if stream:
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        while not server.served.n_open:
            time.sleep(0.01)
    wait_until_free(server)
    with server.client() as client:
        assert post(client, TEXT, prompt="def f(", max_tokens=2)["usage"]["completion_tokens"] == 2


def test_a_full_queue_says_when_to_come_back(server: Serving, client: httpx2.Client) -> None:
    with client.stream("POST", TEXT, json=ENDLESS_BODY | {"n": 24}) as response:
        lines = response.iter_lines()
        next(lines)
        with server.client() as other:
            refusal = other.post(TEXT, json={"prompt": "x", "max_tokens": 1})
        assert refusal.status_code == 503
        assert refusal.headers["retry-after"]
        assert refusal.json()["error"]["code"] == "queue_full"
    wait_until_free(server)


def test_a_worker_that_dies_fails_its_answers_and_is_started_again(server: Serving, client: httpx2.Client) -> None:
    with client.stream("POST", TEXT, json=ENDLESS_BODY | {"n": 16}) as response:
        lines = response.iter_lines()
        next(lines)
        pid = server.served.worker.loop.process.pid
        assert pid is not None
        if os.name == "posix":
            os.kill(pid, signal.SIGKILL)
        else:
            psutil.Process(pid).kill()
        said = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert said[-1]["error"]["code"] == "engine_error"
    assert post(client, TEXT, prompt="def f(", max_tokens=2)["usage"]["completion_tokens"] == 2
    assert any("restarting" in note for note in server.notes)
