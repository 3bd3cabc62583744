"""Prompts of chats: earlier ids are kept, answers are continued, and broken templates are worked around."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tiny_gguf import CHATML, model_metadata, write_file, write_model

import edgespec
from edgespec.errors import UsageError
from edgespec.llama.model import LlamaModel
from edgespec.llama.template import ChatTemplate
from edgespec.runtime.described import described, with_calls
from edgespec.runtime.prompts import Prompts
from edgespec.runtime.runtime import LONG, Runtime
from edgespec.runtime.template_dialect import TemplateDialects
from edgespec.settings import LoadSettings, Message, Request

QUESTION = Message("user", "hello")
DROPS = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}{% endfor %}<|assistant|>"
)
OPENS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>{{ '<think>\n' }}"
KEEPS = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.content.startswith('<think>') %}{{ m.content }}{% else %}"
    "{{ m.content }}{% endif %}{% endfor %}<|assistant|>"
)
HEADED = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>"
    "{{ m.content }}<|end|>{% endfor %}<|start|>assistant"
)
OPENED = (  # by the name of their dialect, templates that open reasoning
    ("think", OPENS),
    ("gemma 4", OPENS.replace("<think>", "<|channel>thought")),
    ("harmony", HEADED + "<|channel|>analysis<|message|>"),
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' or (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system is not first') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)


@pytest.fixture(scope="module")
def llm() -> Runtime:
    return edgespec.load("demo", threads=1, spec_type="none")


def tiny(folder: Path, template: str) -> Runtime:
    return edgespec.load(str(write_model(folder / "tiny.gguf", "llama", chat_template=template)), threads=1)


def lenient(*messages: Message) -> Request:
    return Request(messages=messages, lenient=True)


def test_the_next_turn_finds_all_that_was_generated_in_the_cache(llm: Runtime) -> None:
    """The ids of an earlier answer are used, not those of its text."""
    events = list(llm.chat([QUESTION], max_tokens=40, seed=3, temperature=1.5))
    answer = Message("assistant", "".join(e.text for e in events), tuple(e.id for e in events if e.id >= 0))
    ids = llm.model.tokenize(answer.content)
    assert tuple(ids) != answer.tokens, "an answer that the tokenizer writes in the same way shows nothing"
    before = llm.stats.prompt_tokens + len(answer.tokens)
    stats = list(llm.chat([QUESTION, answer, Message("user", "more")], max_tokens=1))[-1].stats
    assert stats is not None
    assert stats.cached_tokens >= before - 1


def test_ids_stand_in_for_the_text_they_came_from(llm: Runtime) -> None:
    text = "import os"
    ids = tuple(llm.model.tokenize(text))
    turns = [QUESTION, Message("assistant", text), Message("user", "more")]
    with_ids = [QUESTION, Message("assistant", text, ids), Message("user", "more")]
    assert llm.count(turns) == llm.count(with_ids)
    assert llm.tokenize(Request(messages=tuple(turns))) == llm.tokenize(Request(messages=tuple(with_ids)))


def test_an_answer_that_has_begun_is_gone_on_with(llm: Runtime) -> None:
    whole = list(llm.chat([QUESTION], max_tokens=24, seed=5))
    begun = whole[:10]
    start = Message("assistant", "".join(event.text for event in begun), tuple(event.id for event in begun))
    rest = list(llm.chat([QUESTION, start], max_tokens=14, seed=5))
    assert [event.id for event in begun + rest if event.id >= 0] == [event.id for event in whole if event.id >= 0]


def test_an_answer_that_ended_inside_a_character_continues_with_that_character(llm: Runtime) -> None:
    grammar = 'root ::= "a😀b"'
    for max_tokens, wanted in ((1, "a"), (2, "a"), (4, "a"), (5, "a😀")):
        begun = list(llm.chat([QUESTION], grammar=grammar, max_tokens=max_tokens))
        text = "".join(event.text for event in begun)
        assert (text, begun[-1].finish_reason) == (wanted, "length")
        start = Message("assistant", text, tuple(event.id for event in begun if event.id >= 0))
        rest = list(llm.chat([QUESTION, start], grammar=grammar))
        assert text + "".join(event.text for event in rest) == "a😀b"


def test_noise_goes_on_where_the_conversation_lost_its_beginning(llm: Runtime) -> None:
    """A token is sampled with the noise of its place in the conversation, not in the prompt."""
    texts = [
        [event.id for event in llm.chat([QUESTION], left=left, max_tokens=16, seed=5, temperature=1.5)]
        for left in (0, 7, 0)
    ]
    assert texts[0] == texts[2] != texts[1]


def test_a_message_with_private_characters_is_no_mark(llm: Runtime) -> None:
    text = "\ue0000\ue001"
    tokens = llm.tokenize(Request(messages=(Message("user", text), Message("assistant", "a", (5,)), QUESTION)))
    assert text in llm.model.detokenize(tokens, special=True).decode()
    template = ChatTemplate(llm.model, "{{ tools[0] }}{{ messages[0].content }}").given(json.dumps({"tools": [text]}))
    shown = template.tokenize([Message("user", "secret"), QUESTION])
    assert llm.model.detokenize(shown).decode().count("secret") == 1


def test_whether_a_template_opens_or_drops_thinking_is_seen(llm: Runtime) -> None:
    for text, opens, drops in (
        (CHATML, False, True),
        (KEEPS, False, False),
        (DROPS, False, True),
        (OPENS, True, False),
    ):
        template = ChatTemplate(llm.model, text, style_of=TemplateDialects(llm.model).of)
        assert (template.opens_thinking, template.drops_thinking) == (opens, drops)


def test_whether_answers_stay_where_they_were_generated_is_seen(llm: Runtime) -> None:
    for text, keeps in ((CHATML, True), (OPENS, True), (HEADED, False)):
        assert ChatTemplate(llm.model, text, style_of=TemplateDialects(llm.model).of).keeps_answers is keeps


@pytest.mark.parametrize("name", [name for name, _ in OPENED])
def test_reasoning_that_the_template_opens_stands_between_common_marks(name: str, tmp_path: Path) -> None:
    with tiny(tmp_path, dict(OPENED)[name]) as llm:
        plain = str(llm.chat("hello", max_tokens=30, seed=1))
        raw = str(llm.chat("hello", max_tokens=30, seed=1, raw_marks=True))
        begun = (QUESTION, Message("assistant", "<think>\nhm"))
        rest = str(llm.chat(begun, max_tokens=30, seed=1))
        short = str(llm.chat(begun, max_tokens=30, seed=1, reasoning_budget=4))
        constrained = str(llm.chat("hello", max_tokens=30, seed=1, regex="[a-z]{3}"))
    assert plain.startswith("<think>\n") and "<think>" not in raw + rest + constrained
    assert plain.removeprefix("<think>\n").rstrip("\n") == raw.strip("\n")
    if name == "think":
        assert "</think>" in short


def test_thinking_that_the_template_opens_is_not_opened_twice(tmp_path: Path) -> None:
    with tiny(tmp_path, OPENS) as llm:
        assert llm.info.opens_thinking and not llm.info.drops_thinking
        begun = llm.tokenize(Request(messages=(QUESTION, Message("assistant", "<think>\nhmm"))))
        text = llm.model.detokenize(begun, special=True).decode()
    assert text.count("<think>") == 1
    assert text.endswith("<think>\nhmm")


def test_a_template_that_wants_turns_gets_them(tmp_path: Path) -> None:
    with tiny(tmp_path, NO_SYSTEM) as llm:
        messages = (Message("system", "be brief"), QUESTION, Message("user", "more"))
        with pytest.raises(UsageError, match="roles must alternate"):
            llm.tokenize(Request(messages=messages))
        text = llm.model.detokenize(llm.tokenize(lenient(*messages)), special=True).decode()
        assert text.endswith("[user]be brief\n\nhello\n\nmore")
        assert "the chat template rejects these messages (roles must alternate)" in llm.notes[-1]


def test_a_system_message_that_comes_late_becomes_the_users(tmp_path: Path) -> None:
    with tiny(tmp_path, SYSTEM_FIRST) as llm:
        call = Message("assistant", "", extra='{"name": "f"}')
        messages = (Message("system", "be brief"), QUESTION, Message("system", "more"), call, call, QUESTION)
        text = llm.model.detokenize(llm.tokenize(lenient(*messages)), special=True).decode()
        assert text.endswith("[system]be brief[user]hello\n\nmore[assistant][assistant][user]hello")


@pytest.mark.parametrize("template", ["{{ nothing.here }}", "{% for %}", "{{ raise_exception('no') }}"])
def test_a_template_that_accepts_nothing_is_an_error_that_names_a_way_out(tmp_path: Path, template: str) -> None:
    """ChatML in its place would be another format than the one that the model was trained for."""
    with tiny(tmp_path, template) as llm, pytest.raises(UsageError, match="`chat_template`"):
        llm.tokenize(lenient(QUESTION))
    assert not llm.notes


def test_a_model_without_a_template_gets_chatml_with_a_note(tmp_path: Path) -> None:
    with edgespec.load(str(write_model(tmp_path / "tiny.gguf", "llama")), threads=1) as llm:
        with pytest.raises(UsageError, match="has no chat template"):
            llm.tokenize(Request(messages=(QUESTION,)))
        text = llm.model.detokenize(llm.tokenize(lenient(QUESTION)), special=True).decode()
        assert text.endswith("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
        assert [*llm.notes] == ["tiny.gguf has no chat template: using ChatML instead"]


def test_a_template_of_the_settings_is_used_in_place_of_a_broken_one(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "tiny.gguf", "llama", chat_template="{% for %}"))
    (tmp_path / "own.jinja").write_text(OPENS)
    with edgespec.load(model, chat_template_file=str(tmp_path / "own.jinja"), threads=1) as llm:
        assert llm.tokenize(Request(messages=(QUESTION,)))[-1:] and llm.info.opens_thinking
    with edgespec.load(model, chat_template="chatml", threads=1) as llm:
        prompt = llm.prompts.tokenized(Request(messages=(QUESTION,)))
        assert llm.model.detokenize(prompt.tokens, special=True).decode().endswith("<|im_start|>assistant\n")
        assert prompt.stop == ("<|im_end|>",), "which is no token of this model"


def test_a_template_that_does_not_exist_is_an_error_before_the_model_is_loaded(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "tiny.gguf", "llama"))
    loaded: list[str] = []
    for settings in (LoadSettings(model, chat_template="x"), LoadSettings(model, chat_template_file="x")):
        with pytest.raises(UsageError, match="chat template"):
            Runtime(settings, lambda what, done: loaded.append(what))
    with pytest.raises(UsageError, match="cannot be combined"):
        Runtime(LoadSettings(model, chat_template="chatml", chat_template_file="x"))
    assert not loaded


def test_a_broken_template_leaves_plain_prompts_alone(tmp_path: Path) -> None:
    with tiny(tmp_path, "{% for %}") as llm:
        assert llm.info.has_chat_template
        assert list(llm.generate("hello", max_tokens=2))
        with pytest.raises(UsageError, match="cannot be parsed"):
            ChatTemplate(llm.model).render([QUESTION])


def test_control_tokens_in_tools_and_calls_are_text(llm: Runtime) -> None:
    template = "{{ tools[0] }}{% for m in messages %}{{ m.content }}{{ m.call }}{% endfor %}<|im_end|>"
    made = ChatTemplate(llm.model, template).given('{"tools": ["a <|im_end|>"]}')
    ids = made.tokenize([Message("user", "b", extra='{"call": "c <|im_end|>"}')])
    (end,) = llm.model.tokenize("<|im_end|>", parse_special=True)
    assert ids.count(end) == 1
    assert llm.model.detokenize(ids, special=True).decode().endswith("a <|im_end|>bc <|im_end|><|im_end|>")


CALL = {"id": "call00000", "type": "function", "function": {"name": "run", "arguments": '{"cmd": "ls'}}
CALLED = (
    QUESTION,
    Message("assistant", "", extra=json.dumps({"tool_calls": [CALL]})),
    Message("tool", "result", extra='{"tool_call_id": "call00000"}'),
)
TOOLS = json.dumps({"tools": [{"type": "function", "function": {"name": "run", "parameters": {}}}]})
NEEDS_OBJECTS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}"
    "{% endfor %}{% endfor %}"
)
NO_CALLS = "{{ tools }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
NO_RESULTS = "{{ tools }}{% for m in messages if m.role != 'tool' %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"


@pytest.mark.parametrize("template", [NEEDS_OBJECTS, NO_CALLS, NO_RESULTS, CHATML])
def test_no_template_loses_tools_calls_or_results(tmp_path: Path, template: str) -> None:
    with tiny(tmp_path, template) as llm:
        ids = llm.tokenize(Request(messages=CALLED, template=TOOLS, lenient=True))
        text = llm.model.detokenize(ids, special=True).decode()
    assert text.count('"name": "run"') + text.count("'name': 'run'") >= 2, "the tool and its call"
    assert '{\\"cmd\\": \\"ls' in text or '{"cmd": "ls' in text
    assert "result" in text
    assert text.count("<tools>\n") <= 1, "the tools are described once"


def test_a_name_that_is_a_word_of_calls_is_a_name() -> None:
    message = Message("user", "hi", extra='{"name": "tool_calls"}')
    assert with_calls(message) == message
    assert described([message], ()) == (message,)


ADDED = ("</think>", "<tool_call>", "[THINK]", "<|channel>", "  ", "<table>")


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """A vocabulary with added tokens."""
    entries = model_metadata("llama")
    tokens, types = entries["tokenizer.ggml.tokens"], entries["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list) and isinstance(types, list)
    entries |= {
        "tokenizer.ggml.tokens": [*tokens, *ADDED],
        "tokenizer.ggml.token_type": [*types, *[4] * len(ADDED)],
        "tokenizer.chat_template": CHATML,
    }
    with LlamaModel.load_vocabulary(write_file(tmp_path_factory.mktemp("added") / "v.gguf", entries, {})) as model:
        yield model


def added_in(model: LlamaModel, ids: Sequence[int]) -> list[str]:
    texts = [model.token_bytes(id, special=True).decode() for id in ids]
    return [text for text in texts if text in ADDED]


@pytest.mark.parametrize("role", ["user", "system", "tool", "x</think>"])
def test_added_tokens_in_contents_are_text(extended: LlamaModel, role: str) -> None:
    content = "a </think><tool_call> b [THINK]c<|channel>|channel>"
    ids = ChatTemplate(extended).tokenize([Message(role, content), Message("user", "</think>")])
    assert not added_in(extended, ids)
    assert f"{role}\n{content}<|im_end|>" in extended.detokenize(ids, special=True).decode()
    assert added_in(extended, ChatTemplate(extended).tokenize([QUESTION, Message("assistant", content)]))


def test_added_tokens_of_a_template_are_tokens_and_those_in_tools_and_calls_are_text(extended: LlamaModel) -> None:
    template = "{{ tools[0] }}{% for m in messages %}<tool_call>{{ m.content }}{{ m.call }}{% endfor %}</think>"
    made = ChatTemplate(extended, template).given('{"tools": ["a </think>"]}')
    ids = made.tokenize([Message("user", "</think>", extra='{"call": "<tool_call>"}')])
    assert added_in(extended, ids) == ["<tool_call>", "</think>"]
    assert extended.detokenize(ids).decode() == "a </think><tool_call></think><tool_call></think>"


def test_blanks_and_tags_of_html_stay_the_tokens_that_they_are_in_texts(extended: LlamaModel) -> None:
    ids = ChatTemplate(extended).tokenize([Message("user", "a  <table>")])
    assert added_in(extended, ids) == ["  ", "<table>"]


def test_a_prompt_of_many_messages_is_read_apart_from_answers_however_short_they_are() -> None:
    assert Prompts.effort(Request("x")) < LONG
    assert Prompts.effort(Request(messages=(Message("user", ""),) * 20)) < LONG
    assert Prompts.effort(Request(messages=(Message("user", ""),) * 200)) > LONG
    assert Prompts.effort(Request("x" * (LONG + 1))) > LONG
