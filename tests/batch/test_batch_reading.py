"""The fields of rows of a batch, and the errors of invalid rows."""

from __future__ import annotations

import base64
import io
import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count, islice
from typing import Any, TypeVar

import pytest

from edgespec.batch.input import MOST_AHEAD, MOST_BYTES, Line, count_lines, read_ahead, read_lines
from edgespec.batch.reading import Defaults, RowReader
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import UsageError
from edgespec.requests.row import BadRow, Row, row_key
from edgespec.settings import Message, Request

Item = TypeVar("Item")

BASE = Request(max_tokens=7, sampling=SamplingSettings(temperature=0.5), stop=("x",), json_schema="{}")
RAW = Defaults(BASE, seed=1, chat=False)
CHAT = Defaults(BASE, seed=1, chat=True, system="Be brief.")


def read(*values: Any, defaults: Defaults = RAW) -> list[Row | BadRow]:
    return [row for row in RowReader(defaults).from_values(values) if row is not None]


def row(value: Any, defaults: Defaults = RAW) -> Row:
    (found,) = read(value, defaults=defaults)
    assert isinstance(found, Row), found
    return found


def why(value: Any, defaults: Defaults = RAW) -> str:
    (found,) = read(value, defaults=defaults)
    assert isinstance(found, BadRow), found
    return found.why


def from_text(text: str | bytes, reader: RowReader | None = None) -> list[Row | BadRow]:
    data = text.encode() if isinstance(text, str) else text
    rows = (reader or RowReader(RAW)).from_lines(read_lines(io.BytesIO(data)))
    return [row for row in rows if row is not None]


# --- documents --------------------------------------------------------------------------------------------------------


def test_a_file_of_a_message_is_read() -> None:
    data = base64.b64encode(b"n,m\n1,2").decode()
    part = {"type": "file", "file": {"filename": "a.csv", "file_data": f"data:text/csv;base64,{data}"}}
    asked = {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "why?"}]}]}
    for given in (asked, {"url": "/v1/chat/completions", "body": asked}):
        assert row(given).request.messages[-1].content == "a.csv (1 row):\n```\nn,m\n1,2\n```\nwhy?"
    part["file"] = {"file_id": "file-1"}
    assert why(asked) == "messages[0].content[0].file_id is not supported: only file_data is read"


# --- prompts ----------------------------------------------------------------------------------------------------------


def test_a_prompt_is_a_text_to_go_on_from() -> None:
    found = row({"id": "a", "prompt": "hello"})
    assert (found.id, found.line, found.n, found.form) == ("a", 1, 1, "own")
    assert found.request == replace(BASE, prompt="hello", seed=found.request.seed)


def test_a_prompt_is_a_question_in_a_chat() -> None:
    assert row({"prompt": "hi"}, CHAT).request.messages == (Message("system", "Be brief."), Message("user", "hi"))
    assert row({"prompt": "hi", "system": "x"}, CHAT).request.messages[0] == Message("system", "x")
    assert row({"prompt": "hi", "system": ""}, CHAT).request.messages == (Message("user", "hi"),)


def test_messages_are_a_chat_whatever_prompts_are() -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "name": "c"}]
    for defaults, first in ((RAW, ()), (CHAT, (Message("system", "Be brief."),))):
        found = row({"messages": turns}, defaults).request
        named = Message("assistant", "b", extra='{"name": "c"}')  # which chat templates may read
        assert found.messages == (*first, Message("user", "a"), named)
        assert found.prompt == ""


def test_a_system_message_among_messages_is_the_only_one() -> None:
    turns = [{"role": "developer", "content": "s"}, {"role": "user", "content": "a"}]
    assert row({"messages": turns}, CHAT).request.messages == (Message("system", "s"), Message("user", "a"))


def test_what_an_sdk_returned_is_sent_again_in_rows_of_both_forms() -> None:
    function = {"name": "f", "arguments": '{"a": "b"}', "parsed_arguments": None}
    call = {"id": "c", "type": "function", "function": function, "index": 0}
    unused: dict[str, Any] = {"refusal": None, "audio": None, "function_call": None, "annotations": [], "parsed": None}
    said = {"role": "assistant", "content": None, "tool_calls": [call], **unused}
    thought = {"role": "assistant", "content": None, "tool_calls": None, "reasoning_content": "hm", **unused}
    turns = [{"role": "user", "content": "a"}, said, {"role": "tool", "tool_call_id": "c", "content": "1"}, thought]
    for given in ({"messages": turns}, {"url": "/v1/chat/completions", "body": {"messages": turns}}):
        _, called, result, last = row(given).request.messages
        assert json.loads(called.extra)["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": "b"}}
        assert (called.content, result.content, last.content) == ("", "1", "<think>\nhm\n</think>\n\n")
        assert json.loads(result.extra) == {"tool_call_id": "c"}


def test_contents_in_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert row({"messages": [{"role": "user", "content": parts}]}).request.messages == (Message("user", "a\nb"),)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([1], "not a JSON object"),
        ("text", "not a JSON object"),
        ({}, "neither a prompt nor messages"),
        ({"prompt": None}, "neither a prompt nor messages"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "both a prompt and messages"),
        ({"prompt": ["a"]}, "prompt must be a string, not ['a']"),
        ({"prompt": "a", "system": "b"}, "a system message needs a chat"),
        ({"prompt": "a", "system": 1}, "system must be a string"),
        ({"messages": []}, "non-empty"),
        ({"messages": "a"}, "must be a non-empty list"),
        ({"messages": ["a"]}, "messages[0] must be an object"),
        ({"messages": [{"content": "a"}]}, "messages[0] has no role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content must be"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}, "must be a list, and the assistant's"),
        ({"messages": [{"role": "user", "content": "a", "calls": [1]}]}, "'calls' of messages[0] is not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "must have an image_url"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "neither text nor images"),
        ({"messages": [{"role": "system", "content": "a"}], "system": "b"}, "two system messages"),
        ({"prompt": "a", "id": 1.5}, "id must be a string or an integer, not 1.5"),
        ({"prompt": "a", "id": True}, "id must be"),
        ({"prompt": "a", "id": "b", "custom_id": "c"}, "two ids"),
        ({"prompt": "a", "n": 0}, "n must be an integer from 1 to 256, not 0"),
        ({"prompt": "a", "n": "2"}, "n must be"),
    ],
)
def test_what_is_no_prompt_is_said(value: Any, reason: str) -> None:
    assert reason in why(value)


def test_an_empty_question_is_none() -> None:
    assert why({"prompt": ""}, CHAT) == "the prompt is empty"
    assert row({"prompt": ""}).request.prompt == ""


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({"max_tokens": 3}, "max_tokens", 3),
        ({"seed": 9}, "seed", 9),
        ({"stop": "a"}, "stop", ("a",)),
        ({"stop": ["a", "b"]}, "stop", ("a", "b")),
        ({"stop": ["", "b"]}, "stop", ("b",)),
        ({"stop": ""}, "stop", ()),
        ({"logprobs": 0}, "logprobs", 0),
        ({"verify": "block"}, "verify", "block"),
        ({"special": True}, "special", True),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"grammar": "root ::= 'a'"}, "grammar", "root ::= 'a'"),
        ({"regex": "a+"}, "regex", "a+"),
        ({"json_schema": '{"type": "null"}'}, "json_schema", '{"type": "null"}'),
        ({"json_schema": {"type": "null"}}, "json_schema", '{"type": "null"}'),
    ],
)
def test_a_setting_of_a_row_takes_the_place_of_the_default(settings: Any, field: str, value: Any) -> None:
    assert getattr(row({"prompt": "a"}).request, field) != value
    assert getattr(row({"prompt": "a"} | settings).request, field) == value


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 0}, SamplingSettings(temperature=0)),
        ({"top_k": 5, "top_p": 0.5, "min_p": 0}, SamplingSettings(0.5, top_k=5, top_p=0.5, min_p=0)),
        ({"typical_p": 0.5, "repeat_last_n": -1}, SamplingSettings(0.5, typical_p=0.5, repeat_last_n=-1)),
        ({"logit_bias": {"7": 1.5, "8": False}}, SamplingSettings(0.5, logit_bias=((7, 1.5), (8, -math.inf)))),
        ({"logit_bias": [[7, -2]]}, SamplingSettings(0.5, logit_bias=((7, -2.0),))),
    ],
)
def test_sampling_of_a_row_keeps_the_other_defaults(settings: Any, expected: SamplingSettings) -> None:
    assert row({"prompt": "a"} | settings).request.sampling == expected


def test_a_constraint_of_a_row_takes_the_place_of_any_other() -> None:
    assert row({"prompt": "a"}).request.constraint == ("json_schema", "{}")
    assert row({"prompt": "a", "regex": "b"}).request.constraint == ("regex", "b")
    assert row({"prompt": "a", "json_schema": ""}).request.constraint is None


def test_null_counts_as_missing() -> None:
    found = row({"id": None, "prompt": "a", "max_tokens": None, "n": None})
    assert (found.id, found.n, found.request.max_tokens) == (1, 1, 7)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"temprature": 1}, "'temprature' is not supported"),
        ({"reference": [1]}, "'reference' is not supported"),
        ({"sample": 1}, "'sample' is not supported"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"top_p": 2}, "top_p must be"),
        ({"stop": 1}, "stop must be a string or a list of strings"),
        ({"stop": [1]}, "stop must be"),
        ({"grammar": 1}, "grammar must be a string"),
        ({"json_schema": [1]}, "json_schema must be a schema"),
        ({"ignore_eos": "yes"}, "ignore_eos must be true or false"),
        ({"special": 1}, "special must be true or false"),
        ({"logit_bias": {"a": 1}}, "logit_bias must be"),
        ({"logit_bias": [[1]]}, "logit_bias must be"),
        ({"logit_bias": 5}, "logit_bias must be"),
        ({"logit_bias": {"-1": 1}}, "logit_bias must be about token ids of 0 or more"),
        ({"logit_bias": {"1": True}}, "logit_bias must be"),
        ({"logit_bias": {"1": 10**400}}, "logit_bias must be"),
        ({"seed": json.loads("[" * 900 + "]" * 900)}, "seed must be an integer"),
        ({"stop": json.loads("[" * 900 + "]" * 900)}, "stop must be a string or a list of strings"),
        ({"max_tokens": "3"}, "max_tokens must be an integer"),
        ({"logprobs": True}, "logprobs must be an integer"),
        ({"verify": 1}, "verify must be a string"),
    ],
)
def test_what_is_no_setting_is_said(settings: Any, reason: str) -> None:
    assert reason in why({"prompt": "a"} | settings)


# --- ids and seeds ----------------------------------------------------------------------------------------------------


def test_without_an_id_it_is_the_number_of_the_line() -> None:
    found = from_text('{"prompt": "a"}\n\n  \n{"prompt": "b"}\n{"prompt": "c", "custom_id": "d"}')
    assert [(each.id, each.line) for each in found] == [(1, 1), (4, 4), ("d", 5)]


def test_an_id_that_was_there_is_refused_and_the_text_1_is_not_the_number() -> None:
    found = read({"id": 1, "prompt": "a"}, {"id": "1", "prompt": "b"}, {"id": 1, "prompt": "c"})
    assert [type(each) for each in found] == [Row, Row, BadRow]
    assert found[2] == BadRow(None, 3, "duplicate id 1")


def test_seeds_follow_from_the_id_wherever_the_row_stands() -> None:
    first = {each.id: each.request.seed for each in read(*ROWS) if isinstance(each, Row)}
    again = {each.id: each.request.seed for each in read(*reversed(ROWS)) if isinstance(each, Row)}
    other = {each.id: each.request.seed for each in read(*ROWS, defaults=replace(RAW, seed=2)) if isinstance(each, Row)}
    assert first == again
    assert len({*first.values()} | {*other.values()}) == 2 * len(ROWS)
    assert all(0 <= seed < 2**48 for seed in first.values())
    assert row({"id": "a", "prompt": "a"}).request.seed == 99715415805741  # rows of a resumed job need it


ROWS = [{"id": f"{number}", "prompt": "a"} for number in range(100)]


# --- what is done -----------------------------------------------------------------------------------------------------


def test_rows_that_are_done_are_passed_over() -> None:
    done = {row_key("a"): ""}
    lines = b'{"id": "a", "prompt": "x"}\n{"id": "b", "prompt": "x"}\nno json\nno json\n{"id": "a", "prompt": "y"}\n'
    left = from_text(lines, RowReader(RAW, done))
    assert [(each.id, each.line) for each in left] == [("b", 2), (None, 3), (None, 4), (None, 5)]
    assert not done


def test_a_row_that_was_changed_since_it_was_answered_is_not_passed_over() -> None:
    mark = row({"id": "a", "prompt": "x", "seed": 1}).mark
    done = {row_key("a"): mark, row_key("b"): ""}
    assert (
        from_text('{"seed": 1, "prompt": "x", "id": "a"}\n{"id": "b", "prompt": "any"}', RowReader(RAW, {**done})) == []
    )
    with pytest.raises(UsageError, match=r"row 'a' \(line 1\) has changed since it was answered"):
        from_text('{"seed": 2, "prompt": "x", "id": "a"}', RowReader(RAW, {**done}))


# --- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"prompt": "a"', "not JSON"),
        (b"nonsense", "not JSON (each line is one like"),
        (b"{nonsense", "not JSON (Expecting property name enclosed in double quotes: line 1 column 2"),
        (b'{"prompt": "\xff"}', "not JSON ('utf-8' codec can't decode byte 0xff in position 12"),
        (b"[" * 100_000, "not JSON (maximum recursion depth"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "not JSON (Exceeds the limit"),
        (b"x" * (MOST_BYTES + 5), "larger than 16 MB"),
    ],
)
def test_a_line_that_is_no_row_is_said_and_the_next_one_is_read(line: bytes, reason: str) -> None:
    bad, good = from_text(line + b'\n{"prompt": "b"}')
    assert isinstance(bad, BadRow)
    assert (bad.id, bad.line, reason in bad.why) == (None, 1, True)
    assert (good.id, good.line) == (2, 2)


def test_a_long_row_is_a_row() -> None:
    prompt = "word " * 2_000_000
    (found,) = from_text(json.dumps({"prompt": prompt}))
    assert isinstance(found, Row)
    assert found.request.prompt == prompt


@pytest.mark.slow
def test_a_line_of_the_greatest_length_is_read() -> None:
    start = b'{"prompt": "a"}'
    assert [type(each) for each in from_text(start.ljust(MOST_BYTES - 1) + b"\n" + start)] == [Row, Row]
    assert [type(each) for each in from_text(start.ljust(MOST_BYTES) + b"\n" + start)] == [Row, Row]
    assert [type(each) for each in from_text(start.ljust(MOST_BYTES + 1) + b"\n" + start)] == [BadRow, Row]


def test_a_byte_order_mark_and_windows_ends_of_lines_do_no_harm() -> None:
    found = from_text(b'\xef\xbb\xbf{"id": "a", "prompt": "x"}\r\n\r\n{"id": "b", "prompt": "y"}\r\n')
    assert [(each.id, each.line) for each in found] == [("a", 1), ("b", 3)]


def test_rows_of_joined_files_and_of_windows_shells_are_read() -> None:
    text = '{"id": "a", "prompt": "é"}\n\ufeff{"id": "b", "prompt": "\ufeffy"}\n\ufeff\n'
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        found = from_text(text.encode(encoding))
        assert [(each.id, each.line, each.request.prompt) for each in found if isinstance(each, Row)] == [
            ("a", 1, "é"),
            ("b", 2, "\ufeffy"),
        ]


@pytest.mark.parametrize("text", ["", "\n", "{}", "{}\n{}", "{}\n\n{}\n", "\n\n  \nx"])
def test_lines_are_counted_as_they_are_read(text: str) -> None:
    assert count_lines(io.BytesIO(text.encode())) == len(from_text(text))


def test_rows_are_read_one_at_a_time() -> None:
    def lines() -> Iterable[tuple[int, bytes]]:
        yield 1, b'{"prompt": "a"}'
        raise AssertionError("read ahead")

    first = next(RowReader(RAW).from_lines(lines()))
    assert first is not None
    assert first.line == 1


# --- a slow pipe ------------------------------------------------------------------------------------------------------


def there(arriving: Iterator[Item | None]) -> list[Item]:
    """Return the next item, once it is there; empty at the end."""
    return [*islice((item for item in arriving if item is not None), 1)]


def test_a_pipe_is_not_waited_for() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as file, os.fdopen(writer, "wb", buffering=0) as pipe:
        lines = read_ahead(read_lines(file))
        assert next(lines) is None
        for number in (1, 2):
            pipe.write(b"{}\n")
            assert there(lines) == [(number, b"{}\n")]
            assert next(lines) is None
        pipe.write(b"7")
        pipe.close()
        assert there(lines) == [(3, b"7")]
        assert there(lines) == []


def test_no_more_than_so_many_lines_of_a_pipe_are_read_ahead() -> None:
    n_read = 0

    def endless() -> Iterator[Line]:
        nonlocal n_read
        for n_read in count(1):
            yield n_read, b"{}"

    lines = read_ahead(endless())
    for number in range(1, 3 * MOST_AHEAD):
        assert there(lines) == [(number, b"{}")]
        assert n_read <= number + MOST_AHEAD + 1


def test_what_is_wrong_with_a_pipe_is_reported_behind_the_lines_before() -> None:
    def lines() -> Iterator[Line]:
        yield 1, b"{}"
        raise OSError("gone")

    arriving = read_ahead(lines())
    assert there(arriving) == [(1, b"{}")]
    with pytest.raises(OSError, match="gone"):
        there(arriving)
