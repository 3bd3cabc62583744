"""Requests of coding agents, recorded in the middle of a task, with their long texts shortened to "..."."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from serving import Serving

pytestmark = [pytest.mark.native, pytest.mark.cli]
RECORDED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("agents.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded["agent"])
def test_the_requests_of_an_agent_are_answered(server: Serving, recorded: dict[str, Any]) -> None:
    body = recorded["body"] | {"max_tokens": 6, "seed": 1}
    with server.client(headers=recorded["headers"]) as client:
        streamed = client.post(recorded["path"], json=body)
        plain = client.post(recorded["path"], json=body | {"stream": False, "stream_options": None, "pace": "off"})
    assert (streamed.status_code, plain.status_code) == (200, 200), streamed.text + plain.text
    assert streamed.text.rstrip().endswith(('data: {"type":"message_stop"}', "data: [DONE]"))
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    whole = plain.json()
    if "choices" in whole:
        parts = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
        assert "".join(parts) == whole["choices"][0]["message"]["content"]
    else:
        parts = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
        assert "".join(parts) == whole["content"][0]["text"]


def test_anthropics_system_messages_can_come_later(server: Serving) -> None:
    talk = [{"role": "user", "content": "Hello"}, {"role": "system", "content": "The file has changed."}]
    with server.client() as client:
        counts = [
            client.post("/v1/messages/count_tokens", json={"messages": messages}).json()["input_tokens"]
            for messages in (talk[:1], talk)
        ]
    assert counts[1] > counts[0] + 4
