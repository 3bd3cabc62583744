"""A draft model: a small model with the same vocabulary drafts a chain or a tree.

Each token is decoded once: the KV cache keeps the accepted path and removes the others. Branches of a tree share the
cells of their common path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from edgespec.core.batch import Batch
from edgespec.core.draft import Draft
from edgespec.core.images import has_images
from edgespec.core.prefix import common_prefix
from edgespec.core.sampling import FloatRow
from edgespec.drafters.base import Budget, DraftContext
from edgespec.drafters.decoding import DecodingContext
from edgespec.drafters.growing import GrowingDrafter
from edgespec.drafters.translation import Translation
from edgespec.drafters.tree import ROOT, Tree


@dataclass(slots=True)
class DraftSlot:
    """A slot's part of the draft's cache.

    `held` is a prefix of the sequence's tokens; `paths` are the paths drafted last after it, by the sequence id that
    holds their cells (one of them is the slot's own id). `shared` is how many of the first tokens of a new sequence are
    held, `read` the sequence in the vocabulary of a draft that has another one.
    """

    number: int
    held: list[int] = field(default_factory=list)
    paths: dict[int, list[int]] = field(default_factory=dict)
    grown: Growth | None = None
    shared: int | None = None
    read: _Read = field(default_factory=lambda: _Read())

    def hold(self, text: list[int]) -> None:
        """Count a longer text as held: its cells are at the beginning of the slot's own path."""
        self.paths[self.number] = self.paths[self.number][len(text) - len(self.held) :]
        self.held = [*text]

    def mark(self) -> SlotMark:
        """Return the state of this slot for `rewind`."""
        return SlotMark(len(self.held), self.read.n, len(self.read.tokens), self.grown)

    def rewind(self, mark: SlotMark) -> None:
        """Go back to the state at a mark. Tokens that were added to the text since then stay in the cache, as the
        beginning of the path that was drafted last."""
        added = self.held[mark.n_held :]
        self.paths = {self.number: added + self.paths[self.number]}
        self.grown = mark.grown
        self.read.n = mark.n_read
        del self.held[mark.n_held :], self.read.tokens[mark.n_read_tokens :]

    @property
    def branches(self) -> list[int]:
        return [id for id in self.paths if id != self.number]

    def end_of(self, id: int) -> int:
        """The next position of a path."""
        return len(self.held) + len(self.paths[id])


@dataclass(frozen=True, slots=True)
class SlotMark:
    """The lengths of a slot's lists, and its last tree."""

    n_held: int
    n_read: int
    n_read_tokens: int
    grown: Growth | None


@dataclass(slots=True)
class _Read:
    """The first `n` tokens of a sequence as the draft reads them: in its vocabulary, and without images."""

    n: int = 0
    has_images: bool = False
    tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Growth:
    """A tree that grows; `ids` is the sequence id that holds each decoded node's path."""

    sequence: DraftContext
    slot: DraftSlot
    tree: Tree
    ids: dict[int, int] = field(default_factory=dict)
    states: dict[int, NDArray[np.float32]] = field(default_factory=dict)  # of a draft head: the state of each node


class ModelDrafter(GrowingDrafter):
    """Drafts with the model of `context`, which has as many sequences as the target's.

    `width` is the maximum number of a node's candidates, and of nodes of a tree decoded at a time; trees need a branch
    for each of their leaves. Drafts are in the target's ids, the cache is in the draft's own: `translation` converts.
    """

    assumed_s = None

    def __init__(
        self, context: DecodingContext, width: int = 1, name: str = "draft", translation: Translation | None = None
    ) -> None:
        super().__init__()
        self.context, self.width, self.name, self.translation = context, width, name, translation
        self.fingerprint = context.fingerprint
        self._slots = [DraftSlot(number) for number in range(context.sequences)]

    def begin(self, sequence: DraftContext) -> None:
        super().begin(sequence)
        slot = self._slots[sequence.slot]
        slot.grown, slot.shared, slot.read = None, None, _Read(has_images=has_images(sequence.tokens))

    def n_unread(self, sequence: DraftContext) -> int:
        slot, text = self._slots[sequence.slot], self._text(sequence)
        if slot.grown is not None:  # its draft may be accepted
            return max(0, len(text) - 1 - max(map(slot.end_of, slot.paths)))
        if slot.shared is None:
            slot.shared = common_prefix(slot.held, text[:-1])
        return len(text) - 1 - slot.shared

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        growths = [
            self._growth(sequence, self._fitting(sequence, budget))
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        growing = [growth for growth in growths if growth.tree.budget.tokens > 0]
        asked = {growth.slot.number for growth in growing}
        for slot in self._slots:
            if slot.branches and slot.number not in asked:  # others may need its cells
                self._drop_paths(slot)
        for growth in growing:
            self._compare(growth.sequence, growth.tree)
        self._draft(growing)
        return [growth.tree.draft(self.name) for growth in growths]

    def forget(self) -> None:
        """Start again with an empty cache, because something else used it."""
        for slot in self._slots:
            self.context.release(slot.branches)
            self.context.forget(slot.number)
        self._slots = [DraftSlot(number) for number in range(self.context.sequences)]

    def _growth(self, sequence: DraftContext, budget: Budget) -> Growth:
        return Growth(sequence, self._slots[sequence.slot], Tree(budget))

    def _draft(self, growing: list[Growth]) -> None:
        """Grow trees up to their budgets, from the text before them; trees that have nodes already continue to grow."""
        try:
            for growth in growing:
                if growth.tree.tokens:
                    growth.slot.grown = growth
                else:
                    self._rewind(growth)
            self._catch_up([growth for growth in growing if not growth.tree.tokens and self._knows(growth)])
            while self._grow(growing):
                pass
        except BaseException:  # an interrupted decode leaves unknown cells: keep only the accepted tokens
            for growth in growing:
                self._drop_paths(growth.slot)
            raise

    def _fitting(self, sequence: DraftContext, budget: Budget) -> Budget:
        """Return the part of a budget that fits into the draft's own context."""
        room = max(0, self.context.n_ctx - len(self._text(sequence)))
        return replace(budget, tokens=min(budget.tokens, room))

    def _knows(self, growth: Growth) -> bool:
        """Return whether the draft has all tokens of the sequence: one vocabulary may be padded less than the other."""
        return max(self._text(growth.sequence)[len(growth.slot.held) :], default=2**31) < self.context.model.n_vocab

    # --- the vocabulary -------------------------------------------------------------------------------------------

    def _text(self, sequence: DraftContext) -> list[int]:
        """Return the text of a sequence in the draft's own tokens."""
        read = self._slots[sequence.slot].read
        if self.translation is None and not read.has_images:
            return sequence.tokens
        for token in sequence.tokens[read.n :]:
            if token >= 0:
                read.tokens += [token] if self.translation is None else self.translation.tokens(token)
        read.n = len(sequence.tokens)
        return read.tokens

    def _own(self, token: int) -> int:
        return token if self.translation is None else self.translation.own(token)

    def _is_end(self, token: int) -> bool:
        return self.context.model.is_end(self._own(token))

    def _row(self, growth: Growth, node: int, index: int) -> FloatRow:
        """Return the draft's logits in the target's ids after a node, which is in the batch at `index`."""
        row = self.context.logits(index)
        return row if self.translation is None else self.translation.row(row)

    # --- the cache ------------------------------------------------------------------------------------------------

    def _rewind(self, growth: Growth) -> None:
        """Keep the cells that the sequence still has in common with the cache; its last token is always left to
        decode."""
        slot, text, last = growth.slot, self._text(growth.sequence), growth.slot.grown
        went_on = last is not None and len(slot.held) < len(text)
        agreed = self._follow(slot, text) if went_on else self._restart(slot, text)
        self.context.release(slot.branches)
        slot.held[len(slot.held) :] = text[len(slot.held) : agreed]
        del slot.held[agreed:]
        slot.paths, slot.grown = {slot.number: []}, growth

    def _restart(self, slot: DraftSlot, text: list[int]) -> int:
        """Cut the slot's cells to the prefix in common with another sequence, or with the same one after a failed step;
        returns its length."""
        decoded = slot.held + slot.paths.get(slot.number, [])
        agreed = common_prefix(decoded, text[:-1])
        if agreed < len(decoded):
            self.context.truncate(slot.number, agreed)
        return agreed

    def _follow(self, slot: DraftSlot, text: list[int]) -> int:
        """Move the drafted path that the sequence took into the slot; returns the number of tokens there."""
        became, n_held = text[len(slot.held) : -1], len(slot.held)
        agreed = {id: common_prefix(path, became) for id, path in slot.paths.items()}
        best, own = max(agreed, key=agreed.__getitem__), slot.number
        if agreed[best] > agreed[own]:
            self.context.adopt(own, best, n_held + agreed[own], n_held + agreed[best])
        elif agreed[own] < len(slot.paths[own]):
            self.context.truncate(own, n_held + agreed[own])
        return n_held + agreed[best]

    def _drop_paths(self, slot: DraftSlot) -> None:
        self.context.release(slot.branches)
        slot.paths = {slot.number: []}
        self.context.truncate(slot.number, len(slot.held))

    # --- growing --------------------------------------------------------------------------------------------------

    def _catch_up(self, growing: list[Growth]) -> None:
        """Decode the uncached tokens of the sequences, and add the candidates after their last tokens."""
        pending = [(growth.slot, self._text(growth.sequence)[len(growth.slot.held) :]) for growth in growing]
        # Long parts (prompts) are decoded first and alone; what remains of all sequences shares one batch.
        for slot, tokens in pending:
            while len(tokens) > max(1, self.context.n_batch // len(pending)):
                chunk = tokens[: min(self.context.n_batch, len(tokens) - 1)]
                self._decode_committed([(slot, chunk)], wanted=False)
                del tokens[: len(chunk)]
        if growing:
            self.passes += 1
            rows = self._decode_committed(pending, wanted=True)
            for growth, row in zip(growing, rows, strict=True):
                self._add(growth, ROOT, row)

    def _decode_committed(self, parts: list[tuple[DraftSlot, list[int]]], *, wanted: bool) -> list[int]:
        """Add tokens to the slots; returns the batch index of each slot's last token."""
        batch, last = Batch.empty(), []
        for slot, tokens in parts:
            batch.add(tokens, len(slot.held), (slot.number,), wanted=wanted)
            last.append(batch.size - 1)
        self.context.decode(*batch)
        for slot, tokens in parts:
            slot.held += tokens
        return last

    def _grow(self, growing: list[Growth]) -> bool:
        """Decode the most likely nodes of all trees in one batch and add their candidates; returns False if none is
        left."""
        batch = Batch.empty()
        decoded: list[tuple[Growth, int, int]] = []
        for growth in growing:
            frontier = growth.tree.frontier(self.width)
            if not frontier or not growth.tree.is_worth(frontier[0]):
                continue
            if self.width > 1:
                self._prune(growth)
            for node in frontier[: min(self.context.max_outputs, self.context.n_batch) - batch.size]:
                id = self._place(growth, node)
                token = self._own(growth.tree.tokens[node])
                batch.add([token], growth.slot.end_of(id), (id,), wanted=True)
                growth.slot.paths[id].append(token)
                growth.ids[node] = id
                decoded.append((growth, node, batch.size - 1))
        if not decoded:
            return False
        self.passes += 1
        self._decode_drafted(batch, decoded)
        for growth, node, row in decoded:
            self._add(growth, node, row)
        return True

    def _decode_drafted(self, batch: Batch, nodes: list[tuple[Growth, int, int]]) -> None:
        """Decode nodes of trees; each has its index in the batch."""
        self.context.decode(*batch)

    def _prune(self, growth: Growth) -> None:
        """Remove nodes that have left the tree from the cache, so that branches never run out."""
        slot, needed = growth.slot, dict.fromkeys(growth.slot.paths, 0)
        for node in growth.tree.kept():
            if node in growth.ids:
                id = growth.ids[node]
                needed[id] = max(needed[id], len(growth.tree.path(node)))
        for id, length in needed.items():
            if not length and id != slot.number:
                self.context.release([id])
                del slot.paths[id]
            elif length < len(slot.paths[id]):
                self.context.truncate(id, len(slot.held) + length)
                del slot.paths[id][length:]

    def _place(self, growth: Growth, node: int) -> int:
        """Return the sequence id for the cells of `node`: its parent's, or a new branch if a sibling uses that."""
        slot, parent = growth.slot, growth.tree.parents[node]
        path = [self._own(token) for token in growth.tree.path(parent)]
        id = slot.number if parent == ROOT else growth.ids[parent]
        if slot.paths[id] == path:
            return id
        branch = self.context.fork(id, len(slot.held) + len(path))
        slot.paths[branch] = path
        return branch

    def _add(self, growth: Growth, node: int, row: int) -> None:
        self._add_children(growth, node, self._row(growth, node, row))

    def _add_children(self, growth: Growth, node: int, row: FloatRow, estimate: float | None = None) -> None:
        tree = growth.tree
        for child in self._add_choices(growth.sequence, tree, node, row, estimate):
            if self._is_end(tree.tokens[child]):
                tree.close(child)
