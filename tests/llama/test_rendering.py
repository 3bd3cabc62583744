"""Chat templates are rendered within limits of time, memory and length."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiny_gguf import write_model

import edgespec
from edgespec.errors import GenerationError, UsageError
from edgespec.llama import rendering
from edgespec.llama.rendering import Renderer, TemplateFailedError
from edgespec.llama.template import OTHERS
from edgespec.settings import Message, Request

QUESTION = {"role": "user", "content": "hello"}
GIVEN: dict[str, Any] = {"messages": [QUESTION]}
HARMLESS = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
DOUBLED = "{% set ns = namespace(x=['x']) %}{% for i in range(100) %}{% set ns.x = GROWN %}{% endfor %}"

TOO_LARGE = [
    "{{ 'x' * 10**10 }}",
    "{{ [1] * 10**10 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ 'x'|center(10**10) }}",
    "{{ 'x\nx'|indent(10**10) }}",
    "{{ ('x' * 10**6)|replace('x', 'y' * 10**6) }}",
    "{{ ('x' * 10**6).join(['y'] * 10**6) }}",
    "{{ [1]|batch(10**12, 1)|list }}",
    "{{ [1]|tojson(indent=10**10) }}",
    DOUBLED.replace("GROWN", "ns.x + ns.x"),
    "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
]
TOO_SLOW = [
    "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro a(n) %}{% if n %}{{ a(n - 1) }}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(99) }}",
    "{{ 10 ** (10 ** 9) }}",
    DOUBLED.replace("GROWN", "[ns.x, ns.x]") + "{{ ns.x == [] or ns.x|string|length }}",
]
TOO_DEEP = [
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    DOUBLED.replace("GROWN", "[ns.x]").replace("100", "50000") + "{{ ns.x }}",
]


@pytest.fixture(scope="module")
def small() -> Iterator[Renderer]:
    with Renderer(memory_bytes=64 << 20) as made:
        yield made


def reason(renderer: Renderer, template: str) -> tuple[str, str]:
    with pytest.raises(TemplateFailedError) as raised:
        renderer.render(template, GIVEN)
    return raised.value.failed, raised.value.why


@pytest.mark.long(but=3)
@pytest.mark.parametrize("template", TOO_LARGE)
def test_memory_is_bounded(template: str, small: Renderer) -> None:
    assert reason(small, template) == ("limit", "it takes more than 67.1 MB of memory to render")
    assert small.render(HARMLESS, GIVEN) == "[user]hello"


@pytest.mark.long(but=1)
@pytest.mark.parametrize("template", TOO_SLOW)
def test_time_is_bounded_and_nobody_waits_twice_for_the_same_template(template: str) -> None:
    with Renderer(time_s=0.5) as quick:
        assert reason(quick, template) == ("limit", "it takes more than 0.5 s to render")
        assert quick.child.process is None  # so the second answer comes without one
        assert reason(quick, template) == ("limit", "it takes more than 0.5 s to render")
        assert quick.child.process is None


def test_length_is_bounded_by_what_is_in_the_conversation(small: Renderer) -> None:
    many = "{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}"
    assert len(small.render(many, {"messages": [{"content": "123456789"}]})) == 899_991
    assert reason(small, many.replace("messages[0].content", "'123456789012'")) == (
        "limit",
        f"it makes a prompt of more than {1_000_000 + 8 * 52:,} characters",
    )
    long = {"messages": [{"content": "x" * 2_000_000}]}
    assert len(small.render("{{ messages[0].content }}", long)) == 2_000_000


@pytest.mark.parametrize("template", TOO_DEEP)
@pytest.mark.slow
def test_nesting_is_bounded(template: str) -> None:
    failed, why = reason(rendering.renderer(), template)
    assert failed in ("parse", "render")
    assert why == "it is nested too deeply"


def test_a_range_is_bounded(small: Renderer) -> None:
    failed, why = reason(small, "{% for i in range(10**12) %}a{% endfor %}")
    assert failed == "render"
    assert "Range too big" in why


def test_what_takes_long_for_a_long_conversation_is_not_held_against_a_short_one() -> None:
    template = "{% for i in range(messages|length) %}{% for i in range(99999) %}{% endfor %}{% endfor %}short"
    with Renderer(time_s=0.5) as quick, pytest.raises(TemplateFailedError, match=r"more than 0\.5 s"):
        quick.render(template, {"messages": [QUESTION] * 1000})
    with Renderer() as usual:
        usual._refused.update(quick._refused)
        assert usual.render(template, GIVEN) == "short"


def test_a_child_that_was_killed_is_replaced(small: Renderer) -> None:
    small.render(HARMLESS, GIVEN)
    process = small.child.start()
    process.kill()
    process.wait()
    assert small.render(HARMLESS, GIVEN) == "[user]hello"


@pytest.mark.parametrize("n_threads", [0, 1])
def test_a_child_that_could_not_be_started_is_started_for_the_next_template(
    n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, begun = threading.Thread.start, count()

    def refused(thread: threading.Thread) -> None:
        if next(begun) >= n_threads:
            raise RuntimeError("can't start new thread")
        start(thread)

    with Renderer() as made:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            with pytest.raises(GenerationError, match="can't start new thread"):
                made.render(HARMLESS, GIVEN)
        assert made.child.process is None
        assert made.render(HARMLESS, GIVEN) == "[user]hello"


def test_a_template_is_tried_again_if_its_child_was_killed_meanwhile() -> None:
    slow = "{% for i in range(3000) %}{% for i in range(999) %}{% endfor %}{% endfor %}[user]hello"
    with Renderer() as made, ThreadPoolExecutor(1) as threads:
        assert made.render(HARMLESS, GIVEN) == "[user]hello"
        child = psutil.Process(made.child.start().pid)
        began_s = child.cpu_times().user
        text = threads.submit(made.render, slow, GIVEN)
        while child.cpu_times().user < began_s + 0.05:
            pass
        child.kill()
        assert text.result() == "[user]hello"


def test_a_child_that_hangs_is_ended() -> None:
    with Renderer(stuck_s=0.1) as made:
        assert made.render(HARMLESS, GIVEN) == "[user]hello"
        psutil.Process(made.child.start().pid).suspend()
        # Not the error of a template, for which other templates would be tried.
        with pytest.raises(GenerationError, match=r"got no processor time for 0\.1 s"):
            made.render(HARMLESS, GIVEN)
        made._stuck_s = rendering.STUCK_S
        assert made.render(HARMLESS, GIVEN) == "[user]hello"  # the template is not refused from then on


def test_each_thread_gets_its_own_prompt(small: Renderer) -> None:
    def rendered(n: int) -> str:
        return small.render("{{ n }}", {"n": n})

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(rendered, range(40))) == [str(n) for n in range(40)]


def test_templates_have_what_transformers_gives_them(small: Renderer) -> None:
    template = "{% generation %}{{ {'ä': '<'}|tojson }}{% endgeneration %}{{ strftime_now('%%') }}\n{% break %}"
    with pytest.raises(TemplateFailedError):
        small.render(template, {})
    assert small.render(template.replace("{% break %}", "  {% if 1 %}\nx\n  {% endif %}"), {}) == '{"ä": "<"}%\nx\n'
    assert small.render("{% for i in [1, 2] %}{{ i }}{% break %}{% endfor %}", {}) == "1"
    assert reason(small, "{{ raise_exception('only one') }}") == ("render", "only one")


def test_templates_may_change_lists_and_objects_of_a_prompt(small: Renderer) -> None:
    template = "{% set _ = l.append(3), l.pop(0), o.update({'b': l}), o.pop('a') %}{{ o }}{{ l | length }}"
    for _ in range(2):
        assert small.render(template, {"l": [1, 2], "o": {"a": 1}}) == "{'b': [2, 3]}2"
    assert reason(small, "{{ l.__class__.mro() }}")[0] == "render"


def test_templates_get_the_date_of_today_unless_another_one_is_given(small: Renderer) -> None:
    template = "{{ date_string }}|{{ datetime }}|{{ current_date }}"
    before, shown, after = datetime.now(), small.render(template, {}), datetime.now()
    assert shown in [f"{day:%d %b %Y}|{day:%b %d %Y}|{day:%Y-%m-%d}" for day in (before, after)]
    assert small.render("{{ date_string }}", {"date_string": "26 Jul 2024"}) == "26 Jul 2024"


def test_any_text_passes_as_it_is(small: Renderer) -> None:
    text = "\ud800 \u2028\n\x00 \U0001f600 </s> {{ 1 }} \ue000"
    assert small.render("{{ text }}", {"text": text}) == text


def test_a_model_with_such_a_template_still_continues_plain_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Renderer(memory_bytes=64 << 20)
    monkeypatch.setattr("edgespec.llama.template.renderer", lambda: made)
    path = write_model(tmp_path / "bomb.gguf", "llama", chat_template=TOO_LARGE[0])
    with made, edgespec.load(str(path), threads=1) as llm:
        messages = (Message("user", "hello"),)
        for lenient in (False, True):
            with pytest.raises(UsageError) as refused:
                llm.tokenize(Request(messages=messages, lenient=lenient))
            assert str(refused.value) == (
                "the chat template of bomb.gguf exceeds a limit: it takes more than 67.1 MB of memory to render\n"
                f"  {OTHERS}"
            )
        assert len(list(llm.generate("hello", max_tokens=2))) == 3
        assert llm.info.opens_thinking is False


def test_the_limits_leave_room_for_real_conversations() -> None:
    messages = [{"role": ("user", "assistant")[n % 2], "content": "x" * 200} for n in range(4000)]
    assert len(rendering.renderer().render(HARMLESS, {"messages": messages})) > 800_000
