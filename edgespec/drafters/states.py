"""The base of the drafters with heads that read the target's hidden states."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from edgespec.core.features import MOST_UNREAD
from edgespec.core.prefix import common_prefix
from edgespec.core.sampling import FloatRow
from edgespec.drafters.base import DraftContext, Outcome
from edgespec.drafters.decoding import StatesContext
from edgespec.drafters.model import Growth, ModelDrafter
from edgespec.drafters.successors import Successors


class Features:
    """The states of the target that a head has not read yet: float32[F] for each position from `start` to `end`.

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
        self.drop(start)
        return self.rows(start, n)

    def rows(self, start: int, n: int) -> NDArray[np.float32]:
        """Return float32[n, F] of n positions from `start` on."""
        return np.stack([*islice(self._rows, start - self.start, start - self.start + n)])

    def drop(self, end: int) -> None:
        """Drop the positions before `end`."""
        for _ in range(end - self.start):
            self._rows.popleft()
            self.start += 1


class StatesDrafter(ModelDrafter):
    """Drafts with a head. `context` holds it, with as many sequences as the target's; see `ModelDrafter` for `width`.

    With `successors`, the tokens that the target found likely after the same token are mixed into the draft. If the
    target's states of the beginning of a text are missing (a copied prompt) or were dropped, the head reads the rest
    only.
    """

    context: StatesContext
    follows_images = False

    def __init__(self, context: StatesContext, width: int, name: str, successors: Successors | None) -> None:
        super().__init__(context, width, name)
        self._successors, self.needs_logits = successors, successors is not None
        self.needs_layers = context.reads
        self._features = self._no_features()

    def _no_features(self) -> list[Features]:
        n = self.context.sequences
        return [Features(MOST_UNREAD // n) for _ in range(n)]

    def forget(self) -> None:
        super().forget()
        self._features = self._no_features()

    def read(self, sequence: DraftContext, start: int, layers: Mapping[int, FloatRow]) -> None:
        self._features[sequence.slot].add(start, np.concatenate([layers[layer] for layer in self.needs_layers], axis=1))

    def observe(self, outcome: Outcome) -> None:
        if self._successors is not None:
            self._successors.learn(outcome)

    def begin(self, sequence: DraftContext) -> None:
        super().begin(sequence)
        self._features[sequence.slot].begin(sequence.tokens)

    def can_draft(self, sequence: DraftContext) -> bool:
        return len(sequence.tokens) > 1  # there is no cell yet

    def n_unread(self, sequence: DraftContext) -> int:
        n_known = max(0, len(self._text(sequence)) - 1 - self._features[sequence.slot].start)
        return min(super().n_unread(sequence), n_known)

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

    def _is_end(self, token: int) -> bool:
        return self.context.target.is_end(token)  # a head's file may have no tokenizer

    def _blend(self, growth: Growth, row: FloatRow, last: int) -> FloatRow:
        """Mix the likely successors of the token before into a row of logits, in place."""
        if self._successors is not None and growth.sequence.is_draft_invariant:
            self._successors.blend(row, last)
        return row
