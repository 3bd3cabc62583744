"""Arguments of calls that are read while they arrive, in every form."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from answers import check_pieces
from hypothesis import given
from hypothesis import strategies as st

from edgespec.dialects.by_name import FIREFUNCTION, FUNCTIONARY, GEMMA_4, HARMONY, KIMI_K2, KIMI_K3, LFM2, MUSE, SOLAR
from edgespec.dialects.calls import AnswerPart, CallPiece, CutCall, ToolCall
from edgespec.dialects.dialect import HERMES, Calls, Dialect
from edgespec.dialects.forms import QWEN_CODER
from edgespec.dialects.reader import reader

Arguments = dict[str, Any]

TEXT = {"type": "string"}
WRITE = {"type": "object", "properties": {"path": TEXT, "text": TEXT, "lines": {"type": "array"}, "more": {}}}
SCHEMAS = {"write": WRITE}
FIELDS = Calls("json", section=("<do>", "</do>"), keys=("tool", "with", "id"), wrapper="call")
KEYS = Calls("json", call=("<do>", "</do>"), keys=("", "", ""))
PAIRS = Calls("tagged", call=("<do>", "</do>"), key=("<k>", "</k>"), value=("<v>", "</v>"))
ELEMENTS = Calls("tagged", call=('<do name="', "</do>"), name=("", '">'), key=("<", ">"), value=("", "</{name}>"))


def in_json(given: Any) -> str:
    return json.dumps(given, ensure_ascii=False)


def in_tags(begin: str, key: str, end: str) -> Callable[[Arguments], str]:
    """Return how calls are written whose texts stand between marks as they are, and other values as JSON."""

    def written(given: Arguments) -> str:
        values = ((name, value if isinstance(value, str) else in_json(value)) for name, value in given.items())
        return begin + "".join(key.format(name=name, value=value) for name, value in values) + end

    return written


def in_gemma(given: Any) -> str:
    if isinstance(given, dict):
        return "{" + ",".join(f"{name}:{in_gemma(value)}" for name, value in given.items()) + "}"
    if isinstance(given, list):
        return "[" + ",".join(map(in_gemma, given)) + "]"
    return f'<|"|>{given}<|"|>' if isinstance(given, str) else in_json(given)


def in_python(given: Arguments) -> str:
    return "write(" + ", ".join(f"{name}={value!r}" for name, value in given.items()) + ")"


FORMS: dict[str, tuple[Dialect, str | None, Callable[[Arguments], str]]] = {
    "json": (
        Dialect(calls=HERMES),
        None,
        lambda given: f'<tool_call>\n{{"name": "write", "arguments": {json.dumps(given, indent=1)}}}\n</tool_call>',
    ),
    "fields": (
        Dialect(calls=FIELDS),
        None,
        lambda given: f'<do>[{{"call": {{"id": 3, "tool": "write", "with": {in_json(given)}}}}}]</do>',
    ),
    "arguments first": (
        Dialect(calls=FIELDS),
        None,
        lambda given: f'<do>{{"with": {in_json(given)}, "tool": "write", "why": [{{}}]}}</do>',
    ),
    "arguments as text": (
        Dialect(calls=FIELDS),
        None,
        lambda given: f'<do>{{"tool": "write", "with": {in_json(in_json(given))}}}</do>',
    ),
    "names as keys": (Dialect(calls=KEYS), None, lambda given: f'<do>{{"write": {in_json(given)}}}</do>'),
    "without marks": (
        Dialect(calls=Calls("json")),
        None,
        lambda given: f'{{"name": "write", "parameters": {in_json(given)}}}',
    ),
    "firefunction": (
        FIREFUNCTION,
        None,
        lambda given: f' functools[{{"name": "write", "arguments": {in_json(given)}}}]',
    ),
    "mistral": (
        Dialect(calls=Calls("named", call=("[TOOL_CALLS]", ""))),
        None,
        lambda given: f"[TOOL_CALLS]write[ARGS]{in_json(given)}",
    ),
    "kimi": (
        KIMI_K2,
        None,
        lambda given: (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.write:0<|tool_call_argument_begin|>"
            f"{in_json(given)}<|tool_call_end|><|tool_calls_section_end|>"
        ),
    ),
    "solar": (
        SOLAR,
        None,
        lambda given: (
            "<|tool_calls|><|tool_call:begin|>1<|tool_call:name|>write<|tool_call:args|>"
            f"{in_json(given)}<|tool_call:end|><|calls|>"
        ),
    ),
    "tagged": (
        Dialect(calls=QWEN_CODER),
        None,
        in_tags(
            "<tool_call>\n<function=write>\n",
            "<parameter={name}>\n{value}\n</parameter>\n",
            "</function>\n</tool_call>",
        ),
    ),
    "pairs": (Dialect(calls=PAIRS), None, in_tags("<do>write\n", "<k>{name}</k>\n<v>{value}</v>\n", "</do>")),
    "elements": (
        Dialect(calls=ELEMENTS),
        None,
        in_tags('<do name="write">', "<{name}>{value}</{name}>\n", "</do>"),
    ),
    "attributes": (
        KIMI_K3,
        None,
        in_tags(
            '<|open|>tools<|sep|><|open|>call tool="write" index="1"<|sep|>',
            '<|open|>argument key="{name}" type="string"<|sep|>{value}<|close|>argument<|sep|>',
            "<|close|>call<|sep|><|close|>tools<|sep|>",
        ),
    ),
    "python": (LFM2, None, lambda given: f"<|tool_call_start|>[{in_python(given)}]<|tool_call_end|>"),
    "gemma": (GEMMA_4, None, lambda given: f"<|tool_call>call:write{in_gemma(given)}<tool_call|>"),
    "harmony": (
        HARMONY,
        "<|start|>assistant",
        lambda given: f" to=functions.write<|channel|>commentary<|message|>{in_json(given)}<|call|>",
    ),
    "functionary": (FUNCTIONARY, ">>>", lambda given: f"write\n{in_json(given)}"),
    "muse": (
        MUSE,
        "<|start|>assistant",
        in_tags(
            ' to=write<|message|><atem:function_calls>\n<atem:invoke name="write">\n',
            '<atem:parameter name="{name}">{value}</atem:parameter>\n',
            "</atem:invoke>\n</atem:function_calls>",
        ),
    ),
}
AS_THEY_ARE = ("tagged", "pairs", "elements", "attributes", "gemma", "muse")
"""Forms that do not escape texts. Texts for them have no marks, and no blanks at their ends."""

HOSTILE = ('"', "'", '"""', "\\", "\\n", "\n", "\t", "\x07", "é", "\u2028", "😀", "{", "}", "[", "]", ",", ":", "=")
MARKS = ("<tool_call>", "</tool_call>", "<do>", "</do>", "[ARGS]", "</parameter", "<|", "[TOOL_CALLS]", "</", "<b>")
TEXTS = st.lists(st.sampled_from((*HOSTILE, *MARKS, "a", "b c", " ")), max_size=8).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(-1e9, 1e9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=5,
)


def parts_of(form: str, text: str, cuts: list[int]) -> list[AnswerPart]:
    """Return the parts of an answer that is cut into pieces at these places."""
    dialect, opened, _ = FORMS[form]
    found, parts, at = reader(dialect, SCHEMAS, opened=opened), list[AnswerPart](), 0
    for cut in [*sorted(cuts), len(text)]:
        parts += found.push(text[at:cut])
        at = max(at, cut)
    return parts + found.end()


def summary(parts: list[AnswerPart]) -> tuple[str, list[tuple[Any, ...]]]:
    """Return the content of an answer, and its calls without their ids, which are random."""
    check_pieces(parts)
    said = "".join(part[1] for part in parts if isinstance(part, tuple))
    calls = [part for part in parts if isinstance(part, ToolCall | CutCall)]
    return said, [(type(call), call.name, call.arguments, call.number) for call in calls]


@given(st.sampled_from([*FORMS]), TEXTS, VALUES, st.data())
@pytest.mark.slow
def test_pieces_of_a_call_are_its_arguments(form: str, text: str, value: Any, data: st.DataObject) -> None:
    if form in AS_THEY_ARE:
        text = "".join(part for part in text if part not in '<>|[]"')
        text, value = f"({text})", data.draw(st.integers() | st.lists(st.integers()) | st.just("(text)"))
    given = {"path": text, "lines": [1], "more": value, "text": "last"}
    written = FORMS[form][2](given)
    whole = summary(parts_of(form, written, []))
    ((kind, name, arguments, number),) = whole[1]
    assert (kind, name, number, whole[0]) == (ToolCall, "write", 0, "")
    assert json.loads(arguments) == given
    cuts = data.draw(st.lists(st.integers(0, len(written)), max_size=30))
    assert summary(parts_of(form, written, cuts)) == whole
    assert summary(parts_of(form, written, [*range(len(written))])) == whole


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", ["a\n", "\na", "\n\na\n\n", "  a  "])
def test_blanks_at_the_ends_of_a_text_are_kept(form: str, text: str) -> None:
    """The last line of a file ends with a line break."""
    for arguments in ({"path": "a.py", "text": text}, {"text": text, "path": "a.py"}):
        written = FORMS[form][2](arguments)
        for cuts in ([], [*range(len(written))]):
            ((_, _, found, _),) = summary(parts_of(form, written, cuts))[1]
            assert json.loads(found) == arguments


@given(st.sampled_from([*FORMS]), TEXTS, st.data())
@pytest.mark.slow
def test_what_is_cut_off_or_broken_is_the_same_however_it_arrives(form: str, text: str, data: st.DataObject) -> None:
    written = FORMS[form][2]({"path": text, "more": {"a": [text, None]}, "text": text})
    end = data.draw(st.integers(0, len(written)))
    answer = written[:end] + data.draw(st.just("") | TEXTS | st.just(written[end // 2 :]))
    whole = summary(parts_of(form, answer, []))
    assert summary(parts_of(form, answer, [*range(len(answer))])) == whole
    assert summary(parts_of(form, answer, data.draw(st.lists(st.integers(0, len(answer)), max_size=9)))) == whole


@pytest.mark.parametrize("form", FORMS)
def test_a_long_text_is_sent_while_it_arrives(form: str) -> None:
    """The last words of a text that has arrived are missing, not more."""
    text = "one line of text, and another one; " * 40
    dialect, opened, written = FORMS[form]
    answer = written({"path": "a.py", "text": text})
    found = reader(dialect, SCHEMAS, opened=opened)
    until = answer.index("; ", len(answer) // 2)
    parts = [part for at in range(until) for part in found.push(answer[at])]
    sent = "".join(part.text for part in parts if isinstance(part, CallPiece))
    if form in ("arguments first", "arguments as text"):  # the name, or the object, is not known before the end
        assert sent == ""
    else:
        assert sent.startswith('{"path": "a.py", "text": "one line')
        assert len(sent) > until - len(answer) + len(text)
    assert not any(isinstance(part, ToolCall) for part in parts)


@pytest.mark.parametrize("form", FORMS)
def test_a_call_that_is_cut_off_has_the_arguments_so_far(form: str) -> None:
    answer = FORMS[form][2]({"path": "a.py", "text": "some words"})
    said, calls = summary(parts_of(form, answer[: answer.index(" words")], []))
    if form in ("arguments first", "arguments as text"):
        assert not calls
    else:
        assert (said, calls) == ("", [(CutCall, "write", '{"path": "a.py", "text": "some', 0)])


@pytest.mark.parametrize(
    ("form", "text", "arguments", "rest"),
    [
        ("json", '<tool_call>{"name": "write", "arguments": {"path": "a" oops', '{"path": "a"', "oops"),
        ("json", '<tool_call>{"name": "write", "arguments": {"path": "a"}, oops', '{"path": "a"', "oops"),
        ("json", '<tool_call>{"name": "write", "arguments": {"more": 1e999}}', '{"more": ', "1e999}}"),
        ("python", "<|tool_call_start|>[write(path='a' + 'b')]", '{"path": "a', "+ 'b')]"),
        ("gemma", '<|tool_call>call:write{path:<|"|>a<|"|>,:}', '{"path": "a", ', ":}"),
        ("harmony", ' to=write<|message|>{"path": "a"} {"path": "b"}', '{"path": "a"', ""),
    ],
)
def test_a_call_that_is_broken_stays_what_it_is_by_then(form: str, text: str, arguments: str, rest: str) -> None:
    for cuts in ([], [*range(len(text))]):
        said, ((kind, _, given, _),) = summary(parts_of(form, text, cuts))
        assert (kind, given, said.strip()) == (CutCall, arguments, rest)


def test_calls_that_the_client_does_not_expect_have_no_pieces() -> None:
    call = '<tool_call>{"name": "write", "arguments": {"path": "a"}}</tool_call>'
    found = reader(Dialect(calls=HERMES), SCHEMAS, most=1)
    parts = [part for character in call * 3 for part in found.push(character)] + found.end()
    assert summary(parts) == ("", [(ToolCall, "write", '{"path": "a"}', 0)])


@pytest.mark.slow
def test_the_time_of_a_long_call_grows_with_its_length() -> None:
    """Each piece of a call is read once. Before, the whole call was: 200 kB took half a minute."""
    answer = FORMS["json"][2]({"path": "a.py", "text": 'print("hello")\n' * 14_000})
    started = time.process_time()
    parts = parts_of("json", answer, [*range(0, len(answer), 4)])
    assert time.process_time() - started < 15
    assert isinstance(parts[-1], ToolCall)
