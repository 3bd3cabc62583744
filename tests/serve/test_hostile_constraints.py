"""Schemas and grammars that would crash or block the model: each format refuses them, and no other answer suffers."""

from __future__ import annotations

import json
import threading
from typing import Any

import hostile
import pytest
from serving import Serving

pytestmark = [pytest.mark.native, pytest.mark.cli]
DEEP = "it is nested too deeply, or its rules or definitions form too long a chain"
SCHEMA = json.loads(hostile.TOO_DEEP["references"][1])
MESSAGES = [{"role": "user", "content": "Hello"}]
FUNCTION = {"name": "f", "description": "", "parameters": SCHEMA}


DOORS: dict[str, tuple[str, dict[str, Any]]] = {
    "completions": ("/v1/completions", {"prompt": "x", "grammar": hostile.TOO_DEEP["rules"][1]}),
    "chat": (
        "/v1/chat/completions",
        {
            "messages": MESSAGES,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
        },
    ),
    "tools": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
    ),
    "responses": (
        "/v1/responses",
        {"input": "Hello", "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}},
    ),
    "messages": (
        "/v1/messages",
        {
            "messages": MESSAGES,
            "max_tokens": 4,
            "tools": [{"name": "f", "input_schema": SCHEMA}],
            "tool_choice": {"type": "any"},
        },
    ),
}


@pytest.mark.long(but=1)
@pytest.mark.parametrize("door", DOORS)
def test_every_format_refuses_it_and_the_worker_survives(server: Serving, door: str) -> None:
    path, body = DOORS[door]
    worker = server.served.worker
    with server.client() as client:
        refused = client.post(path, json={"model": "demo", **body})
        assert refused.status_code == 400, refused.text
        assert DEEP in refused.json()["error"]["message"]
        assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
    assert server.served.worker is worker
    assert worker.is_alive


@pytest.mark.long
def test_other_answers_and_figures_do_not_wait_while_it_is_compiled(server: Serving) -> None:
    body = {"prompt": "x", "max_tokens": 4, "json_schema": json.loads(hostile.ENDLESS)}
    said: list[Any] = []
    with server.client() as client:
        client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1, "regex": "a"})  # starts the compiler
        thread = threading.Thread(target=lambda: said.append(client.post("/v1/completions", json=body)))
        thread.start()
        with server.client() as other:
            while not other.get("/slots").is_success:
                pass
            assert other.get("/metrics").status_code == 200
            for _ in range(3):
                assert other.post("/v1/completions", json={"prompt": "y", "max_tokens": 2}).status_code == 200
        assert not said  # seconds of processor time are still to come
        thread.join()
    assert said[0].status_code == 400
    assert "compiling it takes longer than 2 s" in said[0].json()["error"]["message"]
