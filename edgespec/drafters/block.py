"""A block drafter: DFlash (arXiv 2602.06036), DSpark and DFlash2 draft a whole block of tokens in one pass.

Cell P of the cache holds the target's states at position P, for every token of the text but the last. A block begins
with the last token. Its rows are the distributions of the tokens after it, from which a chain or a tree is grown
without further passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgespec.core.batch import Batch
from edgespec.drafters.base import DraftContext
from edgespec.drafters.decoding import BlockDecodingContext, DraftBlock, OnePassContext
from edgespec.drafters.model import DraftSlot, Growth
from edgespec.drafters.states import StatesDrafter

UNLIKELY = 0.02  # nodes with a smaller path probability get children only if the policy wants them anyway


class InOnePass(StatesDrafter):
    """Grows the whole tree from the block that the pass over the last token of the text gives."""

    _blocks: Sequence[DraftBlock] = ()
    context: OnePassContext

    def n_unread(self, sequence: DraftContext) -> int:
        n = super().n_unread(sequence)
        return n if n > self.context.longest else 0  # reading the tokens of the last step is a part of each draft

    def _add(self, growth: Growth, node: int, row: int) -> None:
        """Grow the whole tree from the block with index `row`."""
        tree, block, frontier = growth.tree, self._blocks[row], [node]
        while frontier:
            [node] = frontier
            path = tree.path(node)
            if len(path) < block.n and (tree.reach(node) >= UNLIKELY or tree.is_worth(node)):
                logits = self._blend(growth, block.row(path), (path or growth.sequence.tokens)[-1])
                self._add_children(growth, node, logits, block.confidence(len(path)))
            else:
                tree.close(node)
            frontier = tree.frontier(1)

    def _grow(self, growing: list[Growth]) -> bool:
        return False  # a block has no second pass


class BlockDrafter(InOnePass):
    """Drafts all tokens in one pass of a block drafter."""

    context: BlockDecodingContext

    def _decode_committed(self, parts: list[tuple[DraftSlot, list[int]]], *, wanted: bool) -> list[int]:
        """Read the target's states of these tokens. If drafts are wanted, the last token of each text begins a block;
        returns the indices of the blocks."""
        batch, features = Batch.empty(), []
        unread = [(slot, tokens[:-1] if wanted else tokens) for slot, tokens in parts]
        for slot, tokens in unread:
            if tokens:
                batch.add(tokens, len(slot.held), (slot.number,), wanted=False)
                features.append(self._features[slot.number].take(len(slot.held), len(tokens)))
        if features:
            self.context.read_states(batch, np.concatenate(features))
        for slot, tokens in unread:
            slot.held += tokens
        if wanted:
            lasts = [(slot.number, tokens[-1], len(slot.held)) for slot, tokens in parts]
            self._blocks = self.context.draft(lasts, self._length([slot for slot, _ in parts]))
        return [*range(len(parts))]

    def _length(self, slots: Sequence[DraftSlot]) -> int:
        """Return how many tokens to draft for each of these texts, whose blocks share a pass and have equal lengths."""
        wanted = max(slot.grown.tree.budget.tokens for slot in slots if slot.grown)
        room = self.context.n_ctx - 1 - max(len(slot.held) for slot in slots)
        return max(1, min(wanted, room, self.context.longest, self.context.n_batch // len(slots) - 1))
