"""A draft head: one layer that reads the target's states, an EAGLE head (arXiv 2503.01840) or an MTP block.

Cell P of its cache holds token P+1 with the target's state at P, and predicts token P+2. After the last token the head
continues with its own states; once the target has computed these positions, the cells are decoded again with the
target's states. An EAGLE-1 head (2401.15077) reads the target's final state, which the target only gives if every token
of a pass has a row of logits. For other tokens, such as those of prompts, its cells have no state; it was trained so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edgespec.core.batch import Batch
from edgespec.core.draft import Budget, Draft
from edgespec.core.features import FINAL_STATE
from edgespec.core.sampling import FloatRow
from edgespec.drafters.base import DraftContext
from edgespec.drafters.decoding import HeadDecodingContext
from edgespec.drafters.model import DraftSlot, Growth
from edgespec.drafters.states import StatesDrafter
from edgespec.drafters.successors import Successors
from edgespec.drafters.tree import ROOT


class HeadDrafter(StatesDrafter):
    """Drafts a token in each pass of the head."""

    context: HeadDecodingContext

    def __init__(
        self, context: HeadDecodingContext, width: int = 1, name: str = "eagle3", successors: Successors | None = None
    ) -> None:
        super().__init__(context, width, name, successors)
        self._skips = context.reads == (FINAL_STATE,)

    def begin(self, sequence: DraftContext) -> None:
        super().begin(sequence)
        self.context.cover(sequence.tokens)

    def read(self, sequence: DraftContext, start: int, layers: Mapping[int, FloatRow]) -> None:
        if self._skips:
            self._features[sequence.slot].skip(start, layers[FINAL_STATE].shape[1])
        super().read(sequence, start, layers)

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        if self._skips:
            for sequence in sequences:
                self._features[sequence.slot].skip(len(sequence.tokens) - 1, self.context.model.n_embd)
        return super().propose(sequences, budgets)

    def _text(self, sequence: DraftContext) -> list[int]:
        """Return the tokens as they are in the cells: all but the first."""
        return sequence.tokens[1:]

    def _decode_committed(self, parts: list[tuple[DraftSlot, list[int]]], *, wanted: bool) -> list[int]:
        batch, last = Batch.empty(), []
        features = []
        for slot, tokens in parts:
            batch.add(tokens, len(slot.held), (slot.number,), wanted=wanted)
            last.append(batch.size - 1)
            features.append(self._take(slot, len(tokens)))
        self.context.decode_pairs(batch, self.context.encode(np.concatenate(features)))
        for slot, tokens in parts:
            slot.held += tokens
        return last

    def _take(self, slot: DraftSlot, n: int) -> FloatRow:
        """Return the target's states of the next n tokens of a slot, float32[n, F]."""
        return self._features[slot.number].take(len(slot.held), n)

    def _decode_drafted(self, batch: Batch, nodes: list[tuple[Growth, int, int]]) -> None:
        states = [growth.states[growth.tree.parents[node]] for growth, node, _ in nodes]
        self.context.decode_pairs(batch, np.stack(states))

    def _row(self, growth: Growth, node: int, index: int) -> FloatRow:
        last = growth.sequence.tokens if node == ROOT else growth.tree.tokens
        return self._blend(growth, super()._row(growth, node, index), last[node])

    def _add(self, growth: Growth, node: int, row: int) -> None:
        growth.states[node] = self.context.state(row)
        super()._add(growth, node, row)
