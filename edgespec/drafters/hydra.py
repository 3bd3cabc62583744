"""A Hydra head (arXiv 2402.05109): one small network per draft token, which reads the tokens before it.

From the target's final state h after token P, network k predicts token P + k + 2:
`output (h + down_k silu(up_k [h; e(P + 1); ..; e(P + k + 1)]))`, where e are the normed embeddings of the target. The
head has no cache and works with almost every architecture; numpy computes it in float32. The networks know the text
through h only, so the tokens that the target found likely earlier (`Successors`) are mixed into the draft.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.core.candidates import draft_candidates
from edgespec.core.draft import Budget, Draft
from edgespec.core.features import FINAL_STATE
from edgespec.core.sampling import FloatRow
from edgespec.drafters.base import DraftContext, Drafter, Outcome
from edgespec.drafters.estimates import Estimates
from edgespec.drafters.successors import Successors
from edgespec.drafters.tree import ROOT, Tree

ONE_THREAD = 9000  # numbers of a matrix: from 9,216 on OpenBLAS uses threads
LARGE = 2**24  # numbers of a matrix from which several threads pay off


@dataclass(frozen=True, slots=True)
class Network:
    """`up` float32[D, (k + 2) D] (of Medusa [D, D]) and `down` float32[D, D] of each network, `output` float32[V', D]
    whose rows stand for the tokens `ids` int64[V'], and the embeddings' `norm` float32[D] with its `epsilon`."""

    up: list[FloatRow]
    down: list[FloatRow]
    output: FloatRow
    ids: NDArray[np.int64]
    norm: FloatRow
    epsilon: float

    def predicted(self, k: int, state: FloatRow, inputs: FloatRow) -> FloatRow:
        """The logits float32[V'] of network k."""
        inner = product(self.up[k], inputs)
        inner /= 1 + np.exp(-inner)
        return product(self.output, state + product(self.down[k], inner))


def product(matrix: FloatRow, x: FloatRow) -> FloatRow:
    """Return float32[M, D] times float32[D], computed in pieces that are so small that numpy uses this thread only.

    The threads of numpy's BLAS would compete for the cores with those of llama.cpp, which spin for a while after each
    pass. Large matrices are worth them.
    """
    rows, width = matrix.shape
    piece = ONE_THREAD // width
    if not piece or matrix.size > LARGE:
        whole: FloatRow = matrix @ x
        return whole
    end = rows - rows % piece
    return np.concatenate([(matrix[:end].reshape(-1, piece, width) @ x).ravel(), matrix[end:] @ x])


@dataclass(slots=True)
class _Slot:
    """The target's state after its token `at`, and the last draft: its tree, which starts after `n_tokens` tokens."""

    state: FloatRow | None = None
    at: int = -1
    tree: Tree | None = None
    n_tokens: int = 0
    n_learnt: int = 0


class HydraDrafter(Drafter):
    """Drafts with a Hydra head. `embedding(token)` is the target's float32[D] of a token, `width` the maximum of a
    node's candidates, `fingerprint` identifies the file."""

    name = "hydra"
    needs_layers = (FINAL_STATE,)
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
        self.network, self.embedding, self.width, self.fingerprint = network, embedding, width, fingerprint
        self._row: FloatRow = np.full(n_vocab, -np.inf, np.float32)
        self._successors = successors
        self._slots: dict[int, _Slot] = {}
        self._estimates = Estimates()

    def begin(self, sequence: DraftContext) -> None:
        self._slots[sequence.slot] = _Slot()

    def end(self, sequence: DraftContext) -> None:
        self._slots.pop(sequence.slot, None)

    def state(self) -> dict[str, Any]:
        return self._estimates.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._estimates.restore(state)

    def read(self, sequence: DraftContext, start: int, layers: Mapping[int, FloatRow]) -> None:
        rows, slot = layers[FINAL_STATE], self._slots[sequence.slot]
        slot.state, slot.at = rows[-1].copy(), start + len(rows) - 1

    def observe(self, outcome: Outcome) -> None:
        self._successors.learn(outcome)

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._draft(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _draft(self, sequence: DraftContext, budget: Budget) -> Draft:
        slot = self._slots[sequence.slot]
        if slot.tree is not None:
            slot.n_learnt = self._estimates.learn(slot.tree, sequence, slot.n_tokens, slot.n_learnt)
        slot.tree = None
        if slot.state is None or slot.at != len(sequence.tokens) - 2 or budget.tokens < 1:
            return Draft.empty()
        slot.tree, slot.n_tokens = Tree(budget), len(sequence.tokens)
        self._hang(sequence, slot.tree, ROOT, slot.state)
        while (best := slot.tree.frontier(1)) and slot.tree.is_worth(best[0]):
            self._hang(sequence, slot.tree, best[0], slot.state)
        return slot.tree.draft(self.name)

    def _hang(self, sequence: DraftContext, tree: Tree, node: int, state: FloatRow) -> None:
        """Add the candidates after a node; none after the tokens of the last network."""
        self.passes += 1
        path = [] if node == ROOT else tree.path(node)
        candidates = draft_candidates(
            sequence.sampler,
            self._logits(sequence, state, [sequence.tokens[-1], *path]),
            sequence.tokens + path if sequence.sampler.reads_prefix else [],
            len(sequence.tokens) + len(path),
            min(self.width, tree.budget.leaves),
            (sequence.round << 20) + node + 1 if sequence.draws else None,
        )
        for child in self._estimates.hang(tree, node, sequence, candidates):
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
