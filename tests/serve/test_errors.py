"""Errors in the words and the format of each client: overflows, fields by their names, streams that fail."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import weakref
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from serving import Serving

from edgespec.errors import GenerationError, PromptTooLongError
from edgespec.requests.bad_input import BadInputError, object_in
from edgespec.serve import app, native
from edgespec.serve.errors import ApiError, anthropic_body, error_for, sent_as
from edgespec.serve.openai import ChatObject
from edgespec.serve.sse import EventStream, error_response

CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
HELLO = [{"role": "user", "content": "Hello"}]
LONG = "one two " * 3000
pytestmark = [pytest.mark.native, pytest.mark.cli]


def refused(server: Serving, path: str, body: dict[str, Any]) -> dict[str, Any]:
    with server.client() as client:
        response = client.post(path, json=body)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


# --- a prompt that is too long ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": LONG}], "stream": True}, "messages"),
        (TEXT, {"prompt": LONG}, "prompt"),
        (RESPONSES, {"input": LONG}, "input"),
        ("/completion", {"prompt": LONG}, "prompt"),
    ],
)
def test_an_overflow_is_reported_in_the_words_that_agents_look_for(
    server: Serving, path: str, body: dict[str, Any], param: str
) -> None:
    error = refused(server, path, body)
    assert (error["code"], error["param"], error["n_ctx"]) == ("context_length_exceeded", param, 1024)
    assert error["message"] == (
        f"This model's maximum context length is 1024 tokens. However, your {param} resulted in"
        f" {error['n_prompt_tokens']} tokens. Please reduce the length of the {param}."
    )


def test_an_overflow_of_messages_is_reported_in_anthropics_words(server: Serving) -> None:
    error = refused(server, MESSAGES, {"messages": [{"role": "user", "content": LONG}], "max_tokens": 2})
    assert error["type"] == "invalid_request_error"
    assert error["message"] == f"prompt is too long: {error['n_prompt_tokens']} tokens > 1024 maximum"


@pytest.mark.parametrize(
    "said", ["the prompt has 1,234,567 characters, more than fit into 64 tokens", "it is too long"]
)
def test_an_overflow_whose_tokens_were_not_counted_is_one_too(said: str) -> None:
    error = error_for(PromptTooLongError(said))
    assert error.code == "context_length_exceeded"
    assert error.message.startswith("This model's maximum context length is ")
    assert "n_prompt_tokens" not in error.more
    message = object_in(anthropic_body(error)["error"])["message"]
    assert str(message).startswith("prompt is too long: ")


# --- fields by the names that were sent -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (RESPONSES, {"input": [HELLO[0], {"role": "user", "content": 3}]}, "input[1].content"),
        (RESPONSES, {"input": [{"role": "judge", "content": "x"}]}, "input[0].role"),
        (RESPONSES, {"input": "x", "instructions": 3}, "instructions"),
        (RESPONSES, {"input": [{"type": "reasoning"}, {"type": "function_call", "name": 3}]}, "input[1].name"),
        (RESPONSES, {"input": [{"type": "function_call_output", "call_id": 3, "output": "x"}]}, "input[0].call_id"),
        (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "a", "output": 3}]}, "input[0].output"),
        (RESPONSES, {"input": "x", "max_output_tokens": "3"}, "max_output_tokens"),
        (RESPONSES, {"input": "x", "text": {"format": {"type": "yaml"}}}, "text.format"),
        (CHAT, {"messages": HELLO, "max_completion_tokens": "3"}, "max_completion_tokens"),
        (CHAT, {"messages": HELLO, "max_tokens": "3"}, "max_tokens"),
        (TEXT, {"prompt": 3}, "prompt"),
        ("/completion", {"prompt": "x", "n_predict": "3"}, "n_predict"),
        ("/completion", {"prompt": "x", "n_cmpl": 0}, "n_cmpl"),
    ],
)
def test_an_error_names_the_field_that_was_sent(server: Serving, path: str, body: dict[str, Any], param: str) -> None:
    error = refused(server, path, body)
    assert error["param"] == param
    assert re.match(rf"{re.escape(param)}(?!\w)", error["message"])


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"stop_sequences": 3}, "stop_sequences"),
        (
            {"messages": [HELLO[0], {"role": "user", "content": [{"type": "tool_result", "tool_use_id": 3}]}]},
            "messages[1].content[0].tool_use_id",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "text", "text": "x"}, {"type": "tool_use"}]}]},
            "messages[0].content[1]",
        ),
        ({"messages": HELLO, "system": 3}, "system"),
    ],
)
def test_an_error_of_messages_names_the_field_that_was_sent(server: Serving, body: dict[str, Any], named: str) -> None:
    assert refused(server, MESSAGES, {"messages": HELLO, "max_tokens": 2} | body)["message"].startswith(f"{named} ")


def test_the_longest_name_counts() -> None:
    names = {"tools[].function": "tools[]", "messages": "prompt", "messages[1].content": "text"}
    for read, sent in (
        ("messages[1].content", "text"),
        ("messages[12]", "prompt[12]"),
        ("tools[31].function.name", "tools[31].name"),
        ("messages_of", "messages_of"),
    ):
        with pytest.raises(ApiError) as error, sent_as(names):
            raise ApiError(400, f"{read} must not be {read}s", param=read)
        assert (error.value.param, error.value.message) == (sent, f"{sent} must not be {read}s")


def test_an_error_keeps_no_body_in_memory_until_the_next_garbage_collection() -> None:
    def fail() -> weakref.ref[set[int]]:
        body = {1}  # weak references can refer to a set
        try:
            with sent_as({"a": "b"}):
                raise BadInputError("a must be a number", "a")
        except ApiError as error:
            error_response(error, {"path": "/"})
        return weakref.ref(body)

    gc.disable()
    try:
        assert fail()() is None
    finally:
        gc.enable()


# --- stop strings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["", [""], [], None])
def test_an_empty_stop_string_stops_nothing(server: Serving, stop: Any) -> None:
    body = {"max_tokens": 3, "seed": 1}
    with server.client() as client:
        texts = [
            client.post(TEXT, json={"prompt": "def f(", "stop": given, **body}).json()["choices"][0]["text"]
            for given in (stop, ["\x00never"])
        ]
        response = client.post(MESSAGES, json={"messages": HELLO, "stop_sequences": stop or [""], **body})
    assert texts[0] == texts[1]
    assert response.status_code == 200


# --- paths and methods ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "allowed"),
    [
        ("GET", CHAT, 405, "invalid_request_error", "POST"),
        ("GET", MESSAGES, 405, "invalid_request_error", "POST"),
        ("DELETE", "/v1/models/demo", 405, "invalid_request_error", "GET, HEAD"),
        ("POST", "/health", 405, "invalid_request_error", "GET, HEAD"),
        ("GET", "/v1/unknown", 404, "not_found_error", None),
        ("POST", "/v1/audio/transcriptions", 404, "not_found_error", None),
        ("POST", "/v1/files/", 404, "not_found_error", None),
    ],
)
def test_a_path_or_a_method_that_does_not_exist_is_reported_before_the_body_is_read(
    server: Serving, method: str, path: str, status: int, kind: str, allowed: str | None
) -> None:
    with server.client() as client:
        files = {"file": ("a.wav", b"RIFF")} if method == "POST" else None
        response = client.request(method, path, files=files)
    error = response.json()["error"]
    assert (response.status_code, error["type"], response.headers.get("allow")) == (status, kind, allowed)
    if path != MESSAGES:
        assert error["code"] == ("method_not_allowed" if status == 405 else "unknown_url")


# --- defects of the server --------------------------------------------------------------------------------------------


def test_a_defect_is_an_error_in_the_format_of_the_client_that_pages_can_read(
    server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise ZeroDivisionError("defect")

    monkeypatch.setattr(native, "models", fail)
    monkeypatch.setattr(app.Server, "read", fail)
    with server.client(headers={"Origin": "http://page.example"}) as client:
        models = client.get("/v1/models")
        message = client.post(MESSAGES, json={"messages": HELLO, "max_tokens": 2})
        streamed = client.post(MESSAGES, json={"messages": HELLO, "max_tokens": 2, "stream": True})
    assert models.json()["error"]["message"] == "unexpected ZeroDivisionError"
    assert message.json() == streamed.json()
    assert message.json()["error"]["type"] == "api_error"
    for response in (models, message, streamed):
        assert response.status_code == 500
        assert response.headers["access-control-allow-origin"] == "http://page.example"
        assert response.headers["x-should-retry"] == "false"


# --- streams that fail ------------------------------------------------------------------------------------------------


def sent_by(stream: EventStream) -> tuple[int, str]:
    """The status and the body that a client gets."""
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(stream({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent).decode()


@pytest.mark.parametrize(
    "fails", [{"text": float("inf")}, ZeroDivisionError("x"), GenerationError("the model stopped")]
)
@pytest.mark.parametrize("n_before", [0, 2])
def test_a_stream_that_fails_ends_with_an_error(fails: Any, n_before: int) -> None:
    async def chunks() -> AsyncGenerator[dict[str, Any], None]:
        for number in range(n_before):
            yield {"number": number}
        if isinstance(fails, Exception):
            raise fails
        yield fails

    status, body = sent_by(EventStream(chunks(), ChatObject))
    assert status == (200 if n_before else 503 if isinstance(fails, GenerationError) else 500)
    *before, last = [line.removeprefix("data: ") for line in body.split("\n") if line not in ("", "data: [DONE]")]
    assert [json.loads(event)["number"] for event in before] == [*range(n_before)]
    assert json.loads(last)["error"]["type"] == "server_error"
