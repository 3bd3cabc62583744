"""Answers of all dialects as text with common marks."""

from __future__ import annotations

import pytest
from answers import SCHEMAS

from edgespec.dialects.by_name import GEMMA_4, HARMONY, SOLAR
from edgespec.dialects.dialect import THINK, Dialect
from edgespec.dialects.plain import PlainText

CALL = '{"city": "Rome"}'
TO_WEATHER = f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{CALL}"
THOUGHT = "<|channel|>analysis<|message|>Hm."
NEXT = "<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
THINKING = Dialect(THINK)


def plain(dialect: Dialect, text: str, size: int, opened: str | None, begun: str = "", *, hides: bool = False) -> str:
    made = PlainText(dialect, opened, begun, SCHEMAS, hides=hides)
    pieces = [made.push(text[at : at + size]) for at in range(0, len(text), size)]
    return "".join([*pieces, made.end()])


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("dialect", "opened", "text", "expected"),
    [
        (THINKING, None, "<think>Hm.</think> Hi.", "<think>Hm.</think> Hi."),
        (THINKING, "\n", "Hm.\n</think>\n\nHi.", "<think>\nHm.\n</think>\n\nHi."),
        (THINKING, "", "Hm.</think>Hi.", "<think>\nHm.</think>Hi."),
        (Dialect(("[THINK]", "[/THINK]")), None, "[THINK]Hm.[/THINK]Hi.", "<think>\nHm.\n</think>\n\nHi."),
        (Dialect(("[THINK]", "[/THINK]")), None, "[THINK]Hm.[/THINK]", "<think>\nHm.\n</think>\n\n"),
        (Dialect(("[THINK]", "[/THINK]")), None, "[THINK]Hm.", "<think>\nHm."),
        (GEMMA_4, None, "<|channel>thought\nHm.<channel|>Hi.", "<think>\nHm.\n</think>\n\nHi."),
        (GEMMA_4, None, "<|tool_call>call:now{}<tool_call|>", "<|tool_call>call:now{}<tool_call|>"),
        (SOLAR, "", "Hm.<|end|><|begin|>assistant<|content|>Hi.", "<think>\nHm.\n</think>\n\nHi."),
        (HARMONY, "<|start|>assistant", f"{FINAL}Hi.", "Hi."),
        (HARMONY, "<|start|>assistant", f"{THOUGHT}{NEXT}{FINAL}Hi.", "<think>\nHm.\n</think>\n\nHi."),
        (
            HARMONY,
            "<|start|>assistant",
            f"{THOUGHT}{NEXT}{TO_WEATHER}",
            f'<think>\nHm.\n</think>\n\n<tool_call>\n{{"name": "weather", "arguments": {CALL}}}\n</tool_call>',
        ),
    ],
)
def test_answers_are_written_with_common_marks(
    dialect: Dialect, opened: str | None, text: str, expected: str, size: int
) -> None:
    assert plain(dialect, text, size, opened) == expected


@pytest.mark.parametrize(
    ("dialect", "opened", "begun", "text", "expected"),
    [
        (THINKING, "\n", "Hm", ".</think>Hi.", ".</think>Hi."),
        (GEMMA_4, None, "<|channel>thought\nHm", ".<channel|>Hi.", ".\n</think>\n\nHi."),
        (GEMMA_4, None, "<|channel>thought\nHm.<channel|>H", "i.", "i."),
        (HARMONY, "<|start|>assistant", THOUGHT[:-1], f".{NEXT}{FINAL}Hi.", ".\n</think>\n\nHi."),
        (HARMONY, "<|start|>assistant", f"{THOUGHT}{NEXT}{FINAL}H", "i.", "i."),
    ],
)
def test_a_continued_answer_has_only_what_is_new(
    dialect: Dialect, opened: str | None, begun: str, text: str, expected: str
) -> None:
    assert plain(dialect, text, 2, opened, begun) == expected


def test_reasoning_before_a_constrained_answer_is_left_out() -> None:
    assert plain(THINKING, "Hm.</think>\n\n{}", 2, "\n", hides=True) == "{}"
    assert plain(HARMONY, f"{THOUGHT}{NEXT}{FINAL}{{}}", 5, "<|start|>assistant", hides=True) == "{}"
