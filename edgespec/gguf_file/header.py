"""The header of a GGUF file, read with every bound checked.

The reader of the `gguf` package is not used: it trusts the counts and lengths in a file, so that a hostile file of one
megabyte exhausts time and memory. Files on which ggml's `gguf.cpp` throws or asserts are rejected here, with a reason,
in milliseconds.
"""

from __future__ import annotations

import math
import stat
import struct
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.errors import ModelFileError, ModelNotFoundError
from edgespec.gguf_file.walk import AGAIN, INCOMPLETE, STRING, Array, Scalar, Walk, mapped, shown


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's location: `shape` as in ggml (row length first), `offset` from the start of its file."""

    shape: tuple[int, ...]
    type: str
    offset: int
    size_bytes: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """The metadata and tensors of a GGUF file. After `check_model`, `tensors` and `size_bytes` count all parts of a
    split."""

    path: Path
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
        """The types of its tensors, by ggml's names."""
        return frozenset(tensor.type for tensor in self.tensors.values())

    @property
    def n_params(self) -> int:
        """The number of weights."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the model: all parts of a split one."""
        return self.parts or (self.path,)

    @property
    def head_sizes(self) -> tuple[int, int]:
        """The sizes of an attention head's key and value; 0 for a model without attention."""
        heads = max(self.head_counts("attention.head_count"), default=0)
        width = self.number("embedding_length") // heads if heads else 0
        return self.number("attention.key_length", width), self.number("attention.value_length", width)

    @property
    def cached_values(self) -> tuple[int, int]:
        """The number of values that a token adds to the key and value caches of all layers.

        As in llama.cpp, layers that share the cache of earlier layers add nothing, nor do layers that predict further
        tokens, which are not run. With latent attention (MLA) the values are a part of the keys.
        """
        unused = self.number("attention.shared_kv_layers") + self.number("nextn_predict_layers")
        n_layers = max(0, self.number("block_count") - unused)
        k = v = 0
        for layer in range(n_layers):
            keys = self.tensors.get(f"blk.{layer}.attn_k.weight")
            if keys is not None:
                k += math.prod(keys.shape[1:])
                v += math.prod(self.tensors.get(f"blk.{layer}.attn_v.weight", keys).shape[1:])
        if not k:  # the matrix of the keys has other outputs, too
            heads = self.head_counts("attention.head_count_kv") or self.head_counts("attention.head_count")
            k, v = (sum(heads[:n_layers]) * size for size in self.head_sizes)
        return (k, 0) if self.number("attention.key_length_mla") else (k, v)

    def head_counts(self, key: str) -> list[int]:
        """Return one count per layer; none if the file has no counts."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, int):
            # Hybrid models have attention in every n-th layer only.
            return [value] * (self.number("block_count") // max(1, self.number("full_attention_interval", 1)))
        return [int(count) for count in self.numbers(f"{self.architecture}.{key}")]

    def number(self, key: str, default: int = 0) -> int:
        """Return an integer of this architecture; `key` is without its name: `header.number("block_count")`."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        return value if isinstance(value, int) else default

    def length(self, key: str) -> int:
        """Return the number of elements of an array; 0 if there is none."""
        value = self.metadata.get(key)
        return value.length if isinstance(value, Array) else len(value) if isinstance(value, tuple) else 0

    def strings(self, key: str) -> list[bytes]:
        """Return the elements of an array of strings, read from the file as bytes, read-only; [] if there is none.

        Raises ModelFileError if the file can no longer be read.
        """
        array = self.metadata.get(key)
        if not isinstance(array, Array) or array.type != STRING:
            return []
        try:
            facts = self.path.stat()
        except OSError as error:
            raise ModelFileError(f"{self.path} cannot be read", why=str(error)) from error
        return _strings(self.path, array, facts.st_mtime_ns)

    def numbers(self, key: str) -> np.ndarray[Any, Any]:
        """Return the elements of an array of numbers; empty if there is none. Long arrays are read from the file."""
        array = self.metadata.get(key)
        if isinstance(array, tuple):
            return np.asarray([element for element in array if not isinstance(element, str)])
        if not isinstance(array, Array) or array.type == STRING:
            return np.empty(0)
        with mapped(self.path) as data:
            return Walk(self.path, data, array.offset).numbers(array.type, array.length)


def read_header(path: str | Path) -> Header:
    """Read the header of one GGUF file.

    Raises ModelNotFoundError if there is no such file, ModelFileError if it is not a well-formed GGUF file.
    """
    path = Path(path)
    _check_file(path)
    with mapped(path) as data:
        return _read(Walk(path, data))


def quantisation(header: Header) -> str:
    """Return the quantiser's name for the mixture of types, or else the type of most weights."""
    file_type = header.metadata.get("general.file_type")
    if isinstance(file_type, int) and file_type in FILE_TYPES:
        return FILE_TYPES[file_type]
    bytes_by_type: Counter[str] = Counter()
    for tensor in header.tensors.values():
        bytes_by_type[tensor.type] += tensor.size_bytes
    return bytes_by_type.most_common(1)[0][0]


# --- the file ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)  # checking a model reads its tokens, and checking a pair reads them again
def _strings(path: Path, array: Array, mtime_ns: int) -> list[bytes]:
    with mapped(path) as data:
        return Walk(path, data, array.offset).strings(array.length)


def _check_file(path: Path) -> None:
    try:
        facts = path.stat()
    except (OSError, ValueError) as error:
        why = "permission denied" if isinstance(error, PermissionError) else ""
        raise ModelNotFoundError(f"{path} does not exist", why=why) from error
    if stat.S_ISDIR(facts.st_mode):
        models = sorted(child.name for child in path.glob("*.gguf"))[:4]
        hint = f"Name a file in it: {', '.join(models)}" if models else "There is no .gguf file in it."
        raise ModelFileError(f"{path} is a directory, not a GGUF file", hint=hint)
    if not stat.S_ISREG(facts.st_mode) or not facts.st_size:
        raise ModelFileError(f"{path} is empty, or not a regular file", hint=AGAIN)


def _appearance(start: bytes) -> str:
    """Say what a file that is not GGUF seems to be, from its first bytes."""
    if start.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer; `git lfs pull` downloads the real file"
    if start[8:9] == b"{" or b"data.pkl" in start:
        return "it looks like a safetensors file or a PyTorch checkpoint; convert it to GGUF first"
    if start.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml", b"{")):
        return "it is a web page or an error message, saved in place of the model"
    if not start.strip(b"\0"):
        return "it starts with zeros only, like an interrupted download"
    return f"it starts with {start[:4].decode('latin-1')!r} instead of 'GGUF'"


def _read(walk: Walk) -> Header:
    if (start := walk.data[:4]) != b"GGUF":
        why, hint = _appearance(walk.data[:4096] or start), "'edgespec ls' lists the models of this machine."
        raise ModelFileError(f"{walk.path} is not a GGUF file", why=why, hint=hint)
    walk.take(4)
    version = walk.u32()
    if version not in (2, 3):
        why = f"it has version {version} of the format; llama.cpp reads 2 and 3"
        if not version & 0xFFFF:
            why = "it was written for big-endian machines"
        raise ModelFileError(f"{walk.path} cannot be read", why=why, hint="Look for another conversion of the model.")
    n_tensors = walk.count("tensors", 24)
    metadata = _read_metadata(walk, walk.count("metadata entries", 13))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise walk.damaged(f"its alignment is {shown(alignment)}, not a power of two")
    tensors = _read_tensors(walk, n_tensors, alignment)
    return Header(walk.path, metadata, tensors, alignment, walk.end)


def _read_metadata(walk: Walk, n: int) -> dict[str, Scalar | tuple[Scalar, ...] | Array]:
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


def _read_tensors(walk: Walk, n: int, alignment: int) -> dict[str, TensorInfo]:
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


def _read_tensor(walk: Walk, name: str) -> TensorInfo:
    """Read one tensor. Its offset is relative to the data section, whose start is known after the last tensor."""
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


def _placed(walk: Walk, tensors: dict[str, TensorInfo], alignment: int) -> dict[str, TensorInfo]:
    """Return the tensors with offsets from the start of the file: back to back, aligned, inside the file."""
    start = _aligned(walk.pos, alignment)
    needed, placed = 0, {}
    for name, tensor in tensors.items():
        if tensor.offset != needed:
            raise walk.damaged(f"tensor {name!r} starts at offset {tensor.offset:,}, where {needed:,} is expected")
        placed[name] = replace(tensor, offset=start + tensor.offset)
        needed = _aligned(tensor.offset + tensor.size_bytes, alignment)
        if start + tensor.offset + tensor.size_bytes > walk.end:
            size_bytes = start + sum(_aligned(other.size_bytes, alignment) for other in tensors.values())
            why = f"it should have about {size_bytes:,} bytes, but has {walk.end:,}; the data ends inside {name!r}"
            raise ModelFileError(f"{walk.path} {INCOMPLETE}", why=why, hint=AGAIN)
    return placed


def _aligned(offset: int, alignment: int) -> int:
    return (offset + alignment - 1) & -alignment


EXPERTS = r"ffn_(up|down|gate|gate_up)_(ch|)exps"
"""The weights of a layer of which each token uses only some: a regular expression for their names within the layer."""
_MAX_TENSOR_NAME = 63
_MAX_KEY_BYTES = (1 << 16) - 1  # as the specification of GGUF has it
# ggml_type -> (name, elements per block, bytes per block)
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip
FILE_TYPES = {  # general.file_type
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
    20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
    28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
    39: "NVFP4", 40: "Q1_0",
}  # fmt: skip
