"""Drafts change no text: images, documents, tools and adapters in the requests of all formats."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from made_documents import pdf
from serving import Serving, serving
from tiny_gguf import FILL
from tiny_lora import write_adapter
from tiny_projector import picture, write_seeing

from edgespec.files.images import data_url
from edgespec.runtime.worker import Worker
from edgespec.settings import LoadSettings

pytestmark = [pytest.mark.native, pytest.mark.cli]

TEMPLATE = (
    "{% if tools %}[{% for t in tools %}{{ t | tojson }}{% endfor %}]{% endif %}{% for m in messages %}<|{{ m.role }}|>"
    "{{ m.content }}{% if m.tool_calls %}<tool_call>{{ m.tool_calls[0].function | tojson }}{% endif %}{% endfor %}"
)
N = 40
TEXT = "def walk(top):\n    for name in names:\n        yield name\n" * 3
PNG, PDF = picture(1), pdf("one two three", "one two three four")
IMAGE, PAGES = b64encode(PNG).decode(), b64encode(PDF).decode()
DOCUMENT = f"data:application/pdf;base64,{PAGES}"
SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": TEXT}]}]


CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Rome"}'}}
CALLED: list[dict[str, Any]] = [
    *user(),
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
]
BASE64 = {"type": "base64", "media_type": "image/png", "data": IMAGE}
PDF_SOURCE = {"type": "base64", "media_type": "application/pdf", "data": PAGES}
USED = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"place": "Rome"}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}
TOOL_CALLED = [{"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"place": "Rome"}'}]
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}


def inputs(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "message", "role": "user", "content": [*parts, {"type": "input_text", "text": TEXT}]}]


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": user()}),
    ("/v1/chat/completions", {"messages": user({"type": "image_url", "image_url": {"url": data_url(PNG)}})}),
    ("/v1/chat/completions", {"messages": user({"type": "file", "file": {"file_data": DOCUMENT}})}),
    ("/v1/chat/completions", {"messages": CALLED, "tools": [TOOL]}),
    ("/v1/chat/completions", {"messages": user(), "tools": [TOOL], "tool_choice": "required"}),
    ("/v1/responses", {"input": inputs({"type": "input_image", "image_url": data_url(PNG)})}),
    ("/v1/responses", {"input": inputs({"type": "input_file", "file_data": DOCUMENT})}),
    (
        "/v1/responses",
        {"input": [*inputs(), *TOOL_CALLED, OUTPUT], "tools": [{"type": "function", "name": "weather"}]},
    ),
    ("/v1/messages", {"messages": user({"type": "image", "source": BASE64})}),
    ("/v1/messages", {"messages": user({"type": "document", "source": PDF_SOURCE})}),
    (
        "/v1/messages",
        {
            "messages": [
                *user(),
                {"role": "assistant", "content": [USED]},
                {"role": "user", "content": [RESULT]},
            ],
            "tools": [{"name": "weather", "input_schema": SCHEMA}],
        },
    ),
    ("/api/chat", {"messages": [{"role": "user", "content": TEXT, "images": [IMAGE]}]}),
    ("/api/chat", {"messages": [{"role": "user", "content": TEXT}], "tools": [TOOL]}),
    ("/api/generate", {"prompt": TEXT, "images": [IMAGE]}),
    ("/api/generate", {"prompt": TEXT, "raw": True}),
    ("/v1/completions", {"prompt": TEXT}),
    ("/completion", {"prompt": TEXT}),
    ("/infill", {"input_prefix": TEXT, "input_suffix": "\n"}),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A model that can do all of this, with an adapter."""
    folder = tmp_path_factory.mktemp("all")
    file = write_seeing(folder, "llama", chat_template=TEMPLATE, metadata=FILL)
    adapter = f"{write_adapter(folder / 'one.gguf', file)}=0"
    settings = LoadSettings(str(file), threads=1, sequences=2, store=False, lora=(adapter,), pace="fixed:4")
    with Worker(settings) as worker, serving(worker) as found:
        yield found


def answer(server: Serving, path: str, body: dict[str, Any], **how: Any) -> Any:
    """Return what a client shows: the texts and the calls in a response."""
    limits = {"/v1/responses": "max_output_tokens", "/api/chat": "num_predict", "/api/generate": "num_predict"}
    how |= {limits.get(path, "max_tokens"): N, "seed": 3}
    if path.startswith("/api/"):
        how = {"options": how, "stream": False}
    return shown(server.posted(path, body | how))


def n_accepted(server: Serving) -> float:
    with server.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith("vllm:spec_decode_num_accepted_tokens_total")
    )


def shown(value: Any) -> Any:
    """Return the texts of a response without ids, times and counts."""
    if isinstance(value, list):
        return [shown(each) for each in value]
    if isinstance(value, dict):
        names = ("choices", "message", "content", "text", "tool_calls", "function", "name", "arguments", "output")
        return {name: shown(each) for name, each in value.items() if name in (*names, "response", "thinking", "input")}
    return value


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("model", ["demo", "demo:one"])
def test_drafts_change_no_text(server: Serving, temperature: float, model: str) -> None:
    before = n_accepted(server)
    for path, body in REQUESTS:
        asked = body | {"model": model}
        n = n_accepted(server)
        plain = answer(server, path, asked, temperature=temperature, spec_type="none")
        assert (path, n_accepted(server)) == (path, n)
        assert (path, body, plain) == (path, body, answer(server, path, asked, temperature=temperature))
    assert n_accepted(server) > before
