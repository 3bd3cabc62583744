"""Text of files in UTF-8 and UTF-16, with byte order marks wherever programs leave them."""

from __future__ import annotations

import codecs
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.text.encodings import Utf8Lines, decoded

TEXT = "one é ਊ Ċ 🦊\r\n\n \u2028 two\nthree"
ENCODED = [
    TEXT.encode(),
    TEXT.encode("utf-8-sig"),
    codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),
    codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
]


@pytest.mark.parametrize("data", ENCODED)
def test_a_text_and_its_lines_are_those_that_were_written(data: bytes) -> None:
    assert decoded(data) == TEXT
    assert [*Utf8Lines(BytesIO(data))] == TEXT.encode().splitlines(keepends=True)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_marks_of_joined_files_are_left_out_but_none_inside_a_line(encoding: str) -> None:
    written = "\ufeffa\ufeffb\n\ufeff\ufeffc\n\ufeff\n\ufeff".encode(encoding)
    assert decoded(written) == "a\ufeffb\nc\n\n"
    assert b"".join(Utf8Lines(BytesIO(written))).decode() == "a\ufeffb\nc\n\n"


@given(st.text("ab\n\ufeff\u0a0a\u010a🦊", max_size=30), st.sampled_from(["utf-8", "utf-16"]))
def test_lines_together_are_the_text(text: str, encoding: str) -> None:
    data = text.encode(encoding)
    assert b"".join(Utf8Lines(BytesIO(data))).decode() == decoded(data)


def test_a_long_line_is_read_in_parts() -> None:
    lines = Utf8Lines(BytesIO(("x" * 50 + "\nb").encode("utf-16")))
    first = lines.readline(20)
    assert 20 <= len(first) <= 50
    assert first + lines.readline(100) == b"x" * 50 + b"\n"
    assert lines.readline() == b"b"


def test_invalid_bytes_are_left_to_the_reader_of_the_line() -> None:
    lines = [*Utf8Lines(BytesIO(codecs.BOM_UTF16_LE + b"\x00\xd8\n\x00b\0"))]
    assert lines[1] == b"b"
    with pytest.raises(UnicodeDecodeError):
        lines[0].decode()
    with pytest.raises(UnicodeDecodeError):
        decoded(b"a\xff")
    assert decoded(b"a\xff", "replace") == "a\ufffd"
