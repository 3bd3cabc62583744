"""Conversations that a chat template refuses are adapted to it, without losing tools, calls or messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import edgespec
from edgespec.errors import UsageError
from edgespec.llama.template import ChatTemplate
from edgespec.requests.messages import chat_messages
from edgespec.runtime.adapting import one_call_each
from edgespec.runtime.prompts import Prompts
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Message, Request

TOOLS: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "weigh", "parameters": {"type": "object"}}}]
}
SYSTEM, USER, AGAIN = (
    {"role": role, "content": text} for role, text in (("system", "be"), ("user", "a"), ("user", "b"))
)
FORMAT = (
    "{% if tools %}[{{ tools[0].function.name }}]{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{call}{% endfor %}{% endfor %}"
)
SHOWN = "{{ c.function.name }}({{ c.function.arguments | tojson }})"

Rendered = Callable[..., str]


def asked(*names: str, ids: str = "call_{}", arguments: str = '{"n": 1}', text: str = "") -> dict[str, Any]:
    calls = [
        {"id": ids.format(n), "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, name in enumerate(names)
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def told(text: str, id: str = "call_0") -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": id}


def template(before: str = "", call: str = SHOWN) -> str:
    return before + FORMAT.replace("{call}", call)


def refusing(condition: str, why: str = "no") -> str:
    """A template that refuses messages of which one meets a condition."""
    return template(
        f"{{% for m in messages %}}{{% if {condition} %}}{{{{ raise_exception('{why}') }}}}{{% endif %}}{{% endfor %}}"
    )


@pytest.fixture(scope="module")
def llm() -> Iterator[Runtime]:
    with edgespec.load("demo", threads=1, spec_type="none") as made:
        yield made


class Rendering:
    """Renders conversations with a template; `notes` are those of the last one."""

    def __init__(self, llm: Runtime) -> None:
        self._model, self.notes = llm.model, list[str]()

    def __call__(self, source: str, *messages: dict[str, Any], lenient: bool = True, **arguments: Any) -> str:
        self.notes = []
        prompts = Prompts(self._model, ChatTemplate(self._model, source), 4096, self.notes.append)
        given = json.dumps(arguments) if arguments else ""
        request = Request(messages=chat_messages([*messages]), template=given, lenient=lenient)
        text = prompts.render(request)
        tokens = prompts.tokenized(request).tokens
        assert b"".join(self._model.token_bytes(id, special=True) for id in tokens).decode().endswith(text)
        return text


@pytest.fixture
def render(llm: Runtime) -> Rendering:
    return Rendering(llm)


def test_arguments_have_the_form_that_the_template_writes(render: Rendering) -> None:
    """Written as they are, objects would be those of Python."""
    as_given = template(call="{{ c.function.name }}({{ c.function.arguments }})")
    joined = template(call="{{ c.function.name + c.function.arguments }}")
    for source in (as_given, joined, template()):
        assert '{"n": 1}' in render(source, USER, asked("weigh"), told("7"), lenient=False, **TOOLS)
        assert not render.notes


@pytest.mark.parametrize("arguments", ['{"n": ', "[1]", "1"])
def test_arguments_that_are_no_object_become_one(render: Rendering, arguments: str) -> None:
    source = template(
        call="{{ c.function.name }}{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}"
    )
    made = render(source, USER, asked("weigh", arguments=arguments), told("7"), **TOOLS)
    assert f"weighinput={arguments}" in made
    assert "arguments of calls were put into objects" in render.notes[0]


def test_calls_and_their_results_get_ids_of_the_form_that_the_template_wants(render: Rendering) -> None:
    before = (
        "{% for m in messages %}{% set ids = (m.tool_calls or []) | map(attribute='id') | list %}"
        "{% for id in ids + [m.tool_call_id or '012345678'] %}{% if id | length != 9 %}"
        "{{ raise_exception('an id of nine characters, please') }}{% endif %}{% endfor %}"
        "{% if m.tool_call_id %}#{{ m.tool_call_id }}{% endif %}"
        "{% for id in ids %}@{{ id }}{% endfor %}{% endfor %}"
    )
    calls = asked("weigh", "count", ids="a-rather-long-id-{}")
    results = told("7", "a-rather-long-id-1"), told("8", "a-rather-long-id-0")
    shown = render(template(before), USER, calls, *results, **TOOLS)
    first, second = shown.partition("#")[0].strip("@").split("@")
    assert f"#{second}#{first}[weigh]" in shown
    assert first.isalnum() and len(first) == 9 and first != second
    assert shown == render(template(before), USER, calls, *results, **TOOLS), "cached prompts stay the same"
    assert not render.notes


@pytest.mark.parametrize(
    "source",
    [
        refusing("m.tool_calls and m.tool_calls | length > 1"),
        FORMAT.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]").replace("{call}", SHOWN),
    ],
)
def test_a_template_for_one_call_gets_one_in_each_message(render: Rendering, source: str) -> None:
    messages = (USER, asked("weigh", "count", text="hm"), told("7", "call_1"), told("8", "call_0"))
    made = render(source, *messages, lenient=False, **TOOLS)
    assert made == '[weigh]<user>a<assistant>hmweigh({"n": 1})<tool>8<assistant>count({"n": 1})<tool>7'


def test_a_call_without_a_result_does_not_get_that_of_another_call() -> None:
    calls: list[dict[str, Any]] = [{"id": id, "function": {"name": id, "arguments": {}}} for id in ("one", "two")]
    answer = Message("assistant", "", extra=json.dumps({"tool_calls": calls}))
    result = Message("tool", "of two", extra=json.dumps({"tool_call_id": "two"}))
    one, two, last = one_call_each([answer, result])
    assert json.loads(one.extra)["tool_calls"] == calls[:1]
    assert (json.loads(two.extra)["tool_calls"], last) == (calls[1:], result)
    nameless = Message("tool", "of one")
    assert one_call_each([answer, nameless])[1] == nameless  # without an id it belongs to the first call


def test_reasoning_stands_before_the_first_of_several_calls(render: Rendering) -> None:
    source = FORMAT.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]").replace("{call}", SHOWN)
    source = source.replace("{{ m.content }}", "({{ m.thinking }}){{ m.content }}")
    calls = asked("weigh", "count") | {"reasoning_content": "hm"}
    made = render(source, USER, calls, told("7", "call_0"), told("8", "call_1"), lenient=False, **TOOLS)
    assert made.count("(hm)") == 1
    assert '<assistant>(hm)weigh({"n": 1})' in made
    assert '<assistant>()count({"n": 1})' in made


def test_a_template_for_a_text_or_reasoning_before_calls_gets_both_as_reasoning(render: Rendering) -> None:
    """gpt-oss's template refuses both: calls and tools were described as text, in the whole chat."""
    source = refusing("m.tool_calls and m.content and m.thinking")
    source = source.replace("{{ m.content }}", "({{ m.thinking }}){{ m.content }}")
    called = asked("weigh", text="I will weigh it.") | {"reasoning_content": "hm"}
    made = render(source, USER, called, told("7"), **TOOLS)
    assert '<assistant>(hm\n\nI will weigh it.)weigh({"n": 1})<tool>()7' in made
    assert made.startswith("[weigh]")
    assert not render.notes


def test_calls_after_a_text_are_not_lost(render: Rendering) -> None:
    source = template().replace("c in m.tool_calls or []", "c in (not m.content and m.tool_calls) or []")
    made = render(source, USER, asked("weigh", text="hm"), told("7"), **TOOLS)
    assert made == '[weigh]<user>a<assistant>hm<assistant>weigh({"n": 1})<tool>7'


@pytest.mark.parametrize("name", ["tools", "documents"])
def test_a_template_that_wants_a_list_gets_an_empty_one(render: Rendering, name: str) -> None:
    assert render(f"{{{{ {name} | length }}}}" + template(), USER) == "0<user>a"
    assert not render.notes


def test_a_template_that_joins_functions_to_a_text_gets_the_text_of_the_tools(render: Rendering) -> None:
    made = render("{{ 'Tools: ' + functions }}" + FORMAT.replace("{call}", SHOWN), USER, **TOOLS)
    assert made.startswith(f"Tools: {json.dumps(TOOLS['tools'])}")


def test_a_template_that_wants_lists_of_parts_gets_them(render: Rendering) -> None:
    source = (
        "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.type + p.text }}{% endfor %}{% endfor %}"
    )
    assert render(source, USER, lenient=False) == "<user>texta"


@pytest.mark.parametrize("late", [{"role": "system", "content": "be"}, {"role": "developer", "content": "be"}])
def test_a_later_system_message_that_would_be_left_out_is_the_users(render: Rendering, late: dict[str, Any]) -> None:
    source = template().replace("{{ m.content }}", "{{ m.content if m.role != 'system' or loop.first }}")
    assert render(source, USER, late, AGAIN, lenient=False) == "<user>a<user>be<user>b"
    assert "later system messages become the user's" in render.notes[0]
    assert render(refusing("m.role == 'system' and not loop.first"), USER, late, AGAIN) == "<user>a\n\nbe\n\nb"


def test_system_messages_at_the_beginning_become_one(render: Rendering) -> None:
    """Codex sends its instructions in two messages."""
    left_out = template().replace("{{ m.content }}", "{{ m.content if m.role != 'system' or loop.first }}")
    for source in (left_out, refusing("m.role == 'system' and not loop.first")):
        made = render(source, SYSTEM, {"role": "developer", "content": "brief"}, USER)
        assert made == "<system>be\n\nbrief<user>a"


def test_a_system_message_that_is_refused_goes_into_the_first_message_of_the_user(render: Rendering) -> None:
    assert render(refusing("m.role == 'system'", "no system"), SYSTEM, USER) == "<user>be\n\na"
    assert {*render.notes} == {"the chat template rejects these messages (no system): messages were merged"}


def test_blank_messages_keep_turns_where_messages_cannot_be_merged(render: Rendering) -> None:
    source = refusing("m.role == 'user' and loop.previtem and loop.previtem.role == 'tool'")
    assert render(source, USER, asked("weigh"), told("7"), AGAIN, **TOOLS).endswith("<tool>7<assistant> <user>b")
    source = refusing("m.role == 'assistant' and loop.first")
    assert render(source, {"role": "assistant", "content": "hi"}, AGAIN) == "<user> <assistant>hi<user>b"
    assert "blank messages were added" in render.notes[0]


def test_several_adaptations_are_combined(render: Rendering) -> None:
    both = (
        "{% for m in messages %}{% if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ raise_exception('ids') }}"
        "{% elif m.role == 'user' and loop.previtem and loop.previtem.role == 'user' %}{{ raise_exception('turns') }}"
        "{% endif %}{% endfor %}"
    )
    made = render(template(both), USER, asked("weigh"), told("7"), AGAIN, AGAIN, **TOOLS)
    assert made.endswith('<assistant>weigh({"n": 1})<tool>7<user>b\n\nb')


def test_only_at_last_are_tools_described_as_text(render: Rendering) -> None:
    made = render(refusing("m.role == 'tool'", "no results"), USER, asked("weigh"), told("7"), **TOOLS)
    assert "<tools>" in made and '"name": "weigh"' in made and "7\n</tool_response>" in made
    assert "(no results): tools and calls are described as text" in render.notes[0]


def test_a_developer_is_the_system_for_templates_that_do_not_know_the_role(llm: Runtime) -> None:
    prompts = Prompts(llm.model, ChatTemplate(llm.model, refusing("m.role == 'developer'")), 4096, pytest.fail)
    messages = (Message("developer", "be"), Message("user", "a"))
    assert prompts.render(Request(messages=messages, lenient=True)) == "<system>be<user>a"


@pytest.mark.parametrize("lenient", [True, False])
def test_an_error_names_the_message_that_is_refused(render: Rendering, lenient: bool) -> None:
    answer = {"role": "assistant", "content": "bad"}
    with pytest.raises(UsageError) as refused:
        render(refusing("'bad' in m.content", "not this"), SYSTEM, USER, answer, AGAIN, lenient=lenient)
    assert refused.value.what == "the model's chat template rejects message 3 of 4, which has the role assistant"
    assert refused.value.why == "not this"
    assert not render.notes
