"""Calls of tools in the streams of every format: sent while they arrive, and the same as in a whole answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.stats import Stats
from edgespec.dialects.dialect import HERMES, Dialect
from edgespec.events import FinishReason, TokenEvent
from edgespec.serve.anthropic import Members, MessageObject
from edgespec.serve.chat import Call, Piece, PieceReader, Writer
from edgespec.serve.ollama import OllamaChatObject
from edgespec.serve.openai import ChatObject
from edgespec.serve.responses import ResponseObject
from edgespec.settings import Request

TEXT = {"type": "string"}
SCHEMAS = {"write": {"type": "object", "properties": {"path": TEXT, "text": TEXT}}, "patch": {}}
CUSTOM: dict[str, Any] = {"tools": [{"type": "custom", "name": "patch"}]}
GIVEN = {"path": "a.py", "text": 'print("é")\n' * 5}
Item = tuple[str, ...]
"""A call with its name and its arguments, or a text."""


def written(arguments: Any, name: str = "write") -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


ANSWER = f"I write it.\n\n{written(GIVEN)}\n{written({'path': 'b.py', 'text': ''})}"
CUT = ANSWER[: ANSWER.rindex(", ")]  # in the second call
FORMATS = [ChatObject, MessageObject, ResponseObject, OllamaChatObject]


def answered(
    parts: Iterable[str], reason: FinishReason = "stop", most: int | None = None, **request: Any
) -> tuple[Call, list[Piece]]:
    """Return a call, and the pieces of its answer, whose text arrives in these parts."""

    events = [TokenEvent(1, part, logprob=-1.0) for part in parts]
    events.append(TokenEvent(-1, "", finish_reason=reason, stats=Stats()))
    call = Call("m", [Request(**request)], dialect=Dialect(calls=HERMES), schemas=SCHEMAS, most_calls=most)
    reader = PieceReader(call, 0)
    return call, [piece for event in events for piece in reader.read(event)]


def whole(style: type[Writer], call: Call, found: Sequence[Piece], body: dict[str, Any]) -> Any:
    writer = style(call, body)
    for piece in found:
        writer.take(writer.shown(piece))
    return writer.whole()


def chunks(style: type[Writer], call: Call, found: Sequence[Piece], body: dict[str, Any]) -> list[dict[str, Any]]:
    writer = style(call, body)
    made = [chunk for piece in found for chunk in writer.chunks(writer.shown(piece))]
    return [json.loads(json.dumps(chunk)) for chunk in (*made, *writer.rest())]


def loaded(arguments: str) -> Any:
    """Return arguments as Messages have them whole: those of a call that is cut off are empty."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {}


def from_chat(found: list[dict[str, Any]]) -> tuple[list[Item], str]:
    text, calls = "", dict[int, list[str]]()
    for chunk in found:
        delta = chunk["choices"][0]["delta"]
        text += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                kind, name, field = (
                    ("function", "name", "arguments") if call["type"] == "function" else ("custom", "name", "input")
                )
                calls[call["index"]] = [call[kind][name], call[kind][field]]
            else:
                calls[call["index"]][1] += call["function"]["arguments"]
    return [(text,), *map(tuple, calls.values())], found[-1]["choices"][0]["finish_reason"]


def of_chat(made: Any) -> tuple[list[Item], str]:
    choice = made["choices"][0]
    calls = [
        call["function" if call["type"] == "function" else "custom"] for call in choice["message"].get("tool_calls", ())
    ]
    said: list[Item] = [tuple(call.values()) for call in calls]
    return [(choice["message"]["content"] or "",), *said], choice["finish_reason"]


def from_messages(found: list[dict[str, Any]]) -> tuple[list[Item], str]:
    blocks, open_at = list[list[str]](), -1
    for event in found:
        kind = event["type"]
        if kind == "content_block_start":
            assert event["index"] == open_at + 1 == len(blocks)
            blocks.append([event["content_block"].get("name", ""), ""])
        elif kind == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            blocks[-1][1] += event["delta"].get("text") or event["delta"].get("partial_json", "")
        elif kind == "content_block_stop":
            open_at = event["index"]
    ended = next(event["delta"]["stop_reason"] for event in found if event["type"] == "message_delta")
    return [(name, json.dumps(loaded(said))) if name else (said,) for name, said in blocks], ended


def of_messages(made: Any) -> tuple[list[Item], str]:
    said: list[Item] = [
        (block["text"],) if block["type"] == "text" else (block["name"], json.dumps(block["input"]))
        for block in made["content"]
    ]
    return said, made["stop_reason"]


def from_responses(found: list[dict[str, Any]]) -> tuple[list[Item], str]:
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    items, done = list[list[str]](), list[Any]()
    for event in found:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(items) == len(done)
            items.append([*filter(None, [event["item"].get("name")]), ""])
        elif kind.endswith(".delta"):
            items[-1][-1] += event["delta"]
        elif kind == "response.function_call_arguments.done":
            assert items[-1] == [event["name"], event["arguments"]]
        elif kind == "response.output_item.done":
            done.append(event["item"])
    assert found[-1]["response"]["output"] == done
    return [tuple(item) for item in items], f"{[item['status'] for item in done]}"


def of_responses(made: Any) -> tuple[list[Item], str]:
    said: list[Item] = [
        (item["content"][0]["text"],)
        if item["type"] == "message"
        else (item["name"], item.get("arguments", item.get("input")))
        for item in made["output"]
    ]
    return said, f"{[item['status'] for item in made['output']]}"


def from_ollama(found: list[dict[str, Any]]) -> tuple[list[Item], str]:
    text = "".join(chunk["message"]["content"] for chunk in found)
    calls = [call["function"] for chunk in found for call in chunk["message"].get("tool_calls", ())]
    return [(text,), *((call["name"], json.dumps(call["arguments"])) for call in calls)], found[-1]["done_reason"]


def of_ollama(made: Any) -> tuple[list[Item], str]:
    return from_ollama([made])


VIEWS: dict[type[Writer], Any] = {
    ChatObject: (from_chat, of_chat),
    MessageObject: (from_messages, of_messages),
    ResponseObject: (from_responses, of_responses),
    OllamaChatObject: (from_ollama, of_ollama),
}


def both(style: type[Writer], answer: str, reason: FinishReason = "stop", **more: Any) -> tuple[list[Item], str]:
    """Return the items and the finish reason of an answer, which are the same whole and as a stream."""
    body = more.pop("body", {})
    from_stream, of_whole = VIEWS[style]
    expected: tuple[list[Item], str] = of_whole(whole(style, *answered([answer], reason, **more), body))
    for parts in ([answer], list(answer), [answer[:40], answer[40:95], answer[95:]]):
        call, found = answered(parts, reason, **more)
        assert from_stream(chunks(style, call, found, body)) == expected
        assert of_whole(whole(style, call, found, body)) == expected
    return expected


@pytest.mark.parametrize("style", FORMATS)
def test_calls_are_the_same_whole_and_as_a_stream(style: type[Writer]) -> None:
    items, reason = both(style, ANSWER)
    assert [item[0].strip() for item in items] == ["I write it.", "write", "write"]
    assert [json.loads(item[1]) for item in items[1:]] == [GIVEN, {"path": "b.py", "text": ""}]
    assert reason in ("tool_calls", "tool_use", "stop", "['completed', 'completed', 'completed']")
    assert len(both(style, ANSWER, most=1)[0]) == 2


@pytest.mark.parametrize("style", FORMATS)
def test_a_call_that_is_cut_off_at_the_limit_is_not_taken_for_a_complete_one(style: type[Writer]) -> None:
    items, reason = both(style, CUT, "length")
    assert reason in ("length", "max_tokens", "['completed', 'completed', 'incomplete']")
    if style is OllamaChatObject:
        assert len(items) == 2
        assert items[0][0].endswith('{"name": "write", "arguments": {"path": "b.py"')
    else:
        assert items[-1] == ("write", "{}" if style is MessageObject else '{"path": "b.py"')
    for answer in (CUT, f"{CUT} or not"):  # the model ends it
        assert both(style, answer)[1] in ("stop", "end_turn") or style is ResponseObject


@given(st.dictionaries(st.sampled_from(["path", "text", "é"]), st.text('a"\\\n\x01é{}<tool_cal>/😀', max_size=12)))
@pytest.mark.parametrize("style", FORMATS)
@pytest.mark.slow
def test_any_texts_are_the_same_whole_and_as_a_stream(style: type[Writer], arguments: dict[str, str]) -> None:
    (*_, (name, said)), _ = both(style, written(arguments))
    assert (name, json.loads(said)) == ("write", arguments)


def test_arguments_are_sent_while_they_arrive() -> None:
    head, _, tail = written(GIVEN).partition("print")
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks(ChatObject, *answered([head, "print"]), {})]
    (first,), (second,), (third,) = (delta["tool_calls"] for delta in deltas if "tool_calls" in delta)
    assert first["function"] == {"name": "write", "arguments": ""}
    assert [second, third] == [
        {"index": 0, "function": {"arguments": '{"path": "a.py", "text": "'}},
        {"index": 0, "function": {"arguments": "print"}},
    ]
    kinds = [event["type"] for event in chunks(ResponseObject, *answered([head, "print", tail]), {})]
    assert kinds.count("response.function_call_arguments.delta") > 2
    assert kinds.count("response.function_call_arguments.done") == 1
    for eager in (False, True):
        call, pieces = answered([head, "print", tail])
        call.eager = frozenset({"write"} if eager else ())
        kinds = [event["type"] for event in chunks(MessageObject, call, pieces, {})]
        assert (kinds.count("content_block_delta") > 2) is eager


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=5), st.recursive(st.text(max_size=9), st.lists)), st.integers(1, 9), st.data())
def test_members_are_complete_and_those_of_a_cut_object_are_an_object(
    value: dict[str, Any], size: int, data: st.DataObject
) -> None:
    text, members, sent = json.dumps(value), Members(), ""
    cut = data.draw(st.integers(0, len(text)))
    for at in range(0, cut, size):
        sent += members.add(text[at : min(at + size, cut)])
        if sent:
            json.loads(sent if sent.endswith("}") and sent == text else sent + "}")
    assert text.startswith(sent)
    assert members.text == sent
    if cut == len(text):
        assert sent == text
    else:
        assert json.loads(sent + members.closed()).items() <= value.items()


def test_each_token_has_its_log_probability_in_one_chunk() -> None:
    answer = written(GIVEN)
    found = chunks(ChatObject, *answered(list(answer), logprobs=0), {})
    scored = [entry for chunk in found for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert len(scored) == len(answer)


@pytest.mark.parametrize("style", [ChatObject, ResponseObject])
def test_the_input_of_a_custom_tool_is_sent_when_it_is_complete(style: type[Writer]) -> None:
    """Any text is valid for it, so that one that is cut off could be taken for a complete one."""
    answer = written({"input": "*** Begin"}, "patch")
    assert both(style, answer, body=CUSTOM)[0][-1] == ("patch", "*** Begin")
    ((text,),), _ = both(style, answer[:-18], "length", body=CUSTOM)
    assert text == answer[:-18]
