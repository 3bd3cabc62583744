"""Schemas and calls that an answer must have apply after its reasoning, with and without drafts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from answers import ended_early
from tiny_gguf import write_model

import edgespec
from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.errors import UsageError
from edgespec.runtime.runtime import Runtime
from edgespec.runtime.worker import Worker
from edgespec.settings import LoadSettings, Message, Request

pytestmark = pytest.mark.native

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "maximum": 999}},
    "required": ["ok", "n"],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
TALK = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ tools[0].function.name if tools else '' }}"
CALL = "{% if m.tool_calls %}<tool_call>{% endif %}"
TEMPLATES = {
    "opened": TALK + "[assistant]{{ '<think>\n' }}",
    "closed": TALK + "[assistant]{{ '<think>\n\n</think>\n\n' }}",
    "by the model": TALK + "{# <think> #}[assistant]",
    "without reasoning": TALK + "[assistant]",
    "gemma 4": TALK + "{# <|channel> #}[assistant]{{ '<|channel>thought\n' }}",
    "harmony": TALK + "{# <|channel|> #}<|start|>assistant",
    "harmony, opened": TALK + "<|start|>assistant<|channel|>analysis<|message|>",
    "functionary": TALK + "{# >>>all #}>>>",
}


@pytest.fixture(scope="module", params=TEMPLATES)
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Runtime]]:
    file = write_model(tmp_path_factory.mktemp("x") / "tiny.gguf", "llama", chat_template=TEMPLATES[request.param])
    how: dict[str, Any] = {"spec_type": "suffix,grammar", "pace": "fixed:3", "store": False, "threads": 1}
    with edgespec.load(str(file), **how) as runtime:
        yield request.param, runtime


def answers(llm: Runtime, request: Request) -> tuple[str, str]:
    """The text of an answer, the same with its marks, both equal without drafts."""
    texts = []
    for raw in (False, True):
        found = []
        for spec_type in (None, "none"):
            *events, last = llm.submit(Request(**{**fields(request), "raw_marks": raw, "spec_type": spec_type}))
            assert isinstance(last.stats, Stats)
            found.append(("".join(event.text for event in [*events, last]), [event.id for event in events]))
        assert found[0] == found[1]
        texts.append(found[0][0])
    return texts[0], texts[1]


def fields(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in Request.__dataclass_fields__}


def asked(seed: int, **more: Any) -> Request:
    return Request(messages=(Message("user", "Hi"),), max_tokens=200, seed=seed, reasoning_budget=9, **more)


@pytest.mark.parametrize("seed", range(3))
def test_a_schema_holds_after_reasoning(llm: tuple[str, Runtime], seed: int) -> None:
    name, runtime = llm
    text, raw = answers(runtime, asked(seed, json_schema=json.dumps(SCHEMA)))
    assert json.loads(text).keys() == {"ok", "n"}
    reasons = raw.partition("{")[0].strip()
    if name in ("opened", "gemma 4", "harmony, opened"):
        assert reasons
    if name in ("closed", "without reasoning"):
        assert text == raw


@pytest.mark.parametrize("seed", range(3))
def test_a_call_that_is_required_follows_reasoning(llm: tuple[str, Runtime], seed: int) -> None:
    template = json.dumps({"tools": TOOLS})
    text, raw = answers(llm[1], asked(seed, must_call=("weather",), template=template))
    assert "weather" in text
    assert "Rome" in text or "Oslo" in text, raw


def test_an_answer_that_has_begun_is_continued(llm: tuple[str, Runtime]) -> None:
    name, runtime = llm
    thought = "<think>\nhm\n</think>\n\n"
    for begun in ("{", '{"ok": ', f'{thought}{{"ok": '):
        if thought in begun and name in ("closed", "by the model", "without reasoning"):
            continue  # these begin with a mark that the prompt does not open
        talk = (Message("user", "Hi"), Message("assistant", begun))
        text, _ = answers(runtime, Request(**{**fields(asked(1, json_schema=json.dumps(SCHEMA))), "messages": talk}))
        assert json.loads(begun.removeprefix(thought) + text).keys() == {"ok", "n"}


@pytest.mark.parametrize("kind", ["runtime", "worker"])
def test_reasoning_ends_when_the_reader_wants_it_to(kind: str, tmp_path: Path) -> None:
    file = write_model(tmp_path / "tiny.gguf", "llama", chat_template=TEMPLATES["harmony, opened"])
    settings = LoadSettings(str(file), threads=1, store=False, spec_type="suffix", pace="fixed:3")
    with Runtime(settings) if kind == "runtime" else Worker(settings) as llm:
        request = Request(messages=(Message("user", "Hi"),), max_tokens=400, seed=2, ignore_eos=True)
        text = ended_early(llm, request, 20)
    thought, mark, rest = text.partition("\n</think>\n\n")
    assert thought.startswith("<think>\n")
    assert mark and rest


def test_reasoning_that_was_stopped_ends_when_the_answer_is_continued(tmp_path: Path) -> None:
    file = write_model(tmp_path / "tiny.gguf", "llama", chat_template=TEMPLATES["opened"])
    with edgespec.load(str(file), threads=1, store=False) as llm:
        begun = (Message("user", "Hi"), Message("assistant", "<think>\nhm hm hm hm"))
        request = Request(messages=begun, max_tokens=60, seed=2, reasoning_budget=0)
        assert "".join(event.text for event in llm.submit(request)).startswith("\n</think>\n\n")
        cancel = CancelFlag()
        cancel.end_reasoning()
        texts = [event.text for event in llm.submit(Request(messages=begun, max_tokens=60, seed=2), cancel)]
        assert "</think>" in "".join(texts)[:20]


@pytest.mark.parametrize("name", ["by the model", "without reasoning"])
def test_a_mark_in_a_message_opens_no_reasoning(name: str, tmp_path: Path) -> None:
    file = write_model(tmp_path / "tiny.gguf", "llama", chat_template=TEMPLATES[name])
    with edgespec.load(str(file), threads=1, store=False) as llm:
        talk = (Message("user", "What does <think> mean?"),)
        how: dict[str, Any] = {"messages": talk, "max_tokens": 30, "seed": 1}
        free = "".join(event.text for event in llm.submit(Request(**how)))
        assert free == "".join(event.text for event in llm.submit(Request(**how, raw_marks=True)))
        assert free == "".join(event.text for event in llm.submit(Request(**how, reasoning_budget=3)))
        schema = json.dumps(SCHEMA)
        text = "".join(event.text for event in llm.submit(Request(**how | {"max_tokens": 200}, json_schema=schema)))
        assert json.loads(text).keys() == {"ok", "n"}


def test_a_tool_that_does_not_exist_cannot_be_called(tmp_path: Path) -> None:
    file = write_model(tmp_path / "tiny.gguf", "llama", chat_template=TEMPLATES["opened"])
    with edgespec.load(str(file), threads=1, store=False) as llm, pytest.raises(UsageError, match="no tool zz"):
        llm.complete([{"role": "user", "content": "Hi"}], must_call=("zz",), template=json.dumps({"tools": TOOLS}))
