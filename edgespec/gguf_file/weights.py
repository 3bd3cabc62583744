"""Read weights of a GGUF file as numbers, row by row, from any weight type; recognise a model by some of them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import shake_128
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelFileError
from edgespec.gguf_file.header import Header

AT_ONCE = 4096  # rows
PRINT_KEY = "edgespec.head.target_print"  # in a draft head: the print of the target that it was trained on
PRINT_ROWS, LEAST_CORRELATION = 256, 0.9


def read_rows(header: Header, name: str, rows: Sequence[int] | None = None) -> NDArray[np.float32]:
    """Return float32[n, row length]: some or all rows of a tensor; for a vector float32[length].

    Raises ModelFileError if there is no such tensor, or if its type cannot be read.
    """
    import gguf

    raw, info = stored_rows(header, name), header.tensors[name]
    kind = gguf.GGMLQuantizationType[info.type]
    wanted = np.arange(len(raw)) if rows is None else np.asarray(rows)
    found = np.empty((len(wanted), info.shape[0]), np.float32)
    try:
        for start in range(0, len(wanted), AT_ONCE):
            part: Any = np.ascontiguousarray(raw[wanted[start : start + AT_ONCE]])
            found[start : start + AT_ONCE] = gguf.quants.dequantize(part, kind)
    except NotImplementedError as error:
        raise ModelFileError(f"the weights of {header.path} cannot be read", why=f"{name} is {info.type}") from error
    return found if len(info.shape) > 1 else found[0]


def stored_rows(header: Header, name: str) -> NDArray[np.uint8]:
    """Return the rows of a tensor as they are in the file, memory-mapped: uint8[n, bytes of a row]. Raises
    ModelFileError if there is no such tensor."""
    info = header.tensors.get(name)
    if info is None:
        raise ModelFileError(f"{header.path} has no tensor {name!r}")
    n_rows = int(np.prod(info.shape[1:], dtype=np.int64))
    path: Path = header.parts[info.part] if header.parts else header.path
    return np.memmap(path, np.uint8, "r", info.offset, (n_rows, info.size_bytes // n_rows))


def target_print(header: Header, n_vocab: int = 0) -> NDArray[np.float32]:
    """Return numbers that identify a model: float32[256], fewer of a smaller vocabulary. Raises ModelFileError.

    Some rows of the token embedding are multiplied with one fixed vector of signs. The prints of two quantisations of a
    model have a correlation near 1 (.96 for Q2_K), the prints of two models near 0. A fine-tuned model counts as the
    same. `n_vocab` is the number of tokens among which the rows are chosen, all without.
    """
    tensor = header.tensors.get("token_embd.weight")
    n_vocab = n_vocab or (tensor.shape[1] if tensor is not None else 0)
    return _print_of(read_rows(header, "token_embd.weight", printed_rows(n_vocab)))


def is_copy(embeddings: NDArray[np.floating], header: Header) -> bool:
    """Return whether token embeddings, [V, D], are those of a model."""
    tensor = header.tensors.get("token_embd.weight")
    if tensor is None or tensor.shape[::-1] != embeddings.shape:
        return False
    rows = embeddings[printed_rows(len(embeddings))].astype(np.float32)
    return is_same_target(_print_of(rows), target_print(header))


def printed_rows(n_vocab: int) -> list[int]:
    """Return the tokens from whose embeddings the print of a model is made."""
    return [int(token) for token in np.linspace(0, max(0, n_vocab - 1), min(n_vocab, PRINT_ROWS))]


def _print_of(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    width = rows.shape[1]
    signs = np.unpackbits(np.frombuffer(shake_128(b"edgespec").digest(width // 8 + 1), np.uint8))[:width] * 2.0 - 1.0
    return (rows @ signs).astype(np.float32)


def is_same_target(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Return whether two prints belong to the same model, in any quantisation."""
    if one.shape != other.shape or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return False
    return bool(np.array_equal(one, other) or np.corrcoef(one, other)[0, 1] >= LEAST_CORRELATION)
