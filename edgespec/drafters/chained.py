"""The MTP blocks of a model that has several.

Each was trained to draft one token more: the first the next token, the second the token after it. So block `d` drafts
token `d`. It reads the tokens before that token once more, in cells that no other block uses (DeepSeek-V3, arXiv
2412.19437, section 2.2). The first block can also draft the whole chain alone, like the block of a model that has only
one. The accepted tokens of both ways are counted, and the better way makes most drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from edgespec.core.batch import Batch
from edgespec.core.prefix import common_prefix
from edgespec.drafters.base import DraftContext
from edgespec.drafters.decoding import HeadDecodingContext
from edgespec.drafters.head import HeadDrafter
from edgespec.drafters.model import DraftSlot, Growth
from edgespec.drafters.tree import ROOT, Tree

EXPLORED = 8  # one of this many drafts is made in the way that is accepted less
EVEN = 0.5  # the estimate that all tokens have which are only counted


class ChainedDrafter(HeadDrafter):
    """Drafts token d with block d, or all tokens with the first block, whichever is accepted more."""

    def __init__(self, context: HeadDecodingContext, width: int, name: str) -> None:
        super().__init__(context, width, name)
        self._held = self._nothing_held()
        self._n_drafts = 0
        self._was_chained = self._by_slot(lambda: True)

    def forget(self) -> None:
        super().forget()
        for block, held in enumerate(self._held, 1):
            for slot in range(len(held)):
                self.context.forget(self._cells(block, slot))
        self._held = self._nothing_held()

    def _nothing_held(self) -> list[list[list[int]]]:
        """Return the tokens in the cells of the second and further blocks, for each slot."""
        return [[[] for _ in range(self.context.sequences)] for _ in range(1, self.context.blocks)]

    def _cells(self, block: int, slot: int) -> int:
        """Return the sequence id whose cells a block uses for a slot."""
        return block * self.context.sequences + slot

    # --- drafting -------------------------------------------------------------------------------------------------

    def _draft(self, growing: list[Growth]) -> None:
        chains = self._chains(growing)
        for growth in growing:
            self._was_chained[growth.slot.number] = chains
        if not chains:
            super()._draft(growing)
            return
        for growth in growing:
            self._rewind(growth)
        growing = [growth for growth in growing if self._knows(growth)]
        self._catch_up(growing)
        for block in range(1, self.context.blocks):  # of a prompt now, not in the middle of an answer
            self._read_texts(block, growing)
        last = [ROOT] * len(growing)
        for block in range(1, self.context.blocks):
            last = [self._likeliest_child(growth.tree, node) for growth, node in zip(growing, last, strict=True)]
            growing = [growth for growth, node in zip(growing, last, strict=True) if node != ROOT]
            last = [node for node in last if node != ROOT]
            if not growing:
                break
            self._draft_with(block, growing, last)

    def _chains(self, growing: Sequence[Growth]) -> bool:
        """Return whether the next drafts are chained. If drafts may influence texts, nothing is learned from them."""
        if not all(growth.sequence.is_draft_invariant for growth in growing):
            return True
        self._n_drafts += 1
        better = self._share(chained=True) >= self._share(chained=False)
        return better != (self._n_drafts % EXPLORED == 0)

    def _share(self, *, chained: bool) -> float:
        """Return the share of accepted tokens among those that followed an accepted one."""
        return self._calibrations[_sort(chained)].probability(EVEN)

    def _learn(self, tree: Tree, sequence: DraftContext, tokens: Sequence[int]) -> None:
        super()._learn(tree, sequence, tokens)
        counts = self._calibrations[_sort(self._was_chained[sequence.slot])]
        node = ROOT
        for depth, token in enumerate(tokens):
            children = tree.children(node)
            if not children:
                break
            node = children[0]
            if depth:
                counts.observe(EVEN, tree.tokens[node] == token)
            if tree.tokens[node] != token:
                break

    def _likeliest_child(self, tree: Tree, node: int) -> int:
        """Return the node that the next block continues from; ROOT if the draft ends before it."""
        children = tree.children(node)
        goes_on = bool(children) and children[0] in tree.frontier(max(1, len(tree.tokens)))
        return children[0] if goes_on and tree.is_worth(children[0]) else ROOT

    def _draft_with(self, block: int, growing: Sequence[Growth], nodes: Sequence[int]) -> None:
        """Add the tokens that a block predicts after these nodes."""
        with self._running(block, growing):
            batch, states, last = Batch.empty(), list[NDArray[np.float32]](), list[int]()
            for growth, node in zip(growing, nodes, strict=True):
                self._add_text(batch, states, block, growth, len(self._text(growth.sequence)))
                self._add_path(batch, states, block, growth, node)
                last.append(batch.size - 1)
            self.passes += 1
            self.context.decode_pairs(batch, np.concatenate(states))
            for growth, node, row in zip(growing, nodes, last, strict=True):
                self._keep_text(block, growth)
                self._add(growth, node, row)

    @contextmanager
    def _running(self, block: int, growing: Sequence[Growth]) -> Iterator[None]:
        """Let passes run a block. After an error only the cells of the text that was read before are kept."""
        self.context.use_block(block)
        try:
            yield
        except BaseException:
            for slot in (growth.slot.number for growth in growing):
                self.context.truncate(self._cells(block, slot), len(self._held[block - 1][slot]))
            raise
        finally:
            self.context.use_block(0)

    def _read_texts(self, block: int, growing: Sequence[Growth]) -> None:
        """Decode what a block has not read of long texts; what remains of all texts shares a pass with their drafts."""
        most = max(1, self.context.n_batch // max(1, len(growing)) - self.context.blocks)
        for growth in growing:
            held, end = self._held[block - 1][growth.slot.number], len(self._text(growth.sequence))
            while end - len(held) > most:
                with self._running(block, [growth]):
                    batch, states = Batch.empty(), list[NDArray[np.float32]]()
                    stop = min(len(held) + self.context.n_batch, end - 1)
                    self._add_text(batch, states, block, growth, stop, wanted=False)
                    self.context.decode_pairs(batch, np.concatenate(states))
                    held += batch.tokens

    def _add_text(
        self, batch: Batch, states: list[NDArray[np.float32]], block: int, growth: Growth, end: int, wanted: bool = True
    ) -> None:
        """Add the tokens of the text up to `end` that a block has not read, with the target's states."""
        slot, held = growth.slot.number, len(self._held[block - 1][growth.slot.number])
        tokens = self._text(growth.sequence)[held:end]
        if tokens:
            batch.add(tokens, held, (self._cells(block, slot),), wanted=wanted)
            states.append(self.context.encode(self._features[slot].rows(held, len(tokens))))

    def _add_path(self, batch: Batch, states: list[NDArray[np.float32]], block: int, growth: Growth, node: int) -> None:
        """Add the draft tokens up to a node, each with the state that the blocks before gave it."""
        path = [node]
        while (parent := growth.tree.parents[path[-1]]) != ROOT:
            path.append(parent)
        path.reverse()
        start = len(self._text(growth.sequence))
        tokens = [growth.tree.tokens[each] for each in path]
        batch.add(tokens, start, (self._cells(block, growth.slot.number),), wanted=True)
        states.append(np.stack([growth.states[growth.tree.parents[each]] for each in path]))

    def _keep_text(self, block: int, growth: Growth) -> None:
        """Remove the draft tokens from a block's cells, which then hold the text."""
        text = self._text(growth.sequence)
        self._held[block - 1][growth.slot.number] = [*text]
        self.context.truncate(self._cells(block, growth.slot.number), len(text))

    # --- the cache ------------------------------------------------------------------------------------------------

    def _rewind(self, growth: Growth) -> None:
        super()._rewind(growth)
        text, slot = self._text(growth.sequence), growth.slot.number
        for block, held in enumerate(self._held, 1):
            kept = common_prefix(held[slot], text[:-1])
            if kept < self._features[slot].start:  # these states are gone
                self.context.forget(self._cells(block, slot))
                held[slot] = text[: self._features[slot].start]
            else:
                self.context.truncate(self._cells(block, slot), kept)
                del held[slot][kept:]

    def _take(self, slot: DraftSlot, n: int) -> NDArray[np.float32]:
        """Return the states of the next tokens of a slot; those that a block has not read stay."""
        features, start = self._features[slot.number], len(slot.held)
        rows = features.rows(start, n)
        features.drop(min(start, *(len(held[slot.number]) for held in self._held)))
        return rows


def _sort(chained: bool) -> str:
    return "chained" if chained else "first block alone"
