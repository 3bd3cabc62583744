"""A draft head: one layer that reads the target's states, an EAGLE head (arXiv 2503.01840) or an MTP block.

Cell P of its cache holds token P+1 with the target's state at P, and predicts token P+2. After the last token the head
continues with its own states; once the target has computed these positions, the cells are decoded again with the
target's states. An EAGLE-1 head (2401.15077) reads the target's final state, which the target only gives if every token
of a pass has a row of logits. For other tokens, such as those of prompts, its cells have no state; it was trained so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from edgespec.core.batch import Batch
from edgespec.core.draft import Budget, Draft
from edgespec.core.features import FINAL_STATE, MOST_UNREAD
from edgespec.core.prefix import common_prefix
from edgespec.core.sampling import FloatRow
from edgespec.drafters.base import DraftContext, Outcome
from edgespec.drafters.decoding import HeadDecodingContext
from edgespec.drafters.model import Growth, ModelDrafter, Slot
from edgespec.drafters.successors import Successors
from edgespec.drafters.tree import ROOT


class _Features:
    """The states of the target that the head has not read yet: float32[F] for each position from `start` to `end`.

    A backed-off head may read them much later, so the oldest are dropped when there are more than `most` bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.start = 0
        self._tokens: list[int] = []
        self._rows = deque[NDArray[np.float32]]()

    @property
    def end(self) -> int:
        return self.start + len(self._rows)

    def begin(self, tokens: list[int]) -> None:
        """Keep the states of the prefix that a new text shares with the old one."""
        common, self._tokens = common_prefix(self._tokens, tokens), tokens
        if common <= self.start:
            self._rows.clear()
            self.start = 0
        while self.end > common:
            self._rows.pop()

    def add(self, start: int, rows: NDArray[np.float32]) -> None:
        """Add states for the positions from `start` on; positions that are known already keep their states.

        After a gap everything starts again. The first row then also serves for the position before, whose own state is
        lost, because the cells that the head holds may end there.
        """
        if start > self.end:
            self._rows.clear()
            self._rows.append(rows[0])
            self.start = start - 1
        self._rows.extend(rows[self.end - start :])
        while len(self._rows) > max(len(rows), self._most // rows[0].nbytes):
            self._rows.popleft()
            self.start += 1

    def skip(self, end: int, n: int) -> None:
        """Fill positions before `end` for which no state arrived with zeros, n numbers each."""
        self._rows.extend([np.zeros(n, np.float32)] * (end - self.end))

    def take(self, start: int, n: int) -> NDArray[np.float32]:
        """Return float32[n, F] of n positions from `start` on, and drop the positions before."""
        for _ in range(start - self.start):
            self._rows.popleft()
        self.start = start
        return np.stack([*islice(self._rows, n)])


class HeadDrafter(ModelDrafter):
    """Drafts with a head. `context` holds it, with as many sequences as the target's; see `ModelDrafter` for `width`.

    With `successors`, the tokens that the target found likely after the same token are mixed into the draft. If the
    target's states of the beginning of a text are missing (a copied prompt) or were dropped, the head reads the rest
    only.
    """

    context: HeadDecodingContext

    def __init__(
        self, context: HeadDecodingContext, width: int = 1, name: str = "eagle3", successors: Successors | None = None
    ) -> None:
        super().__init__(context, width, name)
        self._successors, self.needs_logits = successors, successors is not None
        self.needs_layers, self._skips = context.reads, context.reads == (FINAL_STATE,)
        self._features = self._no_features()

    def _no_features(self) -> list[_Features]:
        n = self.context.sequences
        return [_Features(MOST_UNREAD // n) for _ in range(n)]

    def forget(self) -> None:
        super().forget()
        self._features = self._no_features()

    def read(self, sequence: DraftContext, start: int, layers: Mapping[int, FloatRow]) -> None:
        rows = np.concatenate([layers[layer] for layer in self.needs_layers], axis=1)
        if self._skips:
            self._features[sequence.slot].skip(start, rows.shape[1])
        self._features[sequence.slot].add(start, rows)

    def observe(self, outcome: Outcome) -> None:
        if self._successors is not None:
            self._successors.learn(outcome)

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        if self._skips:
            for sequence in sequences:
                self._features[sequence.slot].skip(len(sequence.tokens) - 1, self.context.model.n_embd)
        return super().propose(sequences, budgets)

    def begin(self, sequence: DraftContext) -> None:
        super().begin(sequence)
        self._features[sequence.slot].begin(sequence.tokens)

    def can_draft(self, sequence: DraftContext) -> bool:
        return len(sequence.tokens) > 1  # there is no cell yet

    def n_unread(self, sequence: DraftContext) -> int:
        n_known = max(0, len(sequence.tokens) - 2 - self._features[sequence.slot].start)
        return min(super().n_unread(sequence), n_known)

    def _text(self, sequence: DraftContext) -> list[int]:
        """Return the tokens as they are in the cells: all but the first."""
        return sequence.tokens[1:]

    def _knows(self, growth: Growth) -> bool:
        """Return whether the target's states of all tokens that the head has not read are known."""
        slot, features = growth.slot, self._features[growth.slot.number]
        return features.start <= len(slot.held) and features.end >= len(growth.sequence.tokens) - 1

    def _rewind(self, growth: Growth) -> None:
        """Keep only the cells that were decoded with the target's states."""
        slot, text, features = growth.slot, self._text(growth.sequence), self._features[growth.slot.number]
        kept = len(slot.held) if slot.grown is not None else common_prefix(slot.held, text[:-1])
        self.context.release(slot.branches)
        if kept < features.start:
            self.context.forget(slot.number)
            slot.held = text[: features.start]
        else:
            self.context.truncate(slot.number, kept)
            del slot.held[kept:]
        slot.paths, slot.grown = {slot.number: []}, growth

    def _decode_committed(self, parts: list[tuple[Slot, list[int]]], *, wanted: bool) -> list[int]:
        batch, last = Batch.empty(), []
        features = []
        for slot, tokens in parts:
            batch.add(tokens, len(slot.held), (slot.number,), wanted=wanted)
            last.append(batch.size - 1)
            features.append(self._features[slot.number].take(len(slot.held), len(tokens)))
        self.context.decode_pairs(batch, self.context.encode(np.concatenate(features)))
        for slot, tokens in parts:
            slot.held += tokens
        return last

    def _decode_drafted(self, batch: Batch, nodes: list[tuple[Growth, int, int]]) -> None:
        states = [growth.states[growth.tree.parents[node]] for growth, node, _ in nodes]
        self.context.decode_pairs(batch, np.stack(states))

    def _is_end(self, token: int) -> bool:
        return self.context.target.is_end(token)  # a head's file may have no tokenizer

    def _row(self, growth: Growth, node: int, index: int) -> FloatRow:
        row = super()._row(growth, node, index)
        if self._successors is not None and growth.sequence.is_draft_invariant:
            last = growth.sequence.tokens if node == ROOT else growth.tree.tokens
            self._successors.blend(row, last[node])
        return row

    def _add(self, growth: Growth, node: int, row: int) -> None:
        growth.states[node] = self.context.state(row)
        super()._add(growth, node, row)
