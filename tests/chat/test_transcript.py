"""Chats as files: what is exported can be read, by people and by programs, and what others exported can be imported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from talks import contents, talk

from edgespec.chat.transcript import (
    MARKDOWN_MAGIC,
    ImportedChat,
    import_chat,
    messages_of,
    read_jsonl,
    to_jsonl,
    to_markdown,
)
from edgespec.errors import UsageError
from edgespec.history import AnswerRecord, ChatInfo, Store, Turn
from edgespec.history.data import valid_text

INFO = ChatInfo("abc", "Bread", 1.7e9, 1.8e9, "k", 2, "target.gguf")


def turns(*messages: tuple[str, str], finish_reason: str = "stop") -> list[Turn]:
    answer = AnswerRecord(finish_reason=finish_reason)
    return [Turn("k", None, role, text, 1.7e9, answer if role == "assistant" else None) for role, text in messages]


def read(text: str) -> list[ImportedChat]:
    return list(read_jsonl(text))


def messages_in(chat: ImportedChat) -> tuple[tuple[str, str], ...]:
    system = [("system", chat.system)] if chat.system else []
    return (*system, *((role, content) for role, content, _ in chat.turns))


def test_markdown_has_a_heading_for_each_message_and_folds_what_was_thought() -> None:
    said = turns(("user", "how?"), ("assistant", "<think>\nhm\n</think>\n\nlike *this*"))
    assert to_markdown(INFO, said) == MARKDOWN_MAGIC.decode() + (
        "# Bread\n\n2023-11-14T22:13:20+00:00 · target.gguf\n\n## User\n\nhow?\n\n## Assistant\n\n"
        "<details>\n<summary>Thinking</summary>\n\nhm\n\n</details>\n\nlike *this*\n"
    )


def test_what_users_write_is_not_taken_for_thinking() -> None:
    assert "\n\n<think>a</think> b\n" in to_markdown(INFO, turns(("user", "<think>a</think> b")))


def test_an_answer_that_is_not_whole_is_marked_and_its_code_ends_with_it() -> None:
    text = to_markdown(INFO, turns(("assistant", "```py\nprint(`1`)\n~~~"), finish_reason="interrupted"))
    assert text.endswith("```py\nprint(`1`)\n~~~\n```\n\n*(interrupted)*\n")
    begun = to_markdown(INFO, turns(("assistant", "Here:\n\n```"), ("user", "and?")))
    assert "Here:\n\n```\n```\n\n## User" in begun
    whole = to_markdown(INFO, turns(("assistant", "````md\n```\n````\ntext")))
    assert whole.endswith("````md\n```\n````\ntext\n")


def test_jsonl_is_one_line_in_the_form_of_openai() -> None:
    text = to_jsonl(INFO, turns(("system", "be brief"), ("user", "a\u2028b\x85c\n日本")))
    assert text.startswith('{"chat": "') and len(text.splitlines()) == 1 and text.endswith("\n")
    assert "日本" in text
    assert json.loads(text) == {
        "chat": "abc",
        "title": "Bread",
        "created": "2023-11-14T22:13:20+00:00",
        "times": ["2023-11-14T22:13:20+00:00"] * 2,
        "model": "target.gguf",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a\u2028b\x85c\n日本"}],
    }


MESSAGES = st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text()), min_size=1, max_size=5)


@settings(max_examples=6)
@given(st.lists(MESSAGES, max_size=3))
def test_what_is_exported_is_imported_as_it_was(chats: list[list[tuple[str, str]]]) -> None:
    lines = "".join(to_jsonl(INFO, turns(*messages)) for messages in chats)
    found = [(chat.title, messages_in(chat)) for chat in read(lines)]
    assert found == [("Bread", tuple(messages[messages[0] == ("system", "") :])) for messages in chats]


@settings(max_examples=6)
@given(st.lists(MESSAGES.filter(lambda messages: messages[0] != ("system", "")), min_size=1, max_size=2))
def test_what_is_imported_is_stored_and_can_be_exported_again(chats: list[list[tuple[str, str]]]) -> None:
    with Store.in_memory() as store:
        for messages in chats:
            [imported] = read(to_jsonl(INFO, turns(*messages)))
            chat = store.find(import_chat(store, imported))
            path = messages_of(store, chat)
            assert [(turn.role, turn.content) for turn in path] == messages
            assert chat.title == "Bread"
            assert store.path(chat.head) == path[messages[0][0] == "system" :]
            assert messages_in(*read(to_jsonl(chat, path))) == tuple(messages)


ONE = (("user", "hi"), ("assistant", "ho"))
OBJECTS = [{"role": role, "content": text} for role, text in ONE]
GOOD = json.dumps({"messages": OBJECTS})


@pytest.mark.parametrize(
    ("text", "chats"),
    [
        (GOOD, [ONE]),
        (GOOD + "\n\n" + json.dumps({"messages": OBJECTS[:1]}) + "\n", [ONE, ONE[:1]]),
        ("\ufeff" + GOOD + "\r\n" + GOOD, [ONE, ONE]),
        ("", []),
        ("\n \n", []),
        (json.dumps({"messages": [{"role": "developer", "content": "x"}]}), [(("system", "x"),)]),
        (json.dumps({"messages": [OBJECTS[0] | {"tool_calls": None, "name": "x"}]}), [ONE[:1]]),
    ],
)  # fmt: skip
def test_every_form_is_understood(text: str, chats: Sequence[tuple[tuple[str, str], ...]]) -> None:
    assert [messages_in(chat) for chat in read(text)] == list(chats)


def test_what_an_sdk_returned_is_imported_with_its_reasoning_and_calls() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    unused: dict[str, Any] = {"refusal": None, "audio": None, "function_call": None, "annotations": []}
    said = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm", **unused}
    result = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "1"}]}
    last = {"role": "assistant", "content": None, "tool_calls": None, "reasoning_content": "so", **unused}
    (chat,) = read(json.dumps({"messages": [OBJECTS[0], said, result, last]}))
    assert messages_in(chat)[1:] == (
        ("assistant", '<think>\nhm\n</think>\n\n\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'),
        ("tool", "1"),
        ("assistant", "<think>\nso\n</think>\n\n"),
    )


def message(text: str) -> str:
    return f'{{"messages": [{text}]}}'


@pytest.mark.parametrize(
    ("text", "what", "why"),
    [
        (f"{GOOD}\n{{", "line 2 is not a chat", "Expecting property name"),
        (f"{GOOD}\n\n5", "line 3 is not", "non-empty list"),
        ("[" * 100_000, "line 1 is not", "recursion"),
        (f"{GOOD}\n" + "9" * 5000, "line 2 is not", "digits"),
        ('{"messages": []}', "line 1 is not", "non-empty list"),
        ('{"messages": "x"}', "line 1 is not", "non-empty list"),
        (message("5"), "line 1 is not", "not a JSON object"),
        (message('{"content": "x"}'), "line 1 is not", "there is no role"),
        (message('{"role": "user"}'), "line 1 is not", "there is no content"),
        (message('{"role": "user", "content": null}'), "line 1 is not", "content is not a text"),
        (
            message('{"role": "critic", "content": "x"}'),
            "line 1 is not",
            "'critic' is not one of system, developer, user",
        ),
        (message('{"role": ["user"], "content": "x"}'), "line 1 is not", "is not one of"),
        (message('{"role": "assistant", "content": "x", "tool_calls": [{}]}'), "line 1 is not", "calls tools without"),
        ('{"prompt": "x"}', "line 1 is not", "non-empty list"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, what: str, why: str) -> None:
    with pytest.raises(UsageError) as error:
        read(text)
    assert what in error.value.what
    assert why in error.value.why


@settings(max_examples=8)
@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_no_text_is_an_unforeseen_error(text: str) -> None:
    try:
        read(text)
    except UsageError as error:
        assert error.what


def test_halves_of_characters_are_imported_as_the_store_keeps_them() -> None:
    [imported] = read(message('{"role": "user", "content": "a\\ud800b"}'))
    with Store.in_memory() as store:
        chat = store.find(import_chat(store, imported))
        assert contents(store.path(chat.head)) == [valid_text("a\ud800b")]
        talk(store, "and on", chat=chat.id, parent=chat.head)
