"""The decoding context of a block drafter: a head that drafts a block of tokens in one pass.

DFlash (arXiv 2602.06036), DSpark and DFlash2 are the architecture `dflash` of llama.cpp. The graph has two forms. A
batch of states of the target fills the cache: one cell for each token of the text. A batch of tokens, the last token of
the text and mask tokens after it, gives a row of logits for each place of the block. Inside the block attention is
usually not causal, and the cells of the block are removed after the pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgespec.core.batch import Batch
from edgespec.core.features import MOST_EMBEDDINGS
from edgespec.core.sampling import FloatRow, largest
from edgespec.gguf_file.head_check import (
    BIASES,
    DFLASH,
    LATTICE,
    MARKOV,
    block_length,
    layers_read,
    mask_token,
    read_ids,
)
from edgespec.gguf_file.weights import read_rows
from edgespec.llama.batch import check_layers, pointer, states, switch_states
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.library import api
from edgespec.llama.model import LlamaModel

MOST_BIASES = 2**15  # numbers to multiply, if the token before a place is another one than llama.cpp assumed


class BlockContext(Context):
    """KV cache and decoding of `model`, a block drafter for the target that `target` decodes.

    `reads` are the layers of the target whose inputs it reads, and `longest` is the number of tokens of its longest
    draft. `MemoryPlan.as_head` returns the parameters. Raises UsageError if the target does not provide these inputs,
    or this build no states.

    Attributes:
        before: Returns float32[rank], the row of a token in the first matrix of the Markov head, if there is one.
    """

    before: Callable[[int], FloatRow]

    def __init__(self, model: LlamaModel, target: Context, params: ContextParams) -> None:
        header = model.header
        self.target, self.reads = target.model, layers_read(header)
        check_layers(target.model.header.architecture, target.model.n_layer, [*self.reads])
        super().__init__(model, params, other=target)
        self._has_lattice, self._has_markov = LATTICE in header.tensors, MARKOV in header.tensors
        self._has_confidence = "conf_proj.weight" in header.tensors
        anchored = self._has_markov and bool(header.metadata.get(f"{DFLASH}.sample_from_anchor", True))
        # The place of the first draft token in a block: that of the last token of the text, or the first mask token.
        self._first, self._mask = (0 if anchored else 1), mask_token(header)
        self.longest = block_length(header) - self._first
        try:
            if self._has_markov:
                self.before = lru_cache(MOST_EMBEDDINGS)(lambda token: read_rows(header, MARKOV, [token])[0])
                self._biases = read_rows(header, BIASES).astype(np.float16)
                self._places: NDArray[np.int64] = np.arange(model.n_vocab)
                if "d2t" in header.tensors:
                    ids = read_ids(header)
                    self._places[ids] = np.arange(len(ids))
            switch_states(self._handle, wanted_only=not self._has_lattice)
            api.llama_set_causal_attn(self._handle, bool(header.metadata.get(f"{DFLASH}.attention.causal", False)))
        except BaseException:
            self.close()
            raise

    def read_states(self, batch: Batch, features: NDArray[np.float32]) -> None:
        """Fill the cache at the positions of a batch, whose tokens are ignored, with the target's states there:
        float32[n, F], the inputs of the layers `reads`. Raises what `decode` raises."""
        rows = np.ascontiguousarray(features, np.float32)
        at = np.array(batch.positions, np.int32)
        positions = np.concatenate([at, at, at, np.zeros_like(at)])  # only M-RoPE reads the further parts
        native, usual = self._batch.native, self._batch
        native.token, native.embd, native.pos = None, pointer(rows, ctypes.c_float), pointer(positions, api.llama_pos)
        try:
            self.decode(batch.tokens, batch.positions, batch.sequence_ids, [False] * batch.size)
        finally:
            native.embd = None
            native.token, native.pos = pointer(usual.tokens, api.llama_token), pointer(usual.positions, api.llama_pos)

    def draft(self, lasts: Sequence[tuple[int, int, int]], n: int) -> list[Block]:
        """Decode a block for the end of each text, given as slot, last token and the position of that token, and return
        the blocks: drafts of up to `n` tokens. They are valid until the next pass. Raises what `decode` raises."""
        width = n + self._first
        batch = Batch.empty()
        for slot, token, position in lasts:
            for place in range(width):  # the lattice of DFlash2 is not made of rows of logits
                filled = token if place == 0 else self._mask
                batch.add([filled], position + place, (slot,), wanted=not self._has_lattice)
        try:
            self.decode(*batch)
        finally:
            for slot, _, position in lasts:
                self.truncate(slot, position)
        has_states = self._has_lattice or self._has_confidence
        rows = states(self._handle, batch.size, self.model.n_embd) if has_states else None
        kind = LatticeBlock if self._has_lattice else MarkovBlock if self._has_markov else Block
        starts = range(self._first, batch.size, width)
        return [kind(self, n, start, token, rows) for start, (_, token, _) in zip(starts, lasts, strict=True)]

    def biases(self, tokens: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the rows of the Markov head's second matrix for these tokens: float32[n, rank]."""
        rows: NDArray[np.float32] = self._biases[self._places[tokens]].astype(np.float32)
        return rows

    def decode_filler(self, start: int, wanted: Sequence[bool]) -> None:
        n = len(wanted)
        if any(wanted):
            self.draft([(0, 0, start)], self.longest)
        else:
            batch = Batch([0] * n, [*range(start, start + n)], [(0,)] * n, [False] * n)
            self.read_states(batch, np.ones((n, len(self.reads) * self.model.n_embd), np.float32))


class Block:
    """The draft of a block drafter after one text: DFlash predicts each place of the block independently.

    It has `n` tokens, and `start` is the index of the first one in the pass. `last` is the last token of the text, and
    `states` are the rows in which llama.cpp returns what is not a logit.
    """

    def __init__(
        self, context: BlockContext, n: int, start: int, last: int, states: NDArray[np.float32] | None
    ) -> None:
        self.n = n
        self._context, self._start, self._last, self._states = context, start, last, states

    def row(self, path: Sequence[int]) -> FloatRow:
        """Return a copy of the logits float32[V] of the token after the draft tokens `path`."""
        return self._context.logits(self._start + len(path)).copy()

    def confidence(self, depth: int) -> float | None:
        """Return the estimate of the head, if it makes one, that draft token `depth` is accepted if those before it
        are."""
        return None


class MarkovBlock(Block):
    """DSpark: a row is biased by the token before it.

    llama.cpp assumes the likeliest token of each row as the one before the next. For another token, the biases of the
    likeliest tokens are exchanged. The others are not drafted then.
    """

    def row(self, path: Sequence[int]) -> FloatRow:
        row = super().row(path)
        assumed = self._assumed(len(path))
        if path and path[-1] != assumed:
            before = self._context.before(path[-1]) - self._context.before(assumed)
            best = largest(row, max(1, MOST_BIASES // len(before)))
            values = row[best] + self._context.biases(best) @ before
            row.fill(-np.inf)
            row[best] = values
        return row

    def confidence(self, depth: int) -> float | None:
        return None if self._states is None else float(self._states[self._start + depth, 0])

    def _assumed(self, depth: int) -> int:
        """Return the token that was assumed before the token at this depth."""
        return int(self._context.logits(self._start + depth - 1).argmax()) if depth else self._last


class LatticeBlock(Block):
    """DFlash2: a few candidates at each place, scored after each candidate of the place before."""

    def row(self, path: Sequence[int]) -> FloatRow:
        ids, scores = self._at(len(path))
        # The only token before the first place is the last one of the text
        before = int((self._at(len(path) - 1)[0] == path[-1]).argmax()) if path else 0
        row: FloatRow = np.full(self._context.model.n_vocab, -np.inf, np.float32)
        row[ids] = scores[before]
        return row

    def _at(self, depth: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the k candidates of a place, int64[k], and their scores float32[k, k] by the candidate before."""
        assert self._states is not None
        packed, k = self._states[self._start + depth], self._context.model.header.number("selector_top_k")
        return packed[:k].astype(np.int64), packed[k : k + k * k].reshape(k, k)
