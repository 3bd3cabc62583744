"""Make quantisations of a model to compare, once: they stay in the cache folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from edgespec.errors import UsageError
from edgespec.files.paths import derived_file, make_room
from edgespec.gguf_file.header import Header, read_header
from edgespec.llama.quantize import TYPES, quantize
from edgespec.text.figures import percent

LEAST_SHARE = 0.005  # of the bytes; smaller shares are not mentioned


def check_quants(names: Iterable[str]) -> list[str]:
    """Return the names in llama.cpp's spelling, each once. Raises UsageError for a type that cannot be made."""
    wanted = list(dict.fromkeys(name.strip().upper() for name in names))
    if unknown := [name for name in wanted if name not in TYPES]:
        raise UsageError(f"cannot make quantisation {unknown[0]!r}", hint=f"the types are {', '.join(TYPES)}")
    return wanted


def make_quant(source: Path, type: str, progress: Callable[[float], None] = lambda done: None) -> Path:
    """Return a file of the model `source` with weights of `type` ("Q4_K_M"), which is made unless it is in the cache.

    A source that is already quantised is accepted too, and loses quality twice. Raises UsageError, ModelFileError.
    """
    path = derived_file("quants", source, type)
    if path.is_file():
        return path
    make_room(
        path.parent,
        size_bytes(read_header(source).n_params, type),
        no_place="there is no space for quantised files in",
        no_room=f"{type} of {source.name} may not fit into",
        needs="it needs about",
    )
    quantize(source, path, type, again=True, progress=progress)
    return path


def size_bytes(n_params: int, type: str) -> int:
    """Estimate the size of a file: the bits in the type's name, plus two for scales and larger tensors."""
    bits = re.search(r"\d+", type)
    assert bits is not None
    return n_params * (int(bits[0]) + 2) // 8


def types_by_share(header: Header) -> dict[str, float]:
    """Return the share of the bytes that each weight type of a file has, the largest first."""
    sizes: Counter[str] = Counter()
    for tensor in header.tensors.values():
        sizes[tensor.type] += tensor.size_bytes
    return {type: size / sizes.total() for type, size in sizes.most_common()}


def describe_types(header: Header, type: str) -> str:
    """Describe the weight types of a file that was quantised as `type`, and why they differ if rows were too short."""
    shares = types_by_share(header)
    text = ", ".join(f"{name} {percent(share)}" for name, share in shares.items() if share >= LEAST_SHARE)
    too_short = [tensor for tensor in header.tensors.values() if tensor.type != "F32" and tensor.shape[0] % 256]
    return (
        f"{text} (rows that are not a multiple of 256 long cannot be K-quants)" if too_short and "_K" in type else text
    )
