"""The decoding context of a P-EAGLE head (arXiv 2602.01469), which drafts several tokens in one pass, on the CPU.

A P-EAGLE head is an EAGLE-3 head with one or more layers. A draft begins with the last token of the text and the
target's state before it. The places after it have the embedding of a mask token and a trained state, and each of them
attends to the text and to the places before it. Their cells are removed after the pass. The target may be on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.core.batch import Batch
from edgespec.core.sampling import FloatRow
from edgespec.gguf_file.head_check import MASK_STATE, block_length, mask_token
from edgespec.gguf_file.weights import read_rows
from edgespec.llama.context import Context
from edgespec.llama.context_params import ContextParams
from edgespec.llama.eagle_context import EagleContext
from edgespec.llama.head_weights import HeadWeights


class ParallelContext(EagleContext):
    """KV cache and decoding of `model`, a P-EAGLE head for the target that `target` decodes.

    `longest` is the number of tokens that the head was trained to draft in a pass. Raises UsageError if the target does
    not provide the inputs of its layers.
    """

    def __init__(self, model: HeadWeights, target: Context, params: ContextParams) -> None:
        super().__init__(model, target, params)
        header, self._head = model.header, model
        self.longest = block_length(header)
        self._mask, self._mask_state = mask_token(header), read_rows(header, MASK_STATE)
        self._mask_embedding = model.embeddings([self._mask])

    def close(self) -> None:
        super().close()
        self._head.close()

    def _embedded(self, tokens: Sequence[int]) -> NDArray[Any]:
        """Return float32[n, D], the embeddings of tokens."""
        found: NDArray[np.float32] = np.repeat(self._mask_embedding, len(tokens), axis=0)
        others = [place for place, token in enumerate(tokens) if token != self._mask]
        if others:
            found[others] = self._head.embeddings([tokens[place] for place in others])
        return found

    def draft(self, batch: Batch, tokens_states: NDArray[np.float32], lengths: Sequence[int]) -> list[ParallelBlock]:
        """Decode tokens, each with its state, float32[n, D], and draft after each token whose row is wanted, which is
        the last one of a text. `lengths` are the numbers of tokens of these drafts. Returns the blocks, which are valid
        until the next pass. Raises what `decode_pairs` raises."""
        ends = [place for place, wanted in enumerate(batch.wanted) if wanted]
        starts = [(batch.sequence_ids[end][0], batch.positions[end] + 1) for end in ends]
        whole = Batch([*batch.tokens], [*batch.positions], [*batch.sequence_ids], [*batch.wanted])
        blocks = []
        for end, (slot, start), n in zip(ends, starts, lengths, strict=True):
            blocks.append(ParallelBlock(self, [end, *range(whole.size, whole.size + n - 1)]))
            for place in range(n - 1):
                whole.add([self._mask], start + place, (slot,), wanted=True)
        masked = np.repeat(self._mask_state[None], whole.size - batch.size, axis=0)
        try:
            self.decode_pairs(whole, np.concatenate([tokens_states, masked]))
        finally:
            for slot, start in starts:
                self.truncate(slot, start)
        return blocks

    def decode_filler(self, start: int, wanted: Sequence[bool]) -> None:
        if not any(wanted):
            super().decode_filler(start, wanted)
            return
        states = np.zeros((1, self._graphs.width), np.float32)
        self.draft(Batch([0], [start], [(0,)], [True]), states, [self.longest])


class ParallelBlock:
    """The draft of a P-EAGLE head after one text. `places` are the indices of its rows in the pass."""

    def __init__(self, context: ParallelContext, places: list[int]) -> None:
        self._context, self._places, self.n = context, places, len(places)

    def row(self, path: Sequence[int]) -> FloatRow:
        """Return a copy of the logits float32[V] of the token after the draft tokens `path`. Only their number counts:
        each place is predicted independently."""
        return self._context.logits(self._places[len(path)]).copy()

    def confidence(self, depth: int) -> float | None:
        """Return None: the head makes no estimate."""
        return None
