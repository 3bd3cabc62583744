"""Recognise the model that a draft head belongs to, by numbers made of its token embeddings.

`target_print` multiplies some rows of the embedding with one fixed vector of signs. The prints of two quantisations
of a model have a correlation near 1 (.96 for Q2_K), the prints of two models near 0. A fine-tuned model counts as the
same.
"""

from __future__ import annotations

from hashlib import shake_128

import numpy as np
from numpy.typing import NDArray

from edgespec.gguf_file.header import Header
from edgespec.gguf_file.weights import read_rows

KEY = "edgespec.head.target_print"
N_ROWS = 256
LEAST_CORRELATION = 0.9


def target_print(header: Header) -> NDArray[np.float32]:
    """float32[256], fewer of a smaller vocabulary. Raises ModelFileError."""
    n_vocab = header.tensors["token_embd.weight"].shape[1] if "token_embd.weight" in header.tensors else 0
    tokens = np.linspace(0, max(0, n_vocab - 1), min(n_vocab, N_ROWS)).astype(int)
    rows = read_rows(header, "token_embd.weight", tokens.tolist())
    width = rows.shape[1]
    signs = np.unpackbits(np.frombuffer(shake_128(b"edgespec").digest(width // 8 + 1), np.uint8))[:width] * 2.0 - 1.0
    found: NDArray[np.float32] = (rows @ signs).astype(np.float32)
    return found


def is_same_target(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    """Return whether two prints belong to the same model, in any quantisation."""
    if one.shape != other.shape or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return False
    return bool(np.array_equal(one, other) or np.corrcoef(one, other)[0, 1] >= LEAST_CORRELATION)
