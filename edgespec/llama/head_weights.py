"""The weights of a draft head that llama.cpp has no architecture for, in tensors of our own in main memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.closable import Closable
from edgespec.files.paths import file_facts
from edgespec.gguf_file.head_check import n_tokens
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.weights import read_rows, stored_rows
from edgespec.llama.graph import Tensors, fill
from edgespec.llama.model import Model

EMBEDDINGS = "token_embd.weight"
_NOT_LOADED = (EMBEDDINGS, "d2t")


class HeadWeights(Closable):
    """The matrices and vectors of a head's file, and embeddings of its own or of its target.

    Embeddings stay in the file, from which the few rows of a pass are read. Raises ModelFileError, OutOfMemoryError.
    """

    is_offloaded = False

    def __init__(self, header: Header, target: Model) -> None:
        import gguf

        self.header, self.n_params, self.n_vocab = header, header.n_params, n_tokens(header)
        self.n_embd = header.number("embedding_length")
        facts = dict(zip(("file", "size", "mtime"), file_facts(header.path), strict=True))
        self.fingerprint: dict[str, object] = {**facts}
        self._embedded = header if EMBEDDINGS in header.tensors else target.header
        self._target = target
        loaded = {name: info for name, info in header.tensors.items() if name not in _NOT_LOADED}
        # Matrices are only multiplied by, so they may be interleaved; what is added or scales must not be.
        matrices, vectors = Tensors(len(loaded)), Tensors(len(loaded))
        self._memory = [matrices, vectors]
        self.tensors: dict[str, int] = {}
        for name, info in loaded.items():
            memory = vectors if len(info.shape) == 1 else matrices
            self.tensors[name] = memory.new(gguf.GGMLQuantizationType[info.type], *info.shape)
        matrices.allocate(interleaved=True)
        vectors.allocate()
        for name, tensor in self.tensors.items():
            fill(tensor, stored_rows(header, name))
        self.embeddings([0])  # an error should appear now, if their type cannot be read

    def close(self) -> None:
        """Free the weights. No graph that uses them may be computed any more."""
        self._memory.clear()

    def embeddings(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return float32[n, D]."""
        return read_rows(self._embedded, EMBEDDINGS, tokens)

    def is_end(self, token: int) -> bool:
        """Return whether a token ends a generation of the target."""
        return self._target.is_end(token)
