"""The inner form: reasoning apart from the text, in whatever pieces it arrives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.stats import Stats
from edgespec.dialects.dialect import THINK, Dialect
from edgespec.events import TokenEvent
from edgespec.serve.chat import Call, PieceReader, timings
from edgespec.settings import Request
from edgespec.text.thinking import ThinkingStream


def split(parts: list[str], *, opened: bool = False) -> tuple[str, str]:
    """Reasoning and text of an answer that arrives so."""
    thinking = ThinkingStream(opened=opened, trims=True)
    found = [pair for part in parts for pair in thinking.push(part)] + thinking.end()
    reasoning, text = ("".join(text for kind, text in found if kind == wanted) for wanted in ("thinking", "answer"))
    return reasoning, text


@pytest.mark.parametrize(
    ("answer", "opened", "expected"),
    [
        ("<think>\na\n\nb\n</think>\n\nc\n", False, ("a\n\nb", "c\n")),
        ("\na\n</think>\n\nc", True, ("a", "c")),
        ("no <think> here", False, ("", "no <think> here")),
        ("\n\nplain\n", False, ("", "\n\nplain\n")),
        ("<think>never closed", False, ("never closed", "")),
        ("<thi", False, ("", "<thi")),
    ],
)
def test_reasoning_is_split_however_it_arrives(answer: str, opened: bool, expected: tuple[str, str]) -> None:
    assert split([answer], opened=opened) == expected
    assert split(list(answer), opened=opened) == expected


@given(st.lists(st.sampled_from(["<think>", "</think>", "\n", "a", "<", "th", "ink>"]), max_size=12))
@pytest.mark.slow
def test_pieces_change_nothing(parts: list[str]) -> None:
    assert split(parts) == split(["".join(parts)])


def test_an_answer_ends_with_its_reason_and_tokens_come_with_their_text() -> None:
    reader = PieceReader(Call("m", [Request(logprobs=0)]), 0)
    events = [TokenEvent(5, "a", logprob=-1.0), TokenEvent(6, "", logprob=-2.0)]
    events.append(TokenEvent(-1, "b", finish_reason="length", stats=Stats()))
    first, second, rest, end = (piece for event in events for piece in reader.read(event))
    assert (first.text, first.tokens[0].id) == ("a", 5)
    assert (second.text, second.tokens[0].id) == ("", 6)
    assert rest.text == "b"
    assert end.end is not None
    assert (end.end.reason, end.end.n_tokens) == ("length", 2)


@pytest.mark.parametrize(
    ("texts", "opened", "n_reasoning"),
    [
        (["<think>", "\n", "a", "b", "\n", "</think>", "\n\n", "c", "d"], False, 6),
        (["a", "", "b", "\n", "</th", "ink>", "c"], True, 6),
        (["a", "b"], True, 2),
        (["<", "thi", "nk>", "a</think>b", "c"], False, 4),
        (["<think>a</think>b", "c"], False, 1),
        (["<think>", "</think>", "c"], False, 0),
        (["\n", "<thi", "s is text", "<think>", "no"], False, 0),
    ],
)
def test_tokens_of_reasoning_are_counted_with_their_marks(texts: list[str], opened: bool, n_reasoning: int) -> None:
    call = Call("m", [Request()], splits=True, opened="" if opened else None, dialect=Dialect(THINK))
    reader = PieceReader(call, 0)
    events = [*(TokenEvent(5, text) for text in texts), TokenEvent(-1, "", finish_reason="length", stats=Stats())]
    ends = [piece.end for event in events for piece in reader.read(event) if piece.end is not None]
    assert [(end.n_reasoning, end.n_tokens) for end in ends] == [(n_reasoning, len(texts))]


def test_timings_of_nothing_divide_by_nothing() -> None:
    assert timings(Stats())["predicted_per_token_ms"] == 0.0
