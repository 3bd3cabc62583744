"""A draft head: one layer that reads what the target computed, an EAGLE-3 head (arXiv 2503.01840) or an MTP block.

Cell P of its cache holds token P+1 with the state of the target at P, and predicts token P+2. Behind the last token it
goes on with states of its own; once the target has computed there, those cells are decoded again with the target's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edgespec.core.prefix import common_prefix
from edgespec.core.sampling import FloatRow
from edgespec.drafters.base import DraftContext
from edgespec.drafters.model import Growth, ModelDrafter, Slot
from edgespec.llama.batch import Batch
from edgespec.llama.head_context import HeadContext


class _Features:
    """What the target computed at the positions from `start` on that the head has not read yet, float32[F] each."""

    def __init__(self) -> None:
        self.start, self._rows = 0, np.empty((0, 0), np.float32)

    @property
    def end(self) -> int:
        return self.start + len(self._rows)

    def add(self, start: int, rows: NDArray[np.float32]) -> None:
        """What is there already stays; behind a gap all begins anew."""
        if start > self.end or not len(self._rows):
            self.start, self._rows = start, rows
        elif start + len(rows) > self.end:
            self._rows = np.concatenate([self._rows, rows[self.end - start :]])

    def take(self, start: int, n: int) -> NDArray[np.float32]:
        """float32[n, F] of n positions from `start` on; those before are dropped."""
        self._rows = self._rows[start - self.start :]
        self.start = start
        return self._rows[:n]


class HeadDrafter(ModelDrafter):
    """`context` holds the head, with as many sequences as the target's; see `ModelDrafter` for `width`.

    A text of which the target did not compute the beginning here (a restored cache) is read from where it did.
    """

    context: HeadContext

    def __init__(self, context: HeadContext, width: int = 1, name: str = "eagle3") -> None:
        super().__init__(context, width, name)
        self.needs_layers = context.reads
        self._features = [_Features() for _ in range(context.sequences)]

    def forget(self) -> None:
        super().forget()
        self._features = [_Features() for _ in range(self.context.sequences)]

    def read(self, sequence: DraftContext, start: int, layers: Mapping[int, FloatRow]) -> None:
        rows = np.concatenate([layers[layer] for layer in self.needs_layers], axis=1)
        self._features[sequence.slot].add(start, rows)

    def begin(self, sequence: DraftContext) -> None:
        super().begin(sequence)
        self._features[sequence.slot] = _Features()

    def _text(self, sequence: DraftContext) -> list[int]:
        """The tokens by the cells that they are in."""
        return sequence.tokens[1:]

    def _knows(self, growth: Growth) -> bool:
        """Whether the target has computed what goes with the tokens that the head has not read."""
        slot, features = growth.slot, self._features[growth.slot.number]
        return features.start <= len(slot.held) and features.end >= len(growth.sequence.tokens) - 1

    def _rewind(self, growth: Growth) -> None:
        """Keep the cells that hold what the target computed."""
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
        return self.context.target.is_end(token)  # a head need not know its tokens

    def _add(self, growth: Growth, node: int, row: int) -> None:
        growth.states[node] = self.context.state(row)
        super()._add(growth, node, row)
