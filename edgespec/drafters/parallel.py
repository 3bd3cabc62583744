"""A P-EAGLE head (arXiv 2602.01469): an EAGLE-3 head that drafts several tokens in one pass.

Its cells are those of an EAGLE head (`head.py`): cell P holds token P+1 with the target's state at P. The pass that
reads the tokens of the last step also has the mask tokens after them, and its rows are a block, from which a chain or a
tree is grown without further passes.
"""

from __future__ import annotations

import numpy as np

from edgespec.core.batch import Batch
from edgespec.drafters.base import DraftContext
from edgespec.drafters.block import InOnePass
from edgespec.drafters.decoding import ParallelDecodingContext
from edgespec.drafters.model import DraftSlot


class ParallelDrafter(InOnePass):
    """Drafts all tokens in one pass of the head."""

    context: ParallelDecodingContext

    def _text(self, sequence: DraftContext) -> list[int]:
        """Return the tokens as they are in the cells: all but the first."""
        return sequence.tokens[1:]

    def _decode_committed(self, parts: list[tuple[DraftSlot, list[int]]], *, wanted: bool) -> list[int]:
        """Read tokens with the target's states. If drafts are wanted, a block begins with the last token of each text;
        returns the indices of the blocks."""
        most = max(1, self.context.n_batch // len(parts))
        lengths = [min(self._wanted(slot), self.context.longest, most) if wanted else 1 for slot, _ in parts]
        if wanted and sum(len(tokens) for _, tokens in parts) + sum(lengths) > self.context.n_batch:
            if earlier := [(slot, tokens[:-1]) for slot, tokens in parts if len(tokens) > 1]:
                self._decode_committed(earlier, wanted=False)
            parts = [(slot, tokens[-1:]) for slot, tokens in parts]
        batch, features = Batch.empty(), []
        for slot, tokens in parts:
            batch.add(tokens, len(slot.held), (slot.number,), wanted=wanted)
            features.append(self._features[slot.number].take(len(slot.held), len(tokens)))
        states = self.context.encode(np.concatenate(features))
        if wanted:
            self._blocks = self.context.draft(batch, states, lengths)
        else:
            self.context.decode_pairs(batch, states)
        for slot, tokens in parts:
            slot.held += tokens
        return [*range(len(parts))]

    def _wanted(self, slot: DraftSlot) -> int:
        return slot.grown.tree.budget.tokens if slot.grown else 1
