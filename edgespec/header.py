"""The header of a GGUF file, read with every bound checked, so that a broken file is refused before llama.cpp sees it.

`read_header` walks the bytes; `check_model` asks whether they describe a language model that this llama.cpp can run.
llama.cpp throws on many bad files, but on others it asserts, which ends the process: those are found here. Written
from ggml's `gguf.cpp` and llama.cpp's `llama-model-loader.cpp`, `llama-model.cpp` and `llama-vocab.cpp`.
"""

from __future__ import annotations

import difflib
import math
import mmap
import re
import stat
import struct
from collections import Counter
from dataclasses import dataclass, replace
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
    tokens: tuple[bytes, ...] | None = None

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

    def number(self, key: str, default: int = 0) -> int:
        """An integer of this architecture, `key` without the architecture's name: `header.number("block_count")`."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        return value if isinstance(value, int) else default

    def length(self, key: str) -> int:
        """How many elements an array has, however long; 0 if there is none."""
        value = self.metadata.get(key)
        return value.length if isinstance(value, Array) else len(value) if isinstance(value, tuple) else 0

    def strings(self, key: str) -> list[bytes]:
        """The elements of an array of strings, read from the file as bytes; [] if there is none."""
        array = self.metadata.get(key)
        if not isinstance(array, Array) or array.type != _STRING:
            return []
        with _mapped(self.path) as data:
            return _Walk(self.path, data, array.offset).strings(array.length)

    def numbers(self, key: str) -> np.ndarray[Any, Any]:
        """The elements of an array of numbers, long ones read from the file; empty if there is none."""
        array = self.metadata.get(key)
        if isinstance(array, tuple):
            return np.asarray(array)
        if not isinstance(array, Array) or array.type == _STRING:
            return np.empty(0)
        with _mapped(self.path) as data:
            return _Walk(self.path, data, array.offset).numbers(array.type, array.length)


def read_header(path: str | Path, *, tokens: bool = False) -> Header:
    """Walk the header of one GGUF file; `tokens` keeps the vocabulary's texts in `Header.tokens`.

    Raises ModelNotFoundError if there is no such file, ModelFileError if it is no well-formed GGUF file.
    """
    path = Path(path)
    _check_file(path)
    with _mapped(path) as data:
        header = _read(_Walk(path, data))
    return replace(header, tokens=tuple(header.strings("tokenizer.ggml.tokens"))) if tokens else header


def check_model(model: Header | str | Path) -> Header:
    """The header of a language model that this llama.cpp can run, with all parts of a split file.

    Raises ModelNotFoundError if there is no such file, ModelFileError with the reason if it cannot be run.
    """
    header = model if isinstance(model, Header) else read_header(model)
    parts = _parts(header)
    _check_kind(header)
    if parts:
        header = _joined(header, parts)
    _check_vocabulary(header)
    _check_dimensions(header)
    _check_experts(header)
    _check_scalars(header)
    _check_weights(header)
    return header


# --- the file ---------------------------------------------------------------------------------------------------------


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
        raise ModelFileError(f"{path} is empty", hint=_AGAIN)


def _similar(path: Path) -> str:
    try:
        siblings = [child.name for child in path.parent.glob("*.gguf")]
    except (OSError, ValueError):
        return ""
    close = difflib.get_close_matches(path.name, siblings, n=1)
    return f"Did you mean {path.parent / close[0]}?" if close else ""


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except PermissionError as error:
        raise ModelFileError(f"{path} cannot be read", why="permission denied") from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be read", why=str(error)) from error


def _appearance(start: bytes) -> str:
    """What a file that is not GGUF seems to be, from its first bytes."""
    text = start.lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer; `git lfs pull` fetches the file it points to"
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 32:
        return "it looks like a safetensors file, which has to be converted to GGUF first"
    if b"data.pkl" in start or start.startswith(b"\x80\x02"):
        return "it looks like a PyTorch checkpoint, which has to be converted to GGUF first"
    if start.startswith((b"PK", b"\x1f\x8b", b"7z\xbc\xaf", b"Rar!", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")):
        return "it looks like an archive; unpack it first"
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"{")):
        return "it is a web page or an error message, saved in place of the model"
    if start[:4] in (b"ggml", b"lmgg", b"ggjt", b"tjgg", b"ggmf", b"fmgg", b"ggla", b"algg"):
        return "it is in a format older than GGUF, which llama.cpp no longer reads"
    if not start.strip(b"\0"):
        return "it begins with zeros only, as an interrupted download leaves them"
    return f"it begins with {start[:4]!r} instead of b'GGUF'"


# --- the walk ---------------------------------------------------------------------------------------------------------


class _Walk:
    """A position in the mapped file that never leaves it; `place` names what is being read, for messages."""

    def __init__(self, path: Path, data: mmap.mmap, pos: int = 0) -> None:
        self.path, self.data, self.end, self.pos, self.place = path, data, len(data), pos, "its first bytes"

    def truncated(self) -> ModelFileError:
        why = f"the file ends ({self.end:,} bytes) inside {self.place}"
        return ModelFileError(f"{self.path} {_INCOMPLETE} or damaged", why=why, hint=_AGAIN)

    def damaged(self, why: str) -> ModelFileError:
        return ModelFileError(f"{self.path} {_DAMAGED}", why=why, hint=_AGAIN)

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
            raise ModelFileError(f"{self.path} {_INCOMPLETE} or damaged", why=why, hint=_AGAIN)
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
        raise walk.damaged(f"its alignment is {alignment!r}, not a power of two")
    tensors = _read_tensors(walk, n_tensors, alignment)
    return Header(walk.path, version, metadata, tensors, alignment, walk.end)


def _version(version: int) -> str:
    if not version & 0xFFFF:
        return "it was written for big-endian machines"
    return f"it has version {version} of the format; llama.cpp reads 2 and 3"


def _another_version(version: int) -> str:
    if not version & 0xFFFF:
        return "Look for the little-endian file of the same model."
    return "Look for a newer conversion of the model." if version < 2 else _AGAIN


def _read_metadata(walk: _Walk, n: int) -> dict[str, Scalar | tuple[Scalar, ...] | Array]:
    metadata: dict[str, Scalar | tuple[Scalar, ...] | Array] = {}
    for index in range(n):
        walk.place = f"metadata entry {index + 1} of {n}"
        key = walk.string().decode("utf-8", "backslashreplace")
        if not key:
            raise walk.damaged(f"{walk.place} has no name")
        if key in metadata:
            raise walk.damaged(f"it has two metadata entries called {key!r}")
        walk.place = f"{key!r}"
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
        raise walk.damaged(f"tensor {name!r} has the impossible shape {shape}")
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
            why = f"it should have about {size_bytes:,} bytes, but has {walk.end:,}; the data end inside {name!r}"
            raise ModelFileError(f"{walk.path} {_INCOMPLETE}", why=why, hint=_AGAIN)
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


# --- is it a language model? ------------------------------------------------------------------------------------------


def _unusable(header: Header, why: str, hint: str = "") -> ModelFileError:
    return ModelFileError(f"{header.path} cannot be used as a language model", why=why, hint=hint)


def _broken(header: Header, why: str) -> ModelFileError:
    return ModelFileError(f"{header.path} cannot be loaded", why=why, hint=_AGAIN)


def _check_kind(header: Header) -> None:
    kind, architecture = str(header.metadata.get("general.type", "")), header.architecture
    if kind in _OTHER_FILES:
        raise _unusable(header, f"it is {_OTHER_FILES[kind]}")
    if architecture in OTHER_ARCHITECTURES:
        raise _unusable(header, f"it is {OTHER_ARCHITECTURES[architecture]}")
    if not architecture:
        raise _unusable(header, "it does not name its architecture ('general.architecture' is missing)")
    if architecture not in ARCHITECTURES:
        hint = "A newer version of edgespec may know it."
        raise _unusable(header, f"this llama.cpp does not know its architecture {architecture!r}", hint)
    pooling, causal = header.number("pooling_type"), header.metadata.get(f"{architecture}.attention.causal", True)
    if pooling or not causal:
        raise _unusable(header, f"it is {_EMBEDDING}")
    if not header.tensors and _split_count(header) < 2:  # the first part of a split may hold none
        raise _unusable(header, "it holds a vocabulary only, no weights")


def _split_count(header: Header) -> int:
    count = header.metadata.get("split.count", 0)
    return count if isinstance(count, int) else 0


def _parts(header: Header) -> tuple[Path, ...]:
    """The files of a split model, of which this has to be the first; () if it is whole."""
    count = _split_count(header)
    if count < 2:
        return ()
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", header.path.name)
    if not match or int(match[3]) != count:
        why = f"it is one of {count} parts, but is not called ...-00001-of-{count:05d}.gguf"
        raise _unusable(header, why, "Give all parts the names they were downloaded under.")
    parts = tuple(header.path.with_name(f"{match[1]}-{part + 1:05d}-of-{count:05d}.gguf") for part in range(count))
    if header.metadata.get("split.no", 0) != 0:
        raise _unusable(header, f"it is not the first of its {count} parts", f"Load {parts[0]} instead.")
    if missing := [part.name for part in parts if not part.is_file()]:
        why = f"it has {count} parts, and {len(missing)} of them cannot be found: {', '.join(missing[:4])}"
        raise ModelFileError(f"{header.path} {_INCOMPLETE}", why=why, hint=f"Download them into {header.path.parent}.")
    return parts


def _joined(header: Header, parts: tuple[Path, ...]) -> Header:
    """The header of the first part with the tensors of all of them."""
    tensors, size_bytes = dict(header.tensors), header.size_bytes
    for number, path in enumerate(parts[1:], start=1):
        part = read_header(path)
        stranger = f"{path} does not belong to {header.path.name}"
        if part.metadata.get("split.no") != number:
            raise ModelFileError(stranger, why=f"it says it is part {part.metadata.get('split.no')}", hint=_AGAIN)
        if twice := tensors.keys() & part.tensors.keys():
            raise ModelFileError(stranger, why=f"tensor {min(twice)!r} is in both", hint=_AGAIN)
        tensors |= {name: replace(tensor, part=number) for name, tensor in part.tensors.items()}
        size_bytes += part.size_bytes
    if header.metadata.get("split.tensors.count") != len(tensors):
        raise _broken(
            header, f"its parts hold {len(tensors)} tensors, not {header.metadata.get('split.tensors.count')}"
        )
    return replace(header, tensors=tensors, size_bytes=size_bytes, parts=parts)


# --- the vocabulary ---------------------------------------------------------------------------------------------------


def _check_vocabulary(header: Header) -> None:
    model, n_vocab = header.metadata.get("tokenizer.ggml.model"), header.n_vocab
    if model is None or model in ("no_vocab", "none") or not n_vocab:
        raise _unusable(header, "it has no vocabulary")
    texts = header.strings("tokenizer.ggml.tokens")
    if not texts:
        raise _broken(header, "its vocabulary is not a list of texts")
    for what in ("token_type", "scores"):
        values = header.numbers(f"tokenizer.ggml.{what}")
        if f"tokenizer.ggml.{what}" in header.metadata and len(values) < n_vocab:
            raise _broken(
                header, f"its vocabulary has {n_vocab:,} tokens, but {len(values):,} {what.replace('_', ' ')}s"
            )
        if np.isnan(values).any():
            raise _broken(header, "a token's score is not a number")
    texts = [text or b"[EMPTY_%d]" % index for index, text in enumerate(texts)]  # as llama.cpp names them
    known = set(texts)
    if len(known) < n_vocab:
        twice = next(text for text, n in Counter(texts).items() if n > 1)
        raise _broken(header, f"token {twice.decode('utf-8', 'replace')!r} stands in its vocabulary twice")
    if model in ("llama", "plamo2"):
        for byte in range(256):
            if b"<0x%02X>" % byte not in known and bytes([byte]) not in known:
                raise _broken(header, f"its vocabulary cannot write every text: it has no token for the byte {byte}")
    _check_special_tokens(header, str(model))


def _check_special_tokens(header: Header, model: str) -> None:
    for name, flag in (("bos", "add_bos_token"), ("eos", "add_eos_token")):
        default = {"llama": {"bos": 1, "eos": 2}, "gpt2": {"bos": 11, "eos": 11}}.get(model, {}).get(name, -1)
        id = header.metadata.get(f"tokenizer.ggml.{name}_token_id", default)
        if not isinstance(id, int):
            raise _broken(header, f"its {name} token is {id!r}, not a number")
        known = 0 <= id < header.n_vocab
        if not known and id not in (default, -1, 0xFFFFFFFF):
            raise _broken(header, f"its {name} token is {id}, but its vocabulary has {header.n_vocab:,} tokens")
        if not known and header.metadata.get(f"tokenizer.ggml.{flag}") is True:
            raise _broken(header, f"it asks for a {name} token around every prompt, but has none")


# --- sizes and constants ----------------------------------------------------------------------------------------------


def _check_dimensions(header: Header) -> None:
    n_layers = _size(header, "block_count", 1, _MAX_LAYERS)
    n_embd = _size(header, "embedding_length", 1, 1 << 20)
    _size(header, "context_length", 1, (1 << 31) - 1)
    _size(header, "attention.sliding_window", 0, (1 << 31) - 1, required=False)
    if _size(header, "nextn_predict_layers", 0, _MAX_LAYERS, required=False) > n_layers:
        raise _broken(header, "it has more prediction layers than layers")
    _per_layer(header, "feed_forward_length", n_layers, 1 << 24)
    heads = _per_layer(header, "attention.head_count", n_layers, 1 << 16)
    heads_kv = _per_layer(header, "attention.head_count_kv", n_layers, 1 << 16)
    for n_head, n_head_kv in zip(heads, heads_kv, strict=False):
        if n_head_kv and n_head % n_head_kv:
            raise _broken(header, f"{n_head} attention heads cannot share {n_head_kv} key-value heads")
    if heads and heads[0]:
        _check_heads(header, n_embd, heads[0])
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        if header.architecture == "codeshell":  # takes its output in place of it
            return
        raise _broken(header, "it has no token embedding ('token_embd.weight')")
    if embedding.shape != (n_embd, header.n_vocab):
        expected = f"{header.n_vocab:,} tokens of width {n_embd:,}"
        raise _broken(header, f"its token embedding has the shape {embedding.shape}, but it has {expected}")


def _check_heads(header: Header, n_embd: int, n_head: int) -> None:
    key_length = _size(header, "attention.key_length", 1, 1 << 16, required=False)
    if not key_length and n_embd % n_head:
        raise _broken(header, f"a width of {n_embd} cannot be shared by {n_head} attention heads")
    _size(header, "attention.value_length", 1, 1 << 16, required=False)
    for suffix in ("", "_swa"):
        width = header.number(f"attention.key_length{suffix}") or key_length or n_embd // n_head
        n_rot = _size(header, f"rope.dimension_count{suffix}", 1, 1 << 16, required=False)
        partly = not suffix and 0 < n_rot < width
        if n_rot % 2 or n_rot > width or (partly and header.architecture in WHOLE_HEAD_ROTATED):
            raise _broken(header, f"{n_rot} rotary dimensions do not fit a head of {width}")


def _check_experts(header: Header) -> None:
    n_experts = _size(header, "expert_count", 0, _MAX_EXPERTS, required=False)
    if header.architecture.startswith("hunyuan") and n_experts <= 1:
        return
    n_used = max(_per_layer(header, "expert_used_count", header.number("block_count"), 1 << 31), default=0)
    n_groups = _size(header, "expert_group_count", 0, 1 << 31, required=False)
    n_groups_used = _size(header, "expert_group_used_count", 0, 1 << 31, required=False)
    if n_used > n_experts or (n_experts and not n_used):
        raise _broken(header, f"it uses {n_used} of {n_experts} experts")
    grouped = n_groups > 1
    if n_groups >= max(n_experts, 1) or (grouped and (n_experts % n_groups or not 0 < n_groups_used < n_groups)):
        raise _broken(header, f"{n_experts} experts cannot form {n_groups} groups, {n_groups_used} of them used")


def _size(header: Header, key: str, low: int, high: int, *, required: bool = True) -> int:
    """An integer of the architecture between `low` and `high`; 0 if it may be and is missing."""
    key = f"{header.architecture}.{key}"
    value = header.metadata.get(key)
    if value is None:
        if required:
            raise _broken(header, f"{key!r} is missing")
        return 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise _broken(header, f"{key!r} is {_shown(value)}, not a whole number")
    if not low <= value <= high:
        raise _broken(header, f"{key!r} is {value:,}, which cannot be")
    return value


def _per_layer(header: Header, key: str, n_layers: int, high: int) -> list[int]:
    """An integer for each layer, or one for all of them; [] if it is missing."""
    value = header.metadata.get(f"{header.architecture}.{key}")
    if value is None:
        return []
    if not isinstance(value, tuple):
        return [_size(header, key, 0, high)] * n_layers
    if len(value) != n_layers:
        raise _broken(header, f"'{header.architecture}.{key}' has {len(value)} values for {n_layers} layers")
    layers = [number for number in value if isinstance(number, int) and 0 <= number <= high]
    if len(layers) != n_layers:
        raise _broken(header, f"'{header.architecture}.{key}' is {_shown(value)}, which cannot be")
    return layers


def _check_scalars(header: Header) -> None:
    prefix = f"{header.architecture}."
    for key, value in header.metadata.items():
        if not key.startswith(prefix):
            continue
        floats = [number for number in (value if isinstance(value, tuple) else (value,)) if isinstance(number, float)]
        positive = key.endswith(("epsilon", "rope.freq_base", "rope.freq_base_swa"))
        if not all(math.isfinite(number) for number in floats) or (positive and min(floats, default=1.0) <= 0):
            raise _broken(header, f"{key!r} is {_shown(value)}, which cannot be")
    scaling = header.metadata.get(f"{prefix}rope.scaling.type", "none")
    if scaling not in ("none", "linear", "yarn", "longrope"):
        raise _broken(header, f"'{prefix}rope.scaling.type' is {_shown(scaling)}, which llama.cpp does not know")


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, Array) else f"a list of {value.length:,}"
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- the weights ------------------------------------------------------------------------------------------------------


def _check_weights(header: Header) -> None:
    for name, tensor in header.tensors.items():
        if tensor.type in _NOT_WEIGHTS and _INTEGERS not in name:
            raise _broken(header, f"tensor {name!r} is of type {tensor.type}, which is none for weights")
        if tensor.type != "F32" and name.endswith(("norm.weight", ".bias")):
            raise _broken(header, f"tensor {name!r} is of type {tensor.type}; llama.cpp scales and adds in F32 only")
        if tensor.offset % _MMAP_ALIGNMENT:
            why = f"tensor {name!r} is not aligned to {_MMAP_ALIGNMENT} bytes (alignment {header.alignment})"
            raise _broken(header, why)


# --- tables -----------------------------------------------------------------------------------------------------------

_AGAIN = "Download it again, or check it against the size and checksum given where it comes from."
_DAMAGED = "is damaged"
_INCOMPLETE = "is incomplete"

_SHORT_ARRAY = 1024
_MAX_LAYERS, _MAX_EXPERTS, _MAX_TENSOR_NAME, _MMAP_ALIGNMENT = 512, 1024, 63, 32

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

_NOT_WEIGHTS = frozenset(("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"))  # no kernel multiplies by them
_INTEGERS = "ffn_gate_tid2eid"

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

# The architectures of llama.cpp 0c1e57098 (llama-arch.cpp) that write text from left to right
_LEFT_TO_RIGHT = """
    afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bailingmoe3 bitnet bloom chameleon chatglm
    codeshell cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 dots1
    dots3note ernie4_5 ernie4_5-moe exaone exaone-moe exaone4 falcon falcon-h1 gemma gemma2 gemma3 gemma3n gemma4
    glm-dsa glm4 glm4moe glm5-next gpt-oss gpt2 gptneox granite granite_swa granitehybrid granitemoe graniteswitch grok
    grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 hy_v4 internlm2 jais jais2 jamba kimi-k3 kimi-linear
    laguna lfm2 lfm2moe llama llama4 maincoder mamba mamba2 maple mellum mimo2 minicpm minicpm3 minimax-01 minimax-m2
    minimax-m3 mistral3 mistral4 mpt muse-glimmer nanbeige nemotron nemotron_h nemotron_h_moe olmo olmo2 olmoe openelm
    orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3 plm qwen qwen2 qwen2moe qwen2vl qwen3 qwen35
    qwen35moe qwen3moe qwen3next qwen3vl qwen3vlmoe qwen4exp refact rwkv6 rwkv6qwen2 rwkv7 seed_oss smallthinker
    smollm3 spark2_5 stablelm starcoder starcoder2 step35 talkie xverse
"""
ARCHITECTURES = frozenset(_LEFT_TO_RIGHT.split())

# Those whose graph asserts that the whole head is rotated
_WHOLE_HEAD_ROTATED = """
    apertus arcee arctic baichuan chameleon codeshell cogvlm dbrx deci deepseek dots1 ernie4_5 ernie4_5-moe exaone
    falcon granite granitemoe graniteswitch grok grovemoe hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais2
    llama llama4 maincoder mistral3 olmo olmo2 olmoe orion paddleocr pangu-embedded plamo qwen2 qwen2moe qwen2vl
    qwen3 qwen3moe qwen3vl qwen3vlmoe seed_oss smollm3 starcoder2 talkie xverse
"""
WHOLE_HEAD_ROTATED = frozenset(_WHOLE_HEAD_ROTATED.split())

# Those it knows, but that cannot answer a prompt by themselves
_EMBEDDING = "an embedding model: it turns text into vectors and cannot write"
_DIFFUSION = "a diffusion model: it fills in a whole text at once instead of going on from left to right"
_HEAD = "a speculation head that runs on the hidden states of another model, not a model of its own"
_SPEECH = "a speech model"
OTHER_ARCHITECTURES: dict[str, str] = {
    "bert": _EMBEDDING,
    "modern-bert": _EMBEDDING,
    "nomic-bert": _EMBEDDING,
    "nomic-bert-moe": _EMBEDDING,
    "neo-bert": _EMBEDDING,
    "jina-bert-v2": _EMBEDDING,
    "jina-bert-v3": _EMBEDDING,
    "eurobert": _EMBEDDING,
    "gemma-embedding": _EMBEDDING,
    "llama-embed": _EMBEDDING,
    "t5encoder": _EMBEDDING,
    "dream": _DIFFUSION,
    "llada": _DIFFUSION,
    "llada-moe": _DIFFUSION,
    "rnd1": _DIFFUSION,
    "eagle3": _HEAD,
    "dflash": _HEAD,
    "gemma4-assistant": _HEAD,
    "wavtokenizer-dec": _SPEECH,
    "qwen3tts": _SPEECH,
    "pockettts": _SPEECH,
    "t5": "an encoder-decoder model, which edgespec does not run",
    "clip": "a vision projector (mmproj), not a language model",
    "controlvector": "a control vector, not a language model",
    "imatrix": "an importance matrix for quantising, not a language model",
}
_OTHER_FILES = {  # general.type
    "adapter": "a LoRA adapter, not a language model",
    "mmproj": "a vision projector (mmproj), not a language model",
    "imatrix": OTHER_ARCHITECTURES["imatrix"],
    "controlvector": OTHER_ARCHITECTURES["controlvector"],
}
