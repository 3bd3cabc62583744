"""Thinking is separated from the answer, for any division of the text into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.text.thinking import Part, ThinkingStream, split, without_thinking


def joined(parts: list[Part]) -> list[Part]:
    found: list[Part] = []
    for kind, text in parts:
        if found and found[-1][0] == kind:
            found[-1] = (kind, found[-1][1] + text)
        else:
            found.append((kind, text))
    return found


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", []),
        ("plain", [("answer", "plain")]),
        ("<think>\nhm\n</think>\n\nyes", [("thinking", "hm"), ("answer", "yes")]),
        ("\n<think>hm</think>", [("thinking", "hm")]),
        ("<think>\n\n</think>\n\nyes", [("answer", "yes")]),
        ("<think>never ended", [("thinking", "never ended")]),
        ("I write <think>so</think>", [("answer", "I write <think>so</think>")]),
        ("<think>a</think>b<think>c</think>", [("thinking", "a"), ("answer", "b<think>c</think>")]),
        ("<thin", [("answer", "<thin")]),
    ],
)
def test_a_whole_message(content: str, parts: list[Part]) -> None:
    assert split(content) == parts


def test_what_is_left_without_it() -> None:
    assert without_thinking("<think>hm</think>\n\nyes") == "yes"


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", "<", "\n", "</", "think>"])), st.data())
def test_pieces_make_what_the_whole_makes(tokens: list[str], data: st.DataObject) -> None:
    text = "".join(tokens)
    whole = ThinkingStream()
    expected = joined([*whole.push(text), *whole.end()])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    stream, parts = ThinkingStream(), []
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        parts += stream.push(text[start:end])
    assert joined(parts + stream.end()) == expected


@given(st.text(), st.text())
def test_nothing_of_the_text_is_lost(thought: str, answer: str) -> None:
    thought = thought.replace("<", "")
    stream = ThinkingStream()
    parts = joined([*stream.push(f"<think>{thought}</think>{answer}"), *stream.end()])
    assert "".join(text for kind, text in parts if kind == "thinking") == thought
    assert "".join(text for kind, text in parts if kind == "answer") == answer
