"""A mapped GGUF file, read value by value with every bound checked."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.errors import ModelFileError

AGAIN = "Download it again, or compare its size and checksum with those published by its source."
INCOMPLETE = "is incomplete"
_SHORT_ARRAY = 1024
_SHOWN = 60  # characters

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
STRING, _ARRAY = 8, 9
_SCALARS: dict[int, np.dtype[np.generic]] = {  # gguf_type -> numpy type
    **dict(enumerate(map(np.dtype, ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?")))),
    **dict(enumerate(map(np.dtype, ("<u8", "<i8", "<f8")), start=10)),
}

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Array:
    """A long array (or one of strings) that stays in the file: `Header.strings` and `Header.numbers` read it."""

    length: int
    offset: int
    type: int  # gguf_type of the elements


class Walk:
    """A position in the mapped file that never leaves it; `place` names what is being read, for messages."""

    def __init__(self, path: Path, data: mmap.mmap, pos: int = 0) -> None:
        self.path, self.data, self.end, self.pos, self.place = path, data, len(data), pos, "its first bytes"

    def truncated(self) -> ModelFileError:
        why = f"the file ends ({self.end:,} bytes) inside {self.place}"
        return ModelFileError(f"{self.path} {INCOMPLETE} or damaged", why=why, hint=AGAIN)

    def damaged(self, why: str) -> ModelFileError:
        return ModelFileError(f"{self.path} is damaged", why=why, hint=AGAIN)

    def take(self, n_bytes: int) -> bytes:
        start, self.pos = self.pos, self.pos + n_bytes
        if self.pos > self.end:
            raise self.truncated()
        return self.data[start : self.pos]

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def string(self) -> bytes:
        return self.take(self.u64())

    def count(self, what: str, least_bytes: int) -> int:
        """Read the number of items that follow, each of at least `least_bytes`, which must fit into the file."""
        n = self.u64()
        if n * least_bytes > self.end - self.pos:
            why = f"it claims to hold {n:,} {what}, more than fit into its {self.end:,} bytes"
            raise ModelFileError(f"{self.path} {INCOMPLETE} or damaged", why=why, hint=AGAIN)
        return n

    def skip_strings(self, n: int) -> None:
        data, pos, length = self.data, self.pos, _U64.unpack_from
        try:
            for _ in range(n):
                pos += 8 + length(data, pos)[0]
        except (struct.error, OverflowError) as error:
            raise self.truncated() from error
        self.pos = pos
        self.take(0)

    def strings(self, n: int) -> list[bytes]:
        data, pos, length, texts = self.data, self.pos, _U64.unpack_from, []
        try:
            for _ in range(n):
                start = pos + 8
                pos = start + length(data, pos)[0]
                texts.append(data[start:pos])
        except (struct.error, OverflowError) as error:
            raise self.truncated() from error
        self.pos = pos
        self.take(0)
        return texts

    def numbers(self, kind: int, n: int) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.take(n * _SCALARS[kind].itemsize), _SCALARS[kind])

    def value(self, kind: int) -> Scalar | tuple[Scalar, ...] | Array:
        if kind == STRING:
            return self.string().decode("utf-8", "replace")
        if kind in _SCALARS:
            return _scalar(self.numbers(kind, 1)[0])
        if kind != _ARRAY:
            raise self.damaged(f"{self.place} has the unknown type {kind}")
        kind = self.u32()
        if kind not in _SCALARS and kind != STRING:
            raise self.damaged(f"{self.place} is an array of the unknown or nested type {kind}")
        size_bytes = 8 if kind == STRING else _SCALARS[kind].itemsize
        n = self.count(f"elements in {self.place}", size_bytes)
        start = self.pos
        if kind == STRING:
            self.skip_strings(n)
        elif n <= _SHORT_ARRAY:
            return tuple(_scalar(element) for element in self.numbers(kind, n))
        else:
            self.take(0)
            self.pos += n * size_bytes
        return Array(n, start, kind)


def _scalar(element: np.generic) -> Scalar:
    value: Scalar = element.item()
    return value


def mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except PermissionError as error:
        raise ModelFileError(f"{path} cannot be read", why="permission denied") from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be read", why=str(error)) from error


def shown(value: object) -> str:
    """A name or a value of a header for a message: shortened if it is long."""
    text = repr(value) if not isinstance(value, Array) else f"a list of {value.length:,}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
