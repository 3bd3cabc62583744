"""The header of a GGUF file, read with every bound checked.

Written from ggml's `gguf.cpp`: what it throws or asserts on is refused here, with a reason, in milliseconds.
"""

from __future__ import annotations

import difflib
import math
import mmap
import os
import stat
import struct
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.errors import ModelFileError, ModelNotFoundError

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Array:
    """A long array (or one of strings), left in the file: `Header.strings` and `Header.numbers` fetch it."""

    length: int
    offset: int
    type: int  # gguf_type of the elements


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies: `shape` as ggml has it (row length first), `offset` from the start of its file."""

    shape: tuple[int, ...]
    type: str
    offset: int
    size_bytes: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says about itself. After `check_model` `tensors` and `size_bytes` count all parts of a split."""

    path: Path
    version: int
    metadata: dict[str, Scalar | tuple[Scalar, ...] | Array]
    tensors: dict[str, TensorInfo]
    alignment: int
    size_bytes: int
    parts: tuple[Path, ...] = ()

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    @property
    def name(self) -> str:
        return str(self.metadata.get("general.name", "") or self.path.stem)

    @property
    def n_vocab(self) -> int:
        """Tokens in the vocabulary; 0 without one."""
        return self.length("tokenizer.ggml.tokens")

    @property
    def weights_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors.values())

    @property
    def weight_types(self) -> frozenset[str]:
        """The types that its tensors have, by ggml's names."""
        return frozenset(tensor.type for tensor in self.tensors.values())

    @property
    def n_params(self) -> int:
        """How many numbers the weights are."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def head_sizes(self) -> tuple[int, int]:
        """How many numbers an attention head's key and value have; 0 for a model without attention."""
        heads = max(self.head_counts("attention.head_count"), default=0)
        width = self.number("embedding_length") // heads if heads else 0
        return self.number("attention.key_length", width), self.number("attention.value_length", width)

    def head_counts(self, key: str) -> list[int]:
        """One count a layer; none when the file does not say."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, int):
            # Hybrid models attend in every so many layers only.
            return [value] * (self.number("block_count") // max(1, self.number("full_attention_interval", 1)))
        return [int(count) for count in self.numbers(f"{self.architecture}.{key}")]

    def number(self, key: str, default: int = 0) -> int:
        """An integer of this architecture, `key` without the architecture's name: `header.number("block_count")`."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        return value if isinstance(value, int) else default

    def length(self, key: str) -> int:
        """How many elements an array has, however long; 0 if there is none."""
        value = self.metadata.get(key)
        return value.length if isinstance(value, Array) else len(value) if isinstance(value, tuple) else 0

    def strings(self, key: str) -> list[bytes]:
        """The elements of an array of strings, read from the file as bytes, and not to be changed; [] if there is none.

        Raises ModelFileError if the file can no longer be read.
        """
        array = self.metadata.get(key)
        if not isinstance(array, Array) or array.type != _STRING:
            return []
        try:
            facts = self.path.stat()
        except OSError as error:
            raise ModelFileError(f"{self.path} cannot be read", why=str(error)) from error
        return _strings(self.path, array, facts.st_mtime_ns)

    def numbers(self, key: str) -> np.ndarray[Any, Any]:
        """The elements of an array of numbers, long ones read from the file; empty if there is none."""
        array = self.metadata.get(key)
        if isinstance(array, tuple):
            return np.asarray(array)
        if not isinstance(array, Array) or array.type == _STRING:
            return np.empty(0)
        with _mapped(self.path) as data:
            return _Walk(self.path, data, array.offset).numbers(array.type, array.length)


def read_header(path: str | Path) -> Header:
    """Walk the header of one GGUF file.

    Raises ModelNotFoundError if there is no such file, ModelFileError if it is no well-formed GGUF file.
    """
    path = Path(path)
    _check_file(path)
    with _mapped(path) as data:
        return _read(_Walk(path, data))


def shown(value: object) -> str:
    """A name or a value of a header as messages have it: not all of it if it is long."""
    text = repr(value) if not isinstance(value, Array) else f"a list of {value.length:,}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


# --- the file ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)  # a check of a model reads its tokens, and a look at the pair reads them again
def _strings(path: Path, array: Array, mtime_ns: int) -> list[bytes]:
    with _mapped(path) as data:
        return _Walk(path, data, array.offset).strings(array.length)


def _check_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except PermissionError as error:
        raise ModelFileError(f"{path} cannot be read", why="permission denied") from error
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(f"{path} does not exist", hint=_similar(path)) from error
    if stat.S_ISDIR(mode):
        models = sorted(child.name for child in path.glob("*.gguf"))[:4]
        hint = f"Name a file in it: {', '.join(models)}" if models else "There is no .gguf file in it."
        raise ModelFileError(f"{path} is a directory, not a GGUF file", hint=hint)
    if not stat.S_ISREG(mode):
        raise ModelFileError(f"{path} is not a regular file")
    if not path.stat().st_size:
        raise ModelFileError(f"{path} is empty", hint=AGAIN)


def _similar(path: Path) -> str:
    try:
        siblings = [child.name for child in path.parent.glob("*.gguf")]
    except (OSError, ValueError):
        return ""
    close = difflib.get_close_matches(path.name, siblings, n=1)
    return f"Did you mean {path.parent / close[0]}?" if close else ""


def _unnoticed(path: str, flags: int) -> int:
    """Opens so that a look at the header does not count as use; only Linux has that, for one's own files."""
    try:
        return os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:
        return os.open(path, flags)


def _mapped(path: Path) -> mmap.mmap:
    try:
        with open(path, "rb", opener=_unnoticed) as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except PermissionError as error:
        raise ModelFileError(f"{path} cannot be read", why="permission denied") from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be read", why=str(error)) from error


def _appearance(start: bytes) -> str:
    """What a file that is not GGUF seems to be, from its first bytes."""
    text = start.lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer; `git lfs pull` downloads the real file"
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 32:
        return "it looks like a safetensors file; convert it to GGUF first"
    if b"data.pkl" in start or start.startswith(b"\x80\x02"):
        return "it looks like a PyTorch checkpoint; convert it to GGUF first"
    if start.startswith((b"PK", b"\x1f\x8b", b"7z\xbc\xaf", b"Rar!", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")):
        return "it looks like an archive; unpack it first"
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"{")):
        return "it is a web page or an error message, saved in place of the model"
    if start[:4] in (b"ggml", b"lmgg", b"ggjt", b"tjgg", b"ggmf", b"fmgg", b"ggla", b"algg"):
        return "it is in a format older than GGUF, which llama.cpp no longer reads"
    if not start.strip(b"\0"):
        return "it starts with zeros only, like an interrupted download"
    return f"it starts with {start[:4].decode('latin-1')!r} instead of 'GGUF'"


# --- the walk ---------------------------------------------------------------------------------------------------------


class _Walk:
    """A position in the mapped file that never leaves it; `place` names what is being read, for messages."""

    def __init__(self, path: Path, data: mmap.mmap, pos: int = 0) -> None:
        self.path, self.data, self.end, self.pos, self.place = path, data, len(data), pos, "its first bytes"

    def truncated(self) -> ModelFileError:
        why = f"the file ends ({self.end:,} bytes) inside {self.place}"
        return ModelFileError(f"{self.path} {INCOMPLETE} or damaged", why=why, hint=AGAIN)

    def damaged(self, why: str) -> ModelFileError:
        return ModelFileError(f"{self.path} {_DAMAGED}", why=why, hint=AGAIN)

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
        """A number of things to come, each of at least `least_bytes`, which must still fit into the file."""
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
        if kind == _STRING:
            return self.string().decode("utf-8", "replace")
        if kind in _SCALARS:
            return _scalar(self.numbers(kind, 1)[0])
        if kind != _ARRAY:
            raise self.damaged(f"{self.place} has the unknown type {kind}")
        kind = self.u32()
        if kind not in _SCALARS and kind != _STRING:
            raise self.damaged(f"{self.place} is an array of the unknown or nested type {kind}")
        size_bytes = 8 if kind == _STRING else _SCALARS[kind].itemsize
        n = self.count(f"elements in {self.place}", size_bytes)
        start = self.pos
        if kind == _STRING:
            self.skip_strings(n)
        elif n <= _SHORT_ARRAY:
            return tuple(_scalar(element) for element in self.numbers(kind, n))
        else:
            self.take(0)
            self.pos += n * size_bytes
        return Array(n, start, kind)


def _scalar(element: np.generic[Any]) -> Scalar:
    value: Scalar = element.item()
    return value


def _read(walk: _Walk) -> Header:
    if (start := walk.data[:4]) != b"GGUF":
        raise ModelFileError(f"{walk.path} is not a GGUF file", why=_appearance(walk.data[:4096] or start))
    walk.take(4)
    version = walk.u32()
    if version not in (2, 3):
        raise ModelFileError(f"{walk.path} cannot be read", why=_version(version), hint=_another_version(version))
    n_tensors = walk.count("tensors", 24)
    metadata = _read_metadata(walk, walk.count("metadata entries", 13))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise walk.damaged(f"its alignment is {shown(alignment)}, not a power of two")
    tensors = _read_tensors(walk, n_tensors, alignment)
    return Header(walk.path, version, metadata, tensors, alignment, walk.end)


def _version(version: int) -> str:
    if not version & 0xFFFF:
        return "it was written for big-endian machines"
    return f"it has version {version} of the format; llama.cpp reads 2 and 3"


def _another_version(version: int) -> str:
    if not version & 0xFFFF:
        return "Look for the little-endian file of the same model."
    return "Look for a newer conversion of the model." if version < 2 else AGAIN


def _read_metadata(walk: _Walk, n: int) -> dict[str, Scalar | tuple[Scalar, ...] | Array]:
    metadata: dict[str, Scalar | tuple[Scalar, ...] | Array] = {}
    for index in range(n):
        walk.place = f"metadata entry {index + 1} of {n}"
        stored = walk.string()
        if not stored:
            raise walk.damaged(f"{walk.place} has no name")
        if len(stored) > _MAX_KEY_BYTES:
            raise walk.damaged(f"{walk.place} has a name of {len(stored):,} bytes")
        key = stored.decode("utf-8", "backslashreplace")
        if key in metadata:
            raise walk.damaged(f"it has two metadata entries called {shown(key)}")
        walk.place = shown(key)
        metadata[key] = walk.value(walk.u32())
    return metadata


def _read_tensors(walk: _Walk, n: int, alignment: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for index in range(n):
        walk.place = f"the description of tensor {index + 1} of {n}"
        name = walk.string().decode("utf-8", "backslashreplace")
        if len(name) > _MAX_TENSOR_NAME:
            raise walk.damaged(f"{walk.place} has a name of {len(name)} characters")
        if name in tensors:
            raise walk.damaged(f"it has two tensors called {name!r}")
        tensors[name] = _read_tensor(walk, name)
    return _placed(walk, tensors, alignment)


def _read_tensor(walk: _Walk, name: str) -> TensorInfo:
    """One tensor; its offset still counts from where the data begin, which is known only after the last one."""
    n_dims = walk.u32()
    if n_dims > 4:
        raise walk.damaged(f"tensor {name!r} has {n_dims} dimensions")
    shape = struct.unpack(f"<{n_dims}q", walk.take(8 * n_dims))
    n_elements = math.prod(shape)
    if min(shape, default=1) < 1 or n_elements >= 1 << 63:
        raise walk.damaged(f"tensor {name!r} has the invalid shape {shape}")
    kind = walk.u32()
    if kind not in GGML_TYPES:
        why = f"tensor {name!r} has type {kind}, which this llama.cpp does not know"
        raise ModelFileError(f"{walk.path} cannot be loaded", why=why, hint="Look for another quantisation.")
    type_name, block_size, type_size = GGML_TYPES[kind]
    row = shape[0] if shape else 1
    if row % block_size:
        raise walk.damaged(f"tensor {name!r} has rows of {row} elements, not a multiple of {block_size} ({type_name})")
    return TensorInfo(shape, type_name, walk.u64(), n_elements // block_size * type_size)


def _placed(walk: _Walk, tensors: dict[str, TensorInfo], alignment: int) -> dict[str, TensorInfo]:
    """The tensors with offsets from the start of the file: back to back, aligned, inside the file."""
    start = _aligned(walk.pos, alignment)
    needed, placed = 0, {}
    for name, tensor in tensors.items():
        if tensor.offset != needed:
            raise walk.damaged(f"tensor {name!r} {_misplaced(walk, tensor, start, needed, alignment)}")
        placed[name] = replace(tensor, offset=start + tensor.offset)
        needed = _aligned(tensor.offset + tensor.size_bytes, alignment)
        if start + tensor.offset + tensor.size_bytes > walk.end:
            size_bytes = start + sum(_aligned(other.size_bytes, alignment) for other in tensors.values())
            why = f"it should have about {size_bytes:,} bytes, but has {walk.end:,}; the data ends inside {name!r}"
            raise ModelFileError(f"{walk.path} {INCOMPLETE}", why=why, hint=AGAIN)
    return placed


def _misplaced(walk: _Walk, tensor: TensorInfo, start: int, expected: int, alignment: int) -> str:
    if start + tensor.offset + tensor.size_bytes > walk.end:
        return f"lies outside the file, at offset {tensor.offset:,}"
    if tensor.offset % alignment:
        return f"starts at offset {tensor.offset:,}, not a multiple of {alignment}"
    if tensor.offset < expected:
        return f"overlaps the one before it: it starts at {tensor.offset:,} instead of {expected:,}"
    return f"leaves a gap before it: it starts at {tensor.offset:,} instead of {expected:,}"


def _aligned(offset: int, alignment: int) -> int:
    return (offset + alignment - 1) & -alignment


# --- tables -----------------------------------------------------------------------------------------------------------

AGAIN = "Download it again, or compare its size and checksum with those published by its source."
_DAMAGED = "is damaged"
INCOMPLETE = "is incomplete"

_SHORT_ARRAY = 1024
_SHOWN = 60  # characters
_MAX_TENSOR_NAME = 63
_MAX_KEY_BYTES = (1 << 16) - 1  # as the specification of GGUF has it

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, np.dtype[Any]] = {  # gguf_type -> numpy type
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
# ggml_type -> (name, elements per block, bytes per block)
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}
