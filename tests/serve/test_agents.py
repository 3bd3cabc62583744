"""Requests of coding agents and of Open WebUI, recorded in the middle of a task, with their long texts shortened to
"..."."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from serving import Serving

pytestmark = [pytest.mark.native, pytest.mark.cli]
RECORDED: list[dict[str, Any]] = [
    recorded
    for name in ("agents.json", "open_webui.json")
    for recorded in json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
]
END = re.compile(r'data: (\[DONE\]|{"type":"(message_stop|response\.(completed|incomplete))".*})|{.*"done":true,.*}')


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: f"{recorded['agent']}, {recorded['path']}")
def test_a_recorded_request_has_the_same_text_streamed_and_whole(server: Serving, recorded: dict[str, Any]) -> None:
    path = recorded["path"]
    with server.client(headers=recorded["headers"]) as client:
        streamed = client.post(path, json=limited(recorded) | {"stream": True})
        undrafted = limited(recorded, spec_type="none") | {"stream": False, "stream_options": None}
        plain = client.post(path, json=undrafted)
    assert (streamed.status_code, plain.status_code) == (200, 200), streamed.text + plain.text
    lines = streamed.text.rstrip().splitlines()
    assert END.fullmatch(lines[-1])
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith(("data: {", "{"))]
    text = said(path, plain.json())
    assert "".join(said(path, event) for event in events) == text != ""


def limited(recorded: dict[str, Any], **how: Any) -> dict[str, Any]:
    """The body, for an answer of few tokens."""
    path: str = recorded["path"]
    body: dict[str, Any] = recorded["body"]
    how["seed"] = 1
    if path == "/api/chat":
        return body | {"options": body.get("options", {}) | how | {"num_predict": 6}}
    return body | how | {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 6}


def said(path: str, answer: dict[str, Any]) -> str:
    """The text of an answer, or of one event of a stream."""
    match path:
        case "/api/chat":
            return str(answer["message"]["content"])
        case "/v1/chat/completions":
            messages = [choice.get("message") or choice["delta"] for choice in answer["choices"]]
            return "".join(message.get("content") or "" for message in messages)
        case "/v1/responses" if "output" in answer:
            return "".join(part["text"] for item in answer["output"] for part in item["content"])
        case "/v1/responses":
            return str(answer["delta"]) if answer["type"] == "response.output_text.delta" else ""
    parts = answer["content"] if "content" in answer else [answer.get("delta", {})]
    return "".join(part.get("text", "") for part in parts)


def test_anthropics_system_messages_can_come_later(server: Serving) -> None:
    talk = [{"role": "user", "content": "Hello"}, {"role": "system", "content": "The file has changed."}]
    with server.client() as client:
        counts = [
            client.post("/v1/messages/count_tokens", json={"messages": messages}).json()["input_tokens"]
            for messages in (talk[:1], talk)
        ]
    assert counts[1] > counts[0] + 4
