"""Calls that an answer has begun fit the schemas of their tools."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tiny_gguf import write_model

import edgespec
from edgespec.dialects.by_name import FIREFUNCTION
from edgespec.dialects.calls import ToolCall, tool_schemas
from edgespec.dialects.dialect import HERMES, Calls, Dialect
from edgespec.dialects.reader import reader
from edgespec.dialects.starts import CallStarts
from edgespec.runtime.answer_form import AnswerForm
from edgespec.runtime.begun_calls import BegunCalls
from edgespec.runtime.prompts import Prompt
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Message, Request

pytestmark = pytest.mark.native

TALK = "{{ tools[0].function.name if tools else '' }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
CALLED = "{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}{{ WRITTEN }}{% else %}{{ m.content }}{% endif %}"
LLAMA = """'{"name": "' + f.name + '", "parameters": ' + (f.arguments | tojson) + '}'"""
TEMPLATES = {
    "hermes": TALK,
    "bare": TALK.replace("{{ m.content }}", CALLED.replace("WRITTEN", LLAMA)),
    "kimi k2": TALK + "{# <|tool_call_argument_begin|> #}",
    "gemma": TALK + "{# <|channel> #}",
    "python": TALK + "{# <|tool_list_start|> #}",
    "harmony": TALK + "{# <|channel|> #}<|start|>assistant",
    "functionary": TALK + "{# >>>all #}>>>",
}
BEGUN = {
    "hermes": "Well: <tool_call>",
    "bare": ' {"name":"weather"',
    "kimi k2": "Well: <|tool_calls_section_begin|>",
    "gemma": "Well: <|tool_call>call:",
    "python": "Well: <|tool_call_start|>[",
    "harmony": "<|channel|>commentary to=functions.weather<|channel|>commentary json<|message|>",
    "functionary": "weather\n",
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
REQUEST = Request(messages=(Message("user", "Hi"),), template=json.dumps({"tools": TOOLS}))


@pytest.fixture(autouse=True)
def special(monkeypatch: pytest.MonkeyPatch) -> None:
    """All marks count as special tokens, as in the vocabularies of these models."""
    made = lambda dialect, schemas, specials: CallStarts(dialect, schemas, dialect.marks)  # noqa: E731
    monkeypatch.setattr("edgespec.runtime.answer_form.CallStarts", made)


@pytest.fixture(scope="module", params=TEMPLATES)
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Runtime]]:
    file = write_model(tmp_path_factory.mktemp("x") / "tiny.gguf", "llama", chat_template=TEMPLATES[request.param])
    with edgespec.load(str(file), store=False, threads=1) as runtime:
        yield request.param, runtime


def constraint(runtime: Runtime, prompt: list[int], *, is_single: bool = False) -> BegunCalls:
    request = Request(messages=REQUEST.messages, template=REQUEST.template, parallel_calls=not is_single)
    compiled = runtime._compiled_calls(request, None)
    assert compiled is not None
    form = AnswerForm(runtime.prompts, runtime.model, request, Prompt(prompt, start=len(prompt)))
    return form.with_calls(None, partial(runtime.grammars.continued, *compiled))


def text_of(runtime: Runtime, tokens: list[int]) -> str:
    return b"".join(runtime.model.token_bytes(id, special=True) for id in tokens).decode("utf-8", "replace")


def walked(runtime: Runtime, begun: str, seed: int, **how: Any) -> tuple[list[int], list[int], BegunCalls]:
    """A prompt, an answer of random tokens after a beginning, and the constraint that allowed it."""
    prompt = runtime.prompts.of(REQUEST).tokens
    rng, calls = random.Random(seed), constraint(runtime, prompt, **how)
    answer = runtime.model.tokenize(begun, parse_special=True)
    for _ in range(160):
        allowed = calls.allowed(prompt + answer)
        choices = [*range(runtime.model.n_vocab)] if allowed is None else allowed.nonzero()[0].tolist()
        answer.append(rng.choice(choices))
        if runtime.model.is_end(answer[-1]):
            break
    return prompt, answer, calls


def calls_in(runtime: Runtime, prompt: list[int], answer: list[int]) -> list[ToolCall]:
    dialect = runtime.prompts.dialect(REQUEST).dialect
    opened = dialect.opened(text_of(runtime, prompt))
    found = reader(dialect, tool_schemas(TOOLS), opened=opened if dialect.messages is not None else None)
    ended = [id for id in answer if not runtime.model.is_end(id)]
    parts = [*found.push(text_of(runtime, ended)), *found.end()]
    return [part for part in parts if isinstance(part, ToolCall)]


@pytest.mark.parametrize("seed", range(3))
def test_a_call_that_has_begun_fits_its_schema(llm: tuple[str, Runtime], seed: int) -> None:
    name, runtime = llm
    prompt, answer, _ = walked(runtime, BEGUN[name], seed)
    calls = calls_in(runtime, prompt, answer)
    assert calls, text_of(runtime, answer)
    assert json.loads(calls[0].arguments)["city"] in ("Rome", "Oslo")


def test_an_answer_ends_after_its_only_call(llm: tuple[str, Runtime]) -> None:
    name, runtime = llm
    prompt, answer, _ = walked(runtime, BEGUN[name], 1, is_single=True)
    assert runtime.model.is_end(answer[-1])
    assert len(calls_in(runtime, prompt, answer)) == 1


def test_what_is_allowed_depends_on_the_tokens_alone(llm: tuple[str, Runtime]) -> None:
    name, runtime = llm
    prompt, answer, used = walked(runtime, BEGUN[name], 2)
    answer = answer + runtime.model.tokenize(BEGUN[name], parse_special=True)
    rng = random.Random(3)
    for _ in range(60):
        tokens = prompt + answer[: rng.randrange(len(answer) + 1)]
        here, there = used.allowed(tokens), constraint(runtime, prompt).allowed(tokens)
        assert (here is None, there is None) in ((True, True), (False, False))
        assert here is None or there is None or (here == there).all()


def test_other_texts_are_free(llm: tuple[str, Runtime]) -> None:
    name, runtime = llm
    prompt, calls = runtime.prompts.of(REQUEST).tokens, constraint(runtime, runtime.prompts.of(REQUEST).tokens)
    for text in ("Hello", '{"name": "rain"', "<tool_cal", "<|channel|>final<|message|>", "all\n", "[weather(", ""):
        assert calls.allowed(prompt + runtime.model.tokenize(text, parse_special=True)) is None, (name, text)


def test_a_schema_that_cannot_be_used_leaves_calls_free() -> None:
    broken = [
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"pattern": "("}}}},
        }
    ]
    with edgespec.load("demo", store=False, threads=1) as runtime:
        answer = runtime.complete(
            [{"role": "user", "content": "Hi"}], template=json.dumps({"tools": broken}), max_tokens=4
        )
        assert answer.text
        assert any("calls need not fit" in note for note in runtime.notes)


TAGGED = Calls("tagged", call=("<tool_call>\n<function=", "</function>\n</tool_call>"), name=("", ">"))


@pytest.mark.parametrize(
    ("dialect", "text", "begun"),
    [
        (FIREFUNCTION, "from functools import lru_cache", None),
        (FIREFUNCTION, 'functools [ {"name":"weather"', 'functools[{"name": "weather"'),
        (Dialect(calls=HERMES), "The mark <tool_call> begins", None),
        (Dialect(calls=HERMES), 'So:\n<tool_call>\n{"name" : "weather"', '<tool_call>{"name": "weather"'),
        (Dialect(calls=HERMES), '<tool_call>{"name": "other"', None),
        (Dialect(calls=TAGGED), "<tool_call>\n<function=", None),
        (Dialect(calls=TAGGED), "Well <tool_call>\n<function=weather>", "<tool_call>\n<function=weather>"),
        (Dialect(calls=TAGGED), "<function=weathers>", None),
    ],
)
def test_marks_that_are_text_begin_a_call_with_the_name_of_a_tool(
    dialect: Dialect, text: str, begun: str | None
) -> None:
    assert CallStarts(dialect, tool_schemas(TOOLS), ()).found(text, 1, is_whole=True) == begun
