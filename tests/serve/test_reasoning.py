"""Reasoning in answers of the server: before a schema and before a call that is required, and its end on request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from answers import ended_early
from serving import Serving, serving
from tiny_gguf import write_model

from edgespec.cancel import CancelFlag
from edgespec.remote.model import RemoteModel
from edgespec.runtime.worker import Worker
from edgespec.settings import LoadSettings, Message, Request

pytestmark = [pytest.mark.native, pytest.mark.cli]

CHAT, CONTROL = "/v1/chat/completions", "/v1/chat/completions/control"
TALK = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ tools[0].function.name if tools else '' }}"
TEMPLATES = {
    "think": TALK + "[assistant]{{ '<think>\n' }}",
    "gemma 4": TALK + "{# <|channel> #}[assistant]{{ '<|channel>thought\n' }}",
    "harmony": TALK + "<|start|>assistant<|channel|>analysis<|message|>",
}
ASKED = [{"role": "user", "content": "Hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
PLACE = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": PLACE}}]


@pytest.fixture(scope="module", params=TEMPLATES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("reasoning")
    file = write_model(folder / "tiny.gguf", "llama", chat_template=TEMPLATES[request.param])
    settings = LoadSettings(str(file), threads=1, store=False, spec_type="suffix,grammar", pace="fixed:3")
    with Worker(settings) as worker, serving(worker) as found:
        yield found


def message(server: Serving, **body: Any) -> dict[str, Any]:
    """The answer to a request, the same with and without drafts."""
    body = {"messages": ASKED, "max_tokens": 300, "seed": 3, "reasoning_budget": 12} | body
    ways: tuple[dict[str, Any], ...] = ({}, {"spec_type": "none"})
    answers = [server.posted(CHAT, body | how)["choices"][0]["message"] for how in ways]
    for answer in answers:
        for call in answer.get("tool_calls") or ():
            del call["id"]
    assert answers[0] == answers[1]
    return dict(answers[0])


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_schema_holds_after_reasoning(server: Serving, temperature: float) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    said = message(server, response_format=format, temperature=temperature)
    assert json.loads(said["content"]).keys() == {"ok"}
    assert said["reasoning_content"]


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_call_that_is_required_follows_reasoning(server: Serving, temperature: float) -> None:
    said = message(server, tools=TOOLS, tool_choice="required", temperature=temperature)
    assert said["reasoning_content"]
    assert [call["function"] for call in said["tool_calls"]] == [{"name": "weather", "arguments": '{"city": "Rome"}'}]
    assert not said["content"]


def test_reasoning_stays_in_the_text_if_the_client_wants_it(server: Serving) -> None:
    split, whole = message(server), message(server, reasoning_format="none")
    assert split["reasoning_content"]
    assert "reasoning_content" not in whole
    assert split["reasoning_content"].strip() in whole["content"]


def test_reasoning_can_be_ended(server: Serving) -> None:
    body = {"messages": ASKED, "max_tokens": 600, "seed": 3, "stream": True, "ignore_eos": True}
    reasoning = content = ""
    with server.client() as client, client.stream("POST", CHAT, json=body) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
            if not reasoning and delta.get("reasoning_content"):
                asked = {"id": chunk["id"], "action": "reasoning_end"}
                assert server.posted(CONTROL, asked) == {"success": True}
            reasoning += delta.get("reasoning_content") or ""
            content += delta.get("content") or ""
    assert reasoning
    assert content


def test_an_answer_that_is_over_has_no_reasoning_to_end(server: Serving) -> None:
    answer = server.posted(CONTROL, {"id": "chatcmpl-1", "action": "reasoning_end"})
    assert answer["success"] is False
    assert "chatcmpl-1" in answer["message"]
    assert server.posted(CONTROL, {"action": "reasoning_end"})["success"] is False
    assert server.posted(CONTROL, {"id": "x", "action": "stop"}, 400)["error"]["param"] == "action"


def test_clients_of_edgespec_get_common_marks_and_end_reasoning_too(server: Serving) -> None:
    with RemoteModel(server.url) as engine:
        asked = Request(messages=(Message("user", "Hi"),), max_tokens=600, seed=3, ignore_eos=True)
        text = ended_early(engine, asked, 5)
    thought, mark, rest = text.partition("\n</think>\n\n")
    assert thought.startswith("<think>\n")
    assert mark
    assert rest


def test_a_text_has_no_reasoning_to_end(tmp_path: Path) -> None:
    """A model without a template has no reasoning to end."""
    with Worker(LoadSettings(str(write_model(tmp_path / "m.gguf", "llama")), threads=1, store=False)) as worker:
        cancel = CancelFlag()
        cancel.end_reasoning()
        assert [*worker.submit(Request("x", max_tokens=3, seed=1), cancel)][-1].is_last
