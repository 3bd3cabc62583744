"""The server uses the template for tools, or the one that it was started with, and adapts what a template refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Serving, posted, serving
from tiny_gguf import write_model

from edgespec.runtime.worker import Worker
from edgespec.settings import LoadSettings

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "weigh", "parameters": {"type": "object"}}}
ASKED = {"role": "user", "content": "a"}
PLAIN = (
    "plain{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('not this') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
TOOL_USE = (
    "with {{ tools[0].function.name }}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[[{{ c.function | tojson }}]]{% endfor %}{% endfor %}"
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = {"tokenizer.chat_template.tool_use": TOOL_USE}
    folder = tmp_path_factory.mktemp("named")
    return write_model(folder / "m.gguf", "llama", chat_template=PLAIN, metadata=named)


@pytest.fixture(scope="module")
def named(file: Path) -> Iterator[Serving]:
    with Worker(LoadSettings(str(file), threads=1, store=False)) as worker, serving(worker) as found:
        yield found


def prompt(server: Serving, **body: Any) -> str:
    return str(posted(server, "/apply-template", messages=[ASKED], **body)["prompt"])


def test_requests_with_tools_use_the_template_for_tools(named: Serving) -> None:
    assert prompt(named) == "plain<user>a"
    assert prompt(named, tools=[TOOL]) == "with weigh<user>a"
    with named.client() as client:
        props = client.get("/props").json()
    assert (props["chat_template"], props["chat_template_tool_use"]) == (PLAIN, TOOL_USE)


def test_calls_are_read_as_the_template_for_tools_writes_them(named: Serving) -> None:
    calls = named.served.dialect(has_tools=True).calls
    assert calls is not None and "[[" in calls.section[0] + calls.call[0]
    assert calls != named.served.dialect(has_tools=False).calls


def test_a_template_of_the_settings_replaces_both(file: Path) -> None:
    (file.parent / "own.jinja").write_text("own{{ messages[0].content }}", encoding="utf-8")
    settings = LoadSettings(str(file), chat_template_file=str(file.parent / "own.jinja"), threads=1, store=False)
    with Worker(settings) as worker, serving(worker) as found:
        assert prompt(found) == "owna"
        assert "weigh" in prompt(found, tools=[TOOL]), "as text, since this template has no tools"
        with found.client() as client:
            props = client.get("/props").json()
            shown = client.post("/api/show", json={"model": found.name}).json()
        assert props["chat_template"] == shown["template"] == "own{{ messages[0].content }}"
        assert "chat_template_tool_use" not in props
        assert "chat template" in props["edgespec"]["texts_depend_on"]


def test_what_a_template_refuses_in_any_form_is_an_error(named: Serving) -> None:
    """ChatML in its place would be a format that the model may not know."""
    messages = [ASKED, {"role": "assistant", "content": "bad"}, ASKED]
    assert posted(named, CHAT, messages=messages, tools=[TOOL], max_tokens=1)["choices"]
    error = posted(named, CHAT, 400, messages=messages, max_tokens=1)["error"]
    assert error["message"].startswith(
        "the model's chat template rejects message 2 of 3, which has the role assistant: not this"
    )
