"""Results of tools as they are stored, shown and sent, and calls in answers."""

from __future__ import annotations

import pytest

from edgespec.dialects.forms import LLAMA, MISTRAL, TAGS
from edgespec.tools.offer import Style, TextFilter, ToolOffer
from edgespec.tools.results import ToolResult, cut, readable, shown_arguments

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def test_a_result_comes_back_from_a_stored_message() -> None:
    result = ToolResult("server/tool", '{"text": "a\\nb"}', "error", "one\ntwo\n")
    assert ToolResult.of(result.content) == result
    assert result.told == "Error: one\ntwo\n"


@pytest.mark.parametrize("content", ["", "sunny", "a\nok\nb", "a [1]\nok\nb", "a {\nok\nb", "a {}\nperhaps\nb"])
def test_messages_of_other_programs_are_results_without_a_call(content: str) -> None:
    assert ToolResult.of(content) == ToolResult("", "{}", "ok", content)


def test_results_are_cut_to_tokens() -> None:
    count = lambda text: len(text) // 2  # noqa: E731
    assert cut("x" * 100, 0, 50, count) == "x" * 100
    assert cut("x" * 1000, 5, 50, count) == "x" * 100 + "\n[905 more characters were cut off]"
    assert cut("x" * 10**7, 0, 50, count).startswith("x" * 100)
    assert cut("x" * 100, 0, 0, count) == "x" * 32 + "\n[68 more characters were cut off]"


def test_results_cannot_control_a_terminal() -> None:
    assert readable("\x1b[2Ja\r\nb\x07\x9b") == "\ufffd[2Ja\nb\ufffd\ufffd"


def test_arguments_are_shown_as_they_are() -> None:
    given = '{"n": 5, "list": [1, "x"], "name": "a \\u202e b\\u001b[2J", "code": "one\\n  two"}'
    assert shown_arguments(given).split("\n") == [
        "n: 5",
        'list: [1, "x"]',
        'name: "a \\u202e b\\u001b[2J"',
        "code:",
        "  one",
        "    two",
    ]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("plain text", "plain text"),
        (f"First.\n{CALL}\n{CALL}", "First."),
        (f"<think>{CALL}</think>\n\nSo:\n{CALL}", f"<think>{CALL}</think>\n\nSo:"),
        (f"<think>never ends {CALL}", f"<think>never ends {CALL}"),
        ("<tool_call>nothing", "<tool_call>nothing"),
        (f"Cut: {CALL[:-20]}", f"Cut: {CALL[:-20]}"),
        (f"Broken: {CALL[:-20]}!", f"Broken: {CALL[:-20]}!"),
        ("", ""),
    ],
)
def test_calls_are_left_out_of_a_text_that_streams(answer: str, shown: str, size: int) -> None:
    parts = TextFilter(ToolOffer(Style(TAGS), {"add": {}}, ""))
    said = "".join(parts.push(answer[at : at + size]) for at in range(0, len(answer), size)) + parts.end()
    assert said == shown


@pytest.mark.parametrize(
    ("format", "answer", "spans"),
    [
        (TAGS, f"<think>{CALL}</think>\n\nSo:\n {CALL} {CALL}", [CALL, CALL]),
        (TAGS, CALL + " ...", [CALL]),
        (
            MISTRAL,
            'Yes.[TOOL_CALLS][{"name": "add", "arguments": {}}]',
            ['[TOOL_CALLS][{"name": "add", "arguments": {}}]'],
        ),
        (LLAMA, '{"name": "add", "parameters": {}}', ['{"name": "add", "parameters": {}}']),
        (TAGS, '<tool_call>{"name": "other", "arguments": {}}</tool_call>', []),
    ],
)
def test_the_places_of_calls_in_an_answer_are_known(format: object, answer: str, spans: list[str]) -> None:
    calls = ToolOffer(Style(format), {"add": {}}, "").calls(answer)  # type: ignore[arg-type]
    assert [answer[call.span[0] : call.span[1]] for call in calls] == spans
