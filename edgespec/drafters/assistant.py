"""The assistant of a Gemma 4: a small model whose layers read the target's cache.

It has no cells of its own: nothing has to be read before a draft, and nothing is left of a tree. A draft begins with
the last token and the target's state before it. All its tokens have the position after the target's cells, that of the
last token, as the assistant was trained. If the target is to decode the last tokens of a branch again, their cells are
missing for one draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgespec.core.batch import Batch
from edgespec.core.draft import Draft
from edgespec.core.sampling import FloatRow
from edgespec.drafters.base import Budget, DraftContext
from edgespec.drafters.decoding import HeadDecodingContext
from edgespec.drafters.growing import GrowingDrafter
from edgespec.drafters.tree import ROOT, Tree


@dataclass(slots=True)
class _Growth:
    """A tree that grows, and the state after each of its nodes that was decoded."""

    sequence: DraftContext
    tree: Tree
    states: dict[int, FloatRow] = field(default_factory=dict)


class AssistantDrafter(GrowingDrafter):
    """Drafts a token, or the candidates of several nodes of a tree, in each pass of the assistant.

    `context` reads the target's cache. `width` is the maximum number of a node's candidates, and of nodes that a tree
    adds to a pass.
    """

    name = "assistant"
    assumed_s = None

    def __init__(self, context: HeadDecodingContext, width: int = 1) -> None:
        super().__init__()
        self.context, self.width = context, width
        self.fingerprint, self.needs_layers = context.fingerprint, context.reads
        # The target's state of the last position that it decoded, and the number of positions up to there.
        self._last_state = self._by_slot(lambda: (0, np.empty(0, np.float32)))

    def read(self, sequence: DraftContext, start: int, layers: Mapping[int, FloatRow]) -> None:
        [rows] = layers.values()
        self._last_state[sequence.slot] = start + len(rows), rows[-1].copy()

    def can_draft(self, sequence: DraftContext) -> bool:
        return self._last_state[sequence.slot][0] == len(sequence.tokens) - 1

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        growths = [
            _Growth(sequence, Tree(self._fitting(sequence, budget)))
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        growing = [growth for growth in growths if growth.tree.budget.tokens > 0]
        for growth in growing:
            self._compare(growth.sequence, growth.tree)
        nodes = [(growth, ROOT) for growth in growing]
        while nodes:
            self._decode(nodes)
            nodes = [(growth, node) for growth in growing for node in self._next_nodes(growth.tree)]
            del nodes[self.context.max_outputs :]
        return [growth.tree.draft(self.name) for growth in growths]

    def forget(self) -> None:
        """Start again, because something else used the target's cache."""
        self._last_state.clear()

    def _fitting(self, sequence: DraftContext, budget: Budget) -> Budget:
        """Return the part of a budget that fits: llama.cpp looks for free cells, although it writes none."""
        room = max(0, self.context.n_ctx - len(sequence.tokens)) if self.can_draft(sequence) else 0
        return replace(budget, tokens=min(budget.tokens, room))

    def _next_nodes(self, tree: Tree) -> list[int]:
        """Return the nodes to decode next; none if no other pass is worth its time."""
        frontier = tree.frontier(self.width)
        return frontier if frontier and tree.is_worth(frontier[0]) else []

    def _decode(self, nodes: Sequence[tuple[_Growth, int]]) -> None:
        """Decode nodes in one pass, and add their candidates."""
        batch, states = Batch.empty(), []
        for growth, node in nodes:
            sequence, tree = growth.sequence, growth.tree
            if node == ROOT:
                token, state = sequence.tokens[-1], self._last_state[sequence.slot][1]
            else:
                token, state = tree.tokens[node], growth.states[tree.parents[node]]
            batch.add([token], self.context.length(sequence.slot), (sequence.slot,), wanted=True)
            states.append(state)
        self.passes += 1
        self.context.decode_pairs(batch, np.stack(states))
        for index, (growth, node) in enumerate(nodes):
            growth.states[node] = self.context.state(index)
            for child in self._add_choices(growth.sequence, growth.tree, node, self.context.logits(index)):
                if self.context.target.is_end(growth.tree.tokens[child]):
                    growth.tree.close(child)
