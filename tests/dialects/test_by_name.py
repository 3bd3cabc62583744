"""Formats that a template does not show. The templates here have nothing but the text by which a format is known."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from answers import read

from edgespec.dialects.by_name import (
    FIREFUNCTION,
    FUNCTIONARY,
    GEMMA_4,
    HARMONY,
    KIMI_K2,
    KIMI_K3,
    LFM2,
    MUSE,
    SOLAR,
    known,
)
from edgespec.dialects.calls import ToolCall
from edgespec.dialects.dialect import Dialect
from edgespec.dialects.reader import reader

ROME = ("weather", {"city": "Rome", "days": 2})
JSON = '{"city": "Rome", "days": 2}'
TO_WEATHER = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>" + JSON
CASES: list[tuple[Dialect, str | None, str, tuple[str, str, list[Any]]]] = [
    (HARMONY, "<|start|>assistant", "<|channel|>final<|message|>Hi.", ("", "Hi.", [])),
    (
        HARMONY,
        "<|start|>assistant",
        f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{TO_WEATHER}",
        ("Hm.", "", [ROME]),
    ),
    (
        HARMONY,
        "<|start|>assistant",
        f" to=functions.weather<|channel|>commentary<|message|>{JSON}<|call|>",
        ("", "", [ROME]),
    ),
    (HARMONY, "<|start|>assistant", "<|channel|>commentary to=functions.nobody<|message|>{}", ("", "", [])),
    (
        MUSE,
        "<|start|>assistant",
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=weather<|message|><atem:function_calls>\n"
        '<atem:invoke name="weather">\n<atem:parameter name="city">Rome</atem:parameter>\n'
        '<atem:parameter name="days">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
        ("Hm.", "", [ROME]),
    ),
    (FUNCTIONARY, ">>>", f"all\nI look.>>>weather\n{JSON}", ("", "I look.", [ROME])),
    (GEMMA_4, None, '<|tool_call>call:weather{city:<|"|>Rome<|"|>,days:2}<tool_call|>', ("", "", [ROME])),
    (GEMMA_4, None, "<|channel>thought\nHm.<channel|>Hi.", ("Hm.", "Hi.", [])),
    (
        LFM2,
        None,
        '<|tool_call_start|>[weather(city="Rome", days=2), now()]<|tool_call_end|>',
        ("", "", [ROME, ("now", {})]),
    ),
    (LFM2, None, "[a link](x) and weather(city=1)", ("", "[a link](x) and weather(city=1)", [])),
    (
        KIMI_K2,
        "",
        "Hm.</think>So.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        f"{JSON}<|tool_call_end|><|tool_calls_section_end|>",
        ("Hm.", "So.", [ROME]),
    ),
    (
        KIMI_K3,
        "",
        "Hm.<|close|>think<|sep|><|open|>response<|sep|>So.<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Rome<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>2<|close|>argument<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
        ("Hm.", "So.", [ROME]),
    ),
    (FIREFUNCTION, None, f' functools[{{"name": "weather", "arguments": {JSON}}}]', ("", "", [ROME])),
    (
        SOLAR,
        None,
        "<|think|>Hm.<|end|><|tool_calls|><|tool_call:begin|>call1<|tool_call:name|>weather<|tool_call:args|>"
        f"{JSON}<|tool_call:end|><|calls|>",
        ("Hm.", "", [ROME]),
    ),
]


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(("dialect", "opened", "text", "expected"), CASES)
def test_an_answer_in_pieces_is_read(
    dialect: Dialect, opened: str | None, text: str, expected: tuple[str, str, list[Any]], size: int
) -> None:
    assert read(dialect, text, size, opened) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            '{a:<|"|>x, {y}<|"|>,b:[1,-2.5],c:{d:true,e:null}}',
            {"a": "x, {y}", "b": [1, -2.5], "c": {"d": True, "e": None}},
        ),
        ("{}", {}),
    ],
)
def test_values_of_gemma_have_their_types(written: str, expected: dict[str, Any]) -> None:
    found = reader(GEMMA_4, {"f": {}})
    *_, call = [*found.push(f"<|tool_call>call:f{written}<tool_call|>"), *found.end()]
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == expected


def test_a_template_is_known_by_a_text_in_it() -> None:
    assert known("{{ '<|start|>assistant<|channel|>final<|message|>' }}") is HARMONY
    assert known("{{ '<|channel>thought' }}") is GEMMA_4
    assert known("{{ messages }}") is None


DIALECTS = [HARMONY, MUSE, FUNCTIONARY, GEMMA_4, LFM2, KIMI_K2, KIMI_K3, FIREFUNCTION, SOLAR]
PARTS = [
    "weather",
    "functions.",
    "city",
    '"',
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "=",
    ":",
    ",",
    "1",
    "None",
    " ",
    "\n",
    "\\",
]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_answer_is_an_error(dialect: Dialect) -> None:
    """Marks and parts of calls in any order."""
    chance = random.Random(1)
    texts = [*dialect.marks, *PARTS]
    for _ in range(300):
        text = "".join(chance.choices(texts, k=chance.randint(1, 30)))
        read(dialect, text, chance.choice((1, 4, 1000)), chance.choice((None, "")))


@pytest.mark.parametrize(
    "text",
    [
        "<|tool_call>call:weather{city:" + "[" * 5000,
        "<|tool_call>call:weather{city:" + "{a:" * 5000 + "<tool_call|>",
    ],
)
def test_what_is_nested_too_deeply_is_no_call(text: str) -> None:
    _, said, calls = read(GEMMA_4, text, 10_000)
    assert not calls
    assert said
    assert text.endswith(said)


def test_calls_of_python_that_are_none_are_text() -> None:
    for call in ("weather(1)", "weather(" + "-" * 9000 + "1)", "nobody(city=1)", "weather(**city)"):
        text = f"<|tool_call_start|>[{call}]<|tool_call_end|>"
        assert read(LFM2, text, 10_000) == ("", text, []), call[:30]


def test_calls_of_python_with_other_values_than_literals_are_not_complete() -> None:
    for value in ("[].x)", "{[]: 1})", "1b)", "'a' + 'b')", "-" * 9000 + "1)", "b'a')", '"a" "b")', "1, city=2)"):
        text = f"<|tool_call_start|>[weather(city={value}]<|tool_call_end|>"
        assert len(read(LFM2, text, 10_000)[2]) == (value == '"a" "b")'), value[:30]
