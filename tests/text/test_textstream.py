"""Token bytes become text: whole characters, no part of a stop string, for any division of the bytes into tokens."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgespec.errors import UsageError
from edgespec.text.textstream import TextStream

ALPHABET = "ab\n<|é😀\ufffd"
ANSWERS = st.one_of(
    st.text(ALPHABET).map(str.encode), st.binary(), st.text(ALPHABET).map(lambda text: text.encode()[1:-1])
)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=3)


def whole_characters(answer: bytes) -> str:
    """Return the text of an answer without an incomplete character at its end."""
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(answer)
    assert answer.decode(errors="replace").startswith(text)
    return text


def cut_by_definition(text: str, stop: Sequence[str]) -> tuple[str, str]:
    """Return the shortest prefix that ends with a stop string, without the longest such string, and this string."""
    for end in range(len(text) + 1):
        lengths = [len(string) for string in stop if text[:end].endswith(string)]
        if lengths:
            start = end - max(lengths)
            return text[:start], text[start:end]
    return text, ""


@given(answer=ANSWERS, stop=STOPS, data=st.data())
def test_any_split_gives_the_decoded_text_cut_at_the_first_stop_string(
    answer: bytes, stop: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=len(answer) + 1)))
    pieces = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    stream = TextStream(stop)

    shown = "".join(map(stream.push, pieces)) + stream.flush()

    assert (shown, stream.stopped) == cut_by_definition(whole_characters(answer), stop)


@given(answer=ANSWERS, stop=STOPS)
@example(answer=b"xab", stop=["ab", "b"])
def test_what_is_shown_is_never_taken_back(answer: bytes, stop: list[str]) -> None:
    whole, _ = cut_by_definition(whole_characters(answer), stop)
    stream = TextStream(stop)
    shown = ""
    for byte in answer:
        shown += stream.push(bytes([byte]))
        assert whole.startswith(shown)


@given(answer=st.text(), stop=STOPS)
def test_no_more_is_held_back_than_a_stop_string_could_need(answer: str, stop: list[str]) -> None:
    stream = TextStream(stop)
    shown = stream.push(answer.encode())
    if not stream.stopped:
        held = answer[len(shown) :]
        assert not held or any(string.startswith(held) for string in stop)


def test_text_without_stop_strings_is_shown_as_soon_as_its_characters_are_complete() -> None:
    stream = TextStream()
    assert [stream.push(piece) for piece in (b"caf", b"\xc3", b"\xa9!", b"\xf0\x9f", b"\x98\x80")] == [
        "caf",
        "",
        "é!",
        "",
        "😀",
    ]
    assert stream.flush() == ""


def test_an_unfinished_character_at_the_end_is_left_out() -> None:
    stream = TextStream(["END"])
    assert stream.push(b"a EN\xf0\x9f\x98") == "a "
    assert stream.flush() == "EN"


@given(text=st.text(ALPHABET), cut=st.integers(0, 12))
def test_an_answer_that_ended_inside_a_character_continues_with_the_whole_character(text: str, cut: int) -> None:
    answer = text.encode()
    first, second = answer[: len(answer) - cut], answer[len(answer) - cut :]
    begun = TextStream()
    shown = begun.push(first) + begun.flush()
    continued = TextStream(begun=first[-3:])
    assert shown + continued.push(second) + continued.flush() == text


def test_a_stop_string_may_span_tokens_and_characters() -> None:
    stream = TextStream(["\n¶"])
    assert [stream.push(piece) for piece in (b"one\n", b"\xc2", b"\xb6two", b"three")] == ["one", "", "", ""]
    assert stream.stopped
    assert stream.flush() == ""


def test_text_that_only_looked_like_a_stop_string_is_shown_later() -> None:
    stream = TextStream(["</end>"])
    assert [stream.push(piece) for piece in (b"x </", b"en", b"try>")] == ["x ", "", "</entry>"]
    assert not stream.stopped


def test_held_back_text_is_shown_at_the_end() -> None:
    stream = TextStream(["END"])
    assert stream.push(b"the EN") == "the "
    assert stream.flush() == "EN"
    assert not stream.stopped


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        TextStream(["ok", ""])
