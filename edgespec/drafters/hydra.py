"""A Hydra head (arXiv 2402.05109): one small network per draft token, which reads the tokens before it.

From the target's final state h after token P, network k predicts token P + k + 2:
`output (h + down_k silu(up_k [h; e(P + 1); ..; e(P + k + 1)]))`, where e are the normed embeddings of the target. The
head has no cache and works with almost every architecture. The networks know the text through h only, so the tokens
that the target found likely earlier (`Successors`) are mixed into the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.core.draft import Budget, Draft
from edgespec.core.features import FINAL_STATE
from edgespec.core.sampling import FloatRow
from edgespec.drafters.base import DraftContext, Outcome
from edgespec.drafters.growing import GrowingDrafter
from edgespec.drafters.successors import Successors
from edgespec.drafters.tree import ROOT, Tree

Product = Callable[[FloatRow], FloatRow]
"""Multiplies a matrix with a vector (`llama/graph.py`)."""


@dataclass(frozen=True, slots=True)
class Network:
    """Products with the matrices `up` [D, (k + 2) D] (of Medusa [D, D]) and `down` [D, D] of each network, and with
    `output` [V', D], whose rows are those of the tokens `ids` int64[V']; the embeddings' `norm` float32[D] with its
    `epsilon`."""

    up: list[Product]
    down: list[Product]
    output: Product
    ids: NDArray[np.int64]
    norm: FloatRow
    epsilon: float

    def predicted(self, k: int, state: FloatRow, inputs: FloatRow) -> FloatRow:
        """The logits float32[V'] of network k."""
        inner = self.up[k](inputs)
        inner /= 1 + np.exp(-inner)
        return self.output(state + self.down[k](inner))


class HydraDrafter(GrowingDrafter):
    """Drafts with a Hydra head. `embedding(token)` is the target's float32[D] of a token, `width` the maximum of a
    node's candidates, `fingerprint` identifies the file."""

    name = "hydra"
    needs_layers = (FINAL_STATE,)
    follows_images = False
    needs_logits = True
    assumed_s = None

    def __init__(
        self,
        network: Network,
        embedding: Callable[[int], FloatRow],
        successors: Successors,
        n_vocab: int,
        width: int = 1,
        fingerprint: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__()
        self.network, self.embedding, self.width, self.fingerprint = network, embedding, width, fingerprint
        self._row: FloatRow = np.full(n_vocab, -np.inf, np.float32)
        self._successors = successors
        # The position of the last token that the target has decoded, and the target's state there.
        self._states: dict[int, tuple[int, FloatRow]] = self._by_slot(lambda: (-1, np.empty(0, np.float32)))

    def read(self, sequence: DraftContext, start: int, layers: Mapping[int, FloatRow]) -> None:
        rows = layers[FINAL_STATE]
        self._states[sequence.slot] = start + len(rows) - 1, rows[-1].copy()

    def observe(self, outcome: Outcome) -> None:
        self._successors.learn(outcome)

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._draft(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _draft(self, sequence: DraftContext, budget: Budget) -> Draft:
        tree, (at, state) = Tree(budget), self._states[sequence.slot]
        self._compare(sequence, tree)
        if 0 <= at == len(sequence.tokens) - 2 and budget.tokens > 0:
            self._expand(sequence, tree, ROOT, state)
            while (best := tree.frontier(1)) and tree.is_worth(best[0]):
                self._expand(sequence, tree, best[0], state)
        return tree.draft(self.name)

    def _expand(self, sequence: DraftContext, tree: Tree, node: int, state: FloatRow) -> None:
        """Add the candidates after a node; none after the tokens of the last network."""
        self.passes += 1
        path = tree.path(node)
        row = self._logits(sequence, state, [sequence.tokens[-1], *path])
        for child in self._add_choices(sequence, tree, node, row):
            if len(path) + 1 == len(self.network.up):
                tree.close(child)

    def _logits(self, sequence: DraftContext, state: FloatRow, tokens: Sequence[int]) -> FloatRow:
        """Return float32[V] for the token after `tokens`, -inf for tokens that cannot be drafted; valid until the next
        call."""
        drafted, row = self._predicted(state, tokens), self._row
        row.fill(-np.inf)
        row[self.network.ids] = drafted
        if sequence.is_draft_invariant:
            self._successors.blend(row, tokens[-1], drafted)
        return row

    def _predicted(self, state: FloatRow, tokens: Sequence[int]) -> FloatRow:
        """Return the logits float32[V'] of the network that reads `tokens`."""
        embedded = np.stack([self.embedding(token) for token in tokens])
        scale = np.sqrt((embedded**2).mean(axis=1, keepdims=True) + self.network.epsilon)
        inputs = np.concatenate([state, (embedded / scale * self.network.norm).ravel()])
        return self.network.predicted(len(tokens) - 1, state, inputs)


class MedusaDrafter(HydraDrafter):
    """Drafts with a Medusa head (arXiv 2401.10774): none of its networks reads the drafted tokens.

    From the target's final state h after token P, network k predicts token P + k + 2: `output (h + down_k silu(up_k
    h))`. So each network runs once per draft, however wide the tree is. `up` are float32[D, D], and there is no norm.
    """

    name = "medusa"
    _state: FloatRow | None = None  # the state of the last call
    _rows: dict[int, FloatRow]

    def _predicted(self, state: FloatRow, tokens: Sequence[int]) -> FloatRow:
        if state is not self._state:
            self._state, self._rows = state, {}
        k = len(tokens) - 1
        if k not in self._rows:
            self._rows[k] = self.network.predicted(k, state, state)
        return self._rows[k]
