"""The decoding context of a draft head: a small model that reads the target's states in addition to its tokens.

llama.cpp runs heads of the form EAGLE-3 (arXiv 2503.01840) as two graphs: an encoder, which computes one state from the
inputs of three of the target's layers, and a decoder, whose cache holds pairs of a token and a state. For an EAGLE-1
head the encoder reads the target's final state. The MTP block that some models have is such a decoder too; its states
are the outputs of the target's last layer.

The assistant of a Gemma 4 has no cache: it reads the target's. All its tokens have the position after the cells of the
target, and leave none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgespec.core.batch import Batch
from edgespec.core.features import FINAL_STATE, LAST_OUTPUT, TRIMMED_ROWS, rms_normed
from edgespec.core.sampling import FloatRow
from edgespec.errors import GenerationError
from edgespec.gguf_file.head_check import (
    N_LAYERS_READ,
    NORMS_LAYERS,
    NORMS_STATE,
    kind_of_head,
    layers_read,
    norm_epsilon,
)
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.weights import read_rows, stored_rows
from edgespec.llama.batch import can_choose_block, check_layers, pointer, states, switch_states, use_block
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.graph import Processor, Product
from edgespec.llama.library import api
from edgespec.llama.model import LlamaModel


class HeadContext(Context):
    """KV cache and decoding of `model`: a head for the target that `target` decodes, or the MTP block of this target.

    `reads` are the layers of the target whose inputs the head reads; `MemoryPlan.as_head` returns the parameters. With
    an `output` it computes the logits of an MTP block. `blocks` MTP blocks share the sequences. An assistant has the
    target's cache. Raises UsageError if the target does not provide these inputs, or this build no states.

    Attributes:
        blocks: The number of MTP blocks that draft; the first one alone if this build cannot choose. Block b has the
            sequences from `b * sequences` on.
    """

    def __init__(
        self,
        model: LlamaModel,
        target: Context,
        params: ContextParams,
        *,
        output: TrimmedOutput | None = None,
        blocks: int = 1,
    ) -> None:
        self._output = output
        self.target = target.model
        kind = kind_of_head(model.header)  # empty: an MTP block
        of_others = (FINAL_STATE,) if kind == "eagle1" else (LAST_OUTPUT,)
        self.reads = layers_read(model.header) if kind == "eagle3" else of_others
        # llama.cpp's graph has none of these norms of EAGLE-3.1
        self._norms_layers, self._epsilon = bool(model.header.metadata.get(NORMS_LAYERS)), norm_epsilon(model.header)
        self._output_norm = None
        if model.header.metadata.get(NORMS_STATE):
            self._output_norm = read_rows(model.header, "output_norm.weight")
        if kind == "eagle3":
            check_layers(target.model.header.architecture, target.model.n_layer, [*self.reads])
        self._shares_cache = kind == "assistant"
        if self._shares_cache:
            shared = target.params
            params = replace(
                params,
                n_ctx=shared.n_ctx,
                sequences=shared.sequences,
                branches=shared.branches,
                scratch=shared.scratch,
                cache_type_k=shared.cache_type_k,
                cache_type_v=shared.cache_type_v,
                streams=shared.streams,
            )
        super().__init__(model, params, other=target)
        self.sequences //= blocks
        self.blocks = blocks if can_choose_block() else 1
        self._n_rows = 0
        try:
            switch_states(self._handle, wanted_only=output is None)
        except BaseException:
            self.close()
            raise

    def encode(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return float32[n, D], the states of at most `n_batch` tokens, from float32[n, F], the inputs of the layers
        `reads`.

        Raises GenerationError.
        """
        features = np.ascontiguousarray(features, np.float32)
        if self.reads == (LAST_OUTPUT,):
            return features
        if self._norms_layers:
            layers = features.reshape(len(features), len(self.reads), -1)
            features = rms_normed(layers, self._epsilon).reshape(features.shape)
        missing = N_LAYERS_READ * self.model.header.number("target_hidden_size") - features.shape[1]
        if missing:
            features = np.pad(features, ((0, 0), (missing, 0)))
        wanted = np.ones(len(features), np.int8)
        batch = api.llama_batch(
            n_tokens=len(features),
            embd=pointer(features, ctypes.c_float),
            logits=pointer(wanted, ctypes.c_int8),
        )
        code = api.llama_encode(self._handle, batch)
        if code:
            raise GenerationError("encoding the target's features failed", why=f"llama.cpp returned {code}")
        api.llama_synchronize(self._handle)
        return states(self._handle, len(features), self.model.n_embd_out).copy()

    def decode_pairs(self, batch: Batch, tokens_states: NDArray[np.float32]) -> None:
        """Decode tokens, each with its state, float32[n, D]. Raises what `decode` raises.

        The graph computes rows for all tokens or for none: for all, if any of them is wanted.
        """
        rows = np.ascontiguousarray(tokens_states, np.float32)
        self._batch.native.embd = pointer(rows, ctypes.c_float)
        try:
            wanted = self._output is None and any(batch.wanted)
            self.decode(batch.tokens, batch.positions, batch.sequence_ids, [wanted] * batch.size)
        finally:
            self._batch.native.embd = None
        self._n_rows = batch.size

    def use_block(self, block: int) -> None:
        """Let later passes run this MTP block, 0 is the first."""
        use_block(self._handle, block)

    def logits(self, index: int) -> NDArray[np.float32]:
        """Return float32[V] of batch entry `index`; from some rows of the output only, if it is trimmed."""
        return super().logits(index) if self._output is None else self._output(self.state(index))

    def cover(self, tokens: Iterable[int]) -> None:
        """Let a trimmed output have these tokens."""
        if self._output is not None:
            self._output.cover(tokens)

    def decode_filler(self, start: int, wanted: Sequence[bool]) -> None:
        n, start = len(wanted), self.length(0) if self._shares_cache else start
        batch = Batch([0] * n, [*range(start, start + n)], [(0,)] * n, [*wanted])
        self.decode_pairs(batch, np.ones((n, self.model.n_embd_out), np.float32))
        if self._output is not None and any(wanted):
            self.logits(n - 1)

    def state(self, index: int) -> NDArray[np.float32]:
        """Return float32[D], the state with which a token drafted after entry `index` of the last batch is decoded."""
        row: NDArray[np.float32] = states(self._handle, self._n_rows, self.model.n_embd_out)[index]
        return row.copy() if self._output_norm is None else rms_normed(row, self._epsilon) * self._output_norm


# --- the trimmed output of an MTP block -------------------------------------------------------------------------------

# The output of an MTP block for some tokens only: those that the model writes often.
#
# All rows of a vocabulary of 250,000 tokens cost three times as much as the block itself. The tokens that a text has
# are added, since texts repeat their words.


MOST_ADDED = 2**12  # tokens that are kept in a second matrix, which is made again for each new text


class TrimmedOutput:
    """Computes the logits of some tokens from a block's state; all others are minus infinity.

    `name` is the output matrix in the model's file, and `counts` says how often the model wrote each token, int64[V]:
    the most frequent ones are kept, and among equals those with the lowest ids, which were merged first.
    """

    def __init__(self, header: Header, name: str, counts: NDArray[np.int64], processor: Processor) -> None:
        import gguf

        self._rows, self._processor = stored_rows(header, name), processor
        info = header.tensors[name]
        self._kind, self._width = gguf.GGMLQuantizationType[info.type], info.shape[0]
        order = np.lexsort((np.arange(len(counts)), -counts))
        frequent = np.sort(order[:TRIMMED_ROWS])
        self._is_frequent = np.zeros(len(counts), bool)
        self._is_frequent[frequent] = True
        self._parts = [self._part(frequent)]
        self._added: NDArray[np.int64] = np.empty(0, np.int64)  # those of the last text first

    def cover(self, tokens: Iterable[int]) -> None:
        """Have these tokens too, in place of those of the oldest texts."""
        found = np.unique(np.fromiter(tokens, np.int64))
        found = found[(found >= 0) & (found < len(self._is_frequent))]
        rare = found[~self._is_frequent[found]]
        if not np.isin(rare, self._added).all():
            others = self._added[~np.isin(self._added, rare)]
            self._added = np.concatenate([rare, others])[:MOST_ADDED]
            self._parts[1:] = [self._part(self._added)]

    def __call__(self, state: FloatRow) -> FloatRow:
        """Return float32[V] after a state, float32[D]."""
        logits: FloatRow = np.full(len(self._is_frequent), -np.inf, np.float32)
        for ids, product in self._parts:
            logits[ids] = product(state)
        return logits

    def _part(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], Product]:
        return ids, Product(self._rows[ids], self._kind, self._width, self._processor)
