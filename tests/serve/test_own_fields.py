"""The fields that only edgespec's server has, with which another edgespec asks it as it would ask a worker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from serving import Serving, posted

from edgespec.events import TokenEvent
from edgespec.settings import Message, Request

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
pytestmark = pytest.mark.cli


@pytest.fixture
def client(server: Serving) -> Iterator[httpx2.Client]:
    with server.client() as opened:
        yield opened


def post(client: httpx2.Client, path: str, status: int = 200, **body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


def test_tokens_are_returned_with_what_is_known_of_them(server: Serving, client: httpx2.Client) -> None:
    asked = {"max_tokens": 20, "seed": 4, "return_tokens": True}
    events = [*server.served.worker.submit(Request("def f(", max_tokens=20, seed=4))]
    ids = [event.id for event in events if not event.is_last]
    whole = post(client, TEXT, prompt="def f(", **asked)["choices"][0]
    assert [token["id"] for token in whole["tokens"]] == ids
    assert "".join(token["text"] for token in whole["tokens"]) == whole["text"]
    assert (whole["logprobs"], whole["cut"]) == (None, "")
    with client.stream("POST", CHAT, json=asked | {"messages": HELLO, "stream": True, "logprobs": True}) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    chunks = [json.loads(line) for line in lines]
    tokens = [token for chunk in chunks for token in chunk.get("tokens", ())]
    assert len(tokens) == 20
    assert all({"id", "text", "round", "logprob"} <= token.keys() for token in tokens[-3:])
    assert [chunk["cut"] for chunk in chunks if "cut" in chunk] == [""]
    assert "tokens" not in post(client, TEXT, prompt="x", max_tokens=2)["choices"][0]


def test_events_are_the_same_on_the_other_side() -> None:
    plain = TokenEvent(7, "so")
    assert plain.as_json() == {"id": 7, "text": "so"}
    drafted = TokenEvent(
        8, "\x85", True, "draft", 3, 4, float("-inf"), ((9, -0.25), (10, float("-inf")))
    )  # fmt: skip
    for event in (plain, drafted):
        assert TokenEvent.from_json(json.loads(json.dumps(event.as_json(), allow_nan=False))) == event
    for odd in ({}, {"id": "x", "text": ""}, {"id": 1, "text": "", "top_logprobs": [1]}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            TokenEvent.from_json(odd)


def test_samples_and_what_was_left_out_are_part_of_a_request(server: Serving, client: httpx2.Client) -> None:
    worker = server.served.worker
    asked: dict[str, Any] = {"prompt": "def f(", "max_tokens": 12, "seed": 4, "temperature": 1.5}
    several = [choice["text"] for choice in post(client, TEXT, n=3, **asked)["choices"]]
    third = post(client, TEXT, sample=2, **asked)
    assert third["choices"][0]["text"] == several[2]
    assert third["usage"]["prompt_tokens"] == worker.prompt_length(Request("def f("))
    later = post(client, TEXT, left=100, **asked)["choices"][0]["text"]
    assert later != several[0]


def test_earlier_answers_may_be_ids(server: Serving, client: httpx2.Client) -> None:
    worker = server.served.worker
    ids = [72, 73, 74, 75]
    body: list[dict[str, Any]] = [
        *HELLO,
        {"role": "assistant", "content": "odd", "tokens": ids},
        {"role": "user", "content": "so?"},
    ]
    messages = (Message("user", "Hello"), Message("assistant", "odd", tuple(ids)), Message("user", "so?"))
    wanted = worker.prompt_length(Request(messages=messages, lenient=True))
    assert post(client, "/apply-template", messages=body, count=True) == {"n_tokens": wanted}
    assert post(client, CHAT, messages=body, max_tokens=1)["usage"]["prompt_tokens"] == wanted
    for odd, param in (("x", "messages[1].tokens"), ([1.5], "messages[1].tokens"), ([10**9], "messages")):
        body[1]["tokens"] = odd
        assert post(client, CHAT, 400, messages=body, max_tokens=1)["error"]["param"] == param
    users = [{"role": "user", "content": "Hello", "tokens": "not read"}]
    assert "prompt" in post(client, "/apply-template", messages=users)


def test_tokens_are_told_as_pieces_and_the_model_as_what_texts_depend_on(client: httpx2.Client) -> None:
    ids = post(client, "/tokenize", content="é😀 x", with_pieces=True)["tokens"]
    found = post(client, "/detokenize", tokens=[token["id"] for token in ids], with_pieces=True)
    assert found["pieces"] == [token["piece"] for token in ids]
    props = client.get("/props").json()
    assert props["edgespec"]["texts_depend_on"]["model"] == "target.gguf"
    assert props["edgespec"]["draft_model"] == "draft.gguf"
    assert "<|im_start|>" in props["chat_template"]


@pytest.mark.parametrize("field", ["sample", "left", "lenient", "return_tokens"])
def test_fields_of_the_wrong_kind_are_named(client: httpx2.Client, field: str) -> None:
    assert post(client, CHAT, 400, messages=HELLO, **{field: "x"})["error"]["param"] == field


def test_what_of_a_schema_is_ignored_is_noted_with_each_request(server: Serving, client: httpx2.Client) -> None:
    schema = {"type": "array", "items": {"enum": [1]}, "maxItems": 2, "uniqueItems": True}
    said = "JSON schema: uniqueItems at # is ignored: items may repeat"
    for _ in range(2):
        format = {"type": "json_schema", "json_schema": {"name": "ones", "schema": schema}}
        post(client, CHAT, messages=HELLO, max_tokens=9, response_format=format)
    while sum(said in record.get("notes", ()) for record in server.records) < 2:  # records follow the answers
        time.sleep(0.01)
    assert said in server.served.worker.notes


def test_a_request_without_a_seed_has_that_of_the_server(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    def seed(**more: Any) -> int:
        return int(posted(server, "/v1/completions", prompt="def f(", max_tokens=2, **more)["seed"])

    assert seed() != seed()
    monkeypatch.setattr(server.served, "seed", 11)
    assert [seed(), seed(), seed(seed=5)] == [11, 11, 5]
    assert seed(seed=-1) != 11  # asks for a random one
