"""Text of files in UTF-8, or in UTF-16 with a byte order mark, as some editors and shells write it."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO

_LITTLE = codecs.BOM_UTF16_LE
_UTF_16 = (_LITTLE, codecs.BOM_UTF16_BE)
_MARKS = re.compile("^\ufeff+", re.MULTILINE)
_MARK_BYTES = re.compile(b"(?:%s)+" % codecs.BOM_UTF8)


def decoded(data: bytes, errors: str = "strict") -> str:
    """Decode UTF-8, or UTF-16 with a byte order mark. Raises UnicodeDecodeError.

    Marks are left out, also at the beginning of later lines: files that were joined have them there.
    """
    text = data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8", errors)
    return _MARKS.sub("", text) if "\ufeff" in text else text


class Utf8Lines:
    """The lines of a file as `decoded` reads it, in UTF-8. Invalid bytes stay invalid. No more than a line is read at a
    time, so that a pipe is not waited for."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder: codecs.IncrementalDecoder | None = None
        self._is_little = self._has_begun = False
        self._begins_line = True
        self._held = b""

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def readline(self, most: int = -1) -> bytes:
        """Return the next line, or at most about `most` bytes of it; nothing at the end of the file."""
        line = self._read(most)
        if self._begins_line and (marks := _MARK_BYTES.match(line)):
            line = line[marks.end() :]
        self._begins_line = line.endswith(b"\n")
        return line

    def _read(self, most: int) -> bytes:
        if self._has_begun and self._decoder is None:
            return self._file.readline(most)
        while b"\n" not in self._held and (most < 0 or len(self._held) < most):
            part = self._file.readline(most)
            if not self._has_begun:
                self._has_begun, self._is_little = True, part.startswith(_LITTLE)
                if not part.startswith(_UTF_16):
                    return part
                self._decoder = codecs.getincrementaldecoder("utf-16")("surrogatepass")
            if self._is_little and part.endswith(b"\n"):
                part += self._file.read(1)  # the other half of the line break
            if not part:
                break
            assert self._decoder is not None
            self._held += self._decoder.decode(part).encode("utf-8", "surrogatepass")
        end = self._held.find(b"\n") + 1 or len(self._held)
        line, self._held = self._held[:end], self._held[end:]
        return line
