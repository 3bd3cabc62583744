"""What a draft head of the architecture `eagle3` says in llama.cpp: to check a file that was just written."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import llama_cpp_ext
from numpy.typing import NDArray

from edgespec.closable import Closable
from edgespec.errors import GenerationError, ModelFileError
from edgespec.llama.context import Context
from edgespec.llama.library import api, complaints, first_complaint

MOST = 64  # tokens: the whole batch is an output, with a row of V logits each
_NO_DEVICES = (ctypes.c_void_p * 1)(None)


class HeadTrial(Closable):
    """A head in a file beside the context of its target, whose token embeddings it uses. Raises ModelFileError."""

    def __init__(self, path: Path, target: Context, threads: int = 1) -> None:
        self._model: Any = None
        self._context: Any = None
        params = api.llama_model_default_params()
        params.n_gpu_layers, params.devices = 0, ctypes.cast(_NO_DEVICES, ctypes.c_void_p)
        with complaints() as lines:
            self._model = api.llama_model_load_from_file(os.fsencode(path), params)
            if self._model:
                settings = api.llama_context_default_params()
                settings.n_ctx, settings.n_batch, settings.n_ubatch = 4 * MOST, MOST, MOST
                settings.n_threads = settings.n_threads_batch = threads
                settings.ctx_other = target._handle
                self._context = api.llama_init_from_model(self._model, settings)
        if not self._context:
            self.close()
            raise ModelFileError(f"llama.cpp cannot load {path}", why=first_complaint(lines))
        self.width, self.n_vocab = target.model.n_embd, target.model.n_vocab
        llama_cpp_ext.llama_set_embeddings_nextn(self._context, True, True)

    def close(self) -> None:
        if self._context:
            api.llama_free(self._context)
        if self._model:
            api.llama_model_free(self._model)
        self._context = self._model = None

    def encode(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32[n, D], what the target's features float32[n, 3 D] of at most 64 tokens are fused to."""
        rows = np.ascontiguousarray(features, np.float32)
        outputs = np.ones(len(rows), np.int8)
        batch = api.llama_batch(
            n_tokens=len(rows), embd=_pointer(rows, ctypes.c_float), logits=_pointer(outputs, ctypes.c_int8)
        )
        self._check(api.llama_encode(self._context, batch))
        return self._states(len(rows))

    def decode(
        self, tokens: list[int], g: NDArray[np.float32], start: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """float32[n, V] and float32[n, D]: logits and next states of the cells from `start` on, of one sequence."""
        n, rows = len(tokens), np.ascontiguousarray(g, np.float32)
        batch = api.llama_batch_init(n, 0, 1)
        ids, place = np.asarray(tokens, np.int32), np.arange(start, start + n, dtype=np.int32)
        for index in range(n):
            batch.token[index], batch.pos[index], batch.logits[index] = int(ids[index]), int(place[index]), 1
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
        batch.n_tokens = n
        batch.embd = _pointer(rows, ctypes.c_float)
        try:
            self._check(api.llama_decode(self._context, batch))
        finally:
            batch.embd = None
            api.llama_batch_free(batch)
        logits = np.ctypeslib.as_array(api.llama_get_logits(self._context), (n, self.n_vocab)).copy()
        return logits, self._states(n)

    def _states(self, n: int) -> NDArray[np.float32]:
        api.llama_synchronize(self._context)
        found = llama_cpp_ext.llama_get_embeddings_nextn(self._context)
        return np.ctypeslib.as_array(found, (n, self.width)).copy()

    def _check(self, code: int) -> None:
        if code:
            raise GenerationError("the head cannot be run", why=f"llama.cpp returned {code}")


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
