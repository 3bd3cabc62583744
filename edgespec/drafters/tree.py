"""A draft tree that grows best-first: always at the node that is most likely to be accepted.

A node's reach is its path probability, the product of the confidences on its path. The best draft of n tokens is the n
nodes of largest reach: with calibrated confidences, no other tree of this size has more accepted tokens on average
(Sequoia, 2402.12374; EAGLE-2, 2406.16858). So a confident draft becomes a chain, an uncertain one a wide tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.core.candidates import DraftCandidate
from edgespec.core.distribution import Distribution
from edgespec.core.draft import Draft, likeliest
from edgespec.drafters.base import Budget

ROOT = -1


class Tree:
    """Grows by `add`, starting with the candidates after the last committed token (`ROOT`).

    Nodes are kept by confidence alone, and of siblings always the first ones: so no sampled token is left out because
    of its value, which would bias the output.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.raw: list[float] = []
        self._confidence: list[float] = []
        self._distributions: list[Distribution | None] = []
        self._reach: list[float] = []
        self._closed: set[int] = set()
        self._dropped: set[int] = set()
        self._kept: list[int] | None = None
        self._is_chain = True

    def add(self, parent: int, candidates: Sequence[DraftCandidate], raw: Sequence[float] = ()) -> range:
        """Add candidates for the token after `parent`, best first; returns the new nodes. `raw` are their uncalibrated
        confidences."""
        self.raw += raw or [candidate.confidence for candidate in candidates]
        self._is_chain = self._is_chain and len(candidates) < 2 and parent == len(self.tokens) - 1
        reach = self.reach(parent)
        for candidate in candidates:
            self.tokens.append(candidate.token)
            self.parents.append(parent)
            self._confidence.append(candidate.confidence)
            self._distributions.append(candidate.distribution)
            self._reach.append(reach * candidate.confidence)
        self._closed.add(parent)
        self._kept = None
        return range(len(self.tokens) - len(candidates), len(self.tokens))

    def reach(self, node: int) -> float:
        """Return the path probability of `node`."""
        return 1.0 if node == ROOT else self._reach[node]

    def go_on(self, budget: Budget) -> None:
        """Continue to grow within another budget."""
        self.budget, self._kept = budget, None

    def close(self, node: int) -> None:
        """Let `node` have no children."""
        self._closed.add(node)

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == node]

    def path(self, node: int) -> list[int]:
        """Return the tokens from the first draft token to `node`."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def frontier(self, n: int) -> list[int]:
        """Return the n best nodes whose children are not known yet but may belong to the draft."""
        if self._is_chain:  # the usual case; only the last node can be open
            last = len(self.tokens) - 1
            return [last] if 0 <= last < self.budget.tokens - 1 and last not in self._closed else []
        kept = self.kept()
        self._dropped |= self._closed.difference(kept, [ROOT])
        return [node for node in kept[: self.budget.tokens - 1] if node not in self._closed][:n]

    def is_worth(self, node: int) -> bool:
        """Return whether the draft-length policy considers `node` worth expanding, given the path probabilities of all
        nodes."""
        return self.budget.worth([self._reach[kept] for kept in self.kept()], self._reach[node])

    def draft(self, source: str) -> Draft:
        """Return the best draft within the budget, its most likely path first."""
        kept = self.kept()
        place = {node: index for index, node in enumerate(kept)} | {ROOT: ROOT}
        return Draft(
            [self.tokens[node] for node in kept],
            [place[self.parents[node]] for node in kept],
            [self._confidence[node] for node in kept],
            [self._distributions[node] for node in kept],
            source,
        ).depth_first()

    def kept(self) -> list[int]:
        """Return the nodes of largest path probability within the budget, best first. Expanded nodes that dropped out
        are gone."""
        if self._is_chain:
            return list(range(min(len(self.tokens), self.budget.tokens)))
        if self._kept is None:
            self._kept = likeliest(self.parents, self._reach, self.budget.tokens, self.budget.leaves, self._dropped)
        return self._kept
