"""llama.cpp's own grammars, to compare with."""

from __future__ import annotations

import ctypes
from types import TracebackType

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from edgespec.llama.model import LlamaModel

_TOKEN = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class NativeGrammar:
    """A grammar in GBNF that llama.cpp parses and follows. Raises ValueError for one that it refuses."""

    def __init__(self, model: LlamaModel, grammar: str) -> None:
        self._n_vocab = model.n_vocab
        self._sampler = llama_cpp.llama_sampler_init_grammar(model.vocabulary_handle, grammar.encode(), b"root")
        if not self._sampler:
            raise ValueError("llama.cpp refuses this grammar")
        self._tokens = (llama_cpp.llama_token_data * model.n_vocab)()

    def allowed(self) -> NDArray[np.bool_]:
        """bool[V]: which tokens may follow those that were accepted."""
        rows = np.frombuffer(self._tokens, _TOKEN)
        rows["id"], rows["logit"] = np.arange(self._n_vocab), 0
        everything = llama_cpp.llama_token_data_array(self._tokens, self._n_vocab, -1, False)
        llama_cpp.llama_sampler_apply(self._sampler, ctypes.byref(everything))
        allowed = np.zeros(self._n_vocab, np.bool_)
        allowed[rows["id"][rows["logit"] == 0]] = True
        return allowed

    def accept(self, token: int) -> None:
        llama_cpp.llama_sampler_accept(self._sampler, token)

    def __enter__(self) -> NativeGrammar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        llama_cpp.llama_sampler_free(self._sampler)
