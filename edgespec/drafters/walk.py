"""Drafters without a model: they step through an index from token to token and grow a tree on the way.

Two of them need nothing else: one drafts from a corpus, the other one what a grammar forces.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from edgespec.core.candidates import weighed
from edgespec.core.draft import Draft
from edgespec.core.index import continuation
from edgespec.core.index.context_index import ContextIndex
from edgespec.drafters.base import Budget, DraftContext
from edgespec.drafters.growing import GrowingDrafter
from edgespec.drafters.tree import ROOT, Tree

PRIOR = 16.0  # weight of the confidences fitted to real texts, in drafts
FORCED = 0.95  # confidence of forced tokens: not 1, since the target may spell the same text with other tokens

Place = TypeVar("Place")


class WalkingDrafter(GrowingDrafter, Generic[Place]):
    """Drafts tokens that are not sampled from a distribution. Nodes with a path probability below `unlikely` are not
    expanded."""

    unlikely = 0.05

    def __init__(self) -> None:
        super().__init__(PRIOR)

    @abstractmethod
    def start(self, sequence: DraftContext) -> Place:
        """Return the place in the index after the last token."""

    @abstractmethod
    def distribution(self, place: Place, sequence: DraftContext, most: int) -> Mapping[int, float]:
        """Return at most `most` possible next tokens, with probabilities that sum to at most 1."""

    @abstractmethod
    def step(self, place: Place, token: int) -> Place:
        """Return the place after one of these tokens."""

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        self.passes += 1
        return [self._draft(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _draft(self, sequence: DraftContext, budget: Budget) -> Draft:
        tree, leaves = Tree(budget), budget.leaves
        self._compare(sequence, tree)
        # For each node: its place in the index, and the position of its children in the sequence.
        places = {ROOT: (self.start(sequence), len(sequence.tokens))}
        frontier = [ROOT] if sequence.tokens else []
        while frontier:
            [node] = frontier
            place, position = places.pop(node)
            distribution = self.distribution(place, sequence, leaves + 1) if tree.reach(node) >= self.unlikely else {}
            candidates = weighed(sequence.sampler, distribution, position, leaves)
            children = self._add_candidates(sequence, tree, node, candidates)
            for child, candidate in zip(children, candidates, strict=True):
                places[child] = self.step(place, candidate.token), position + 1
            frontier = tree.frontier(1)
        return tree.draft(self.name)


class ContinuingDrafter(WalkingDrafter[list[continuation.Place]]):
    """Continues as texts did after the same tokens, following several places of the index at once."""

    def distribution(self, place: list[continuation.Place], sequence: DraftContext, most: int) -> Mapping[int, float]:
        return continuation.likely(place, most)

    def step(self, place: list[continuation.Place], token: int) -> list[continuation.Place]:
        return [there for one in place if (there := one.behind(token)) is not None]


class CorpusDrafter(ContinuingDrafter):
    """Drafts the tokens that followed the same last tokens in the user's texts (REST, arXiv 2311.08252)."""

    name = "corpus"

    def __init__(self, index: ContextIndex) -> None:
        super().__init__()
        self.index = index

    def start(self, sequence: DraftContext) -> list[continuation.Place]:
        return list(self.index.places(sequence.tokens))


class GrammarDrafter(WalkingDrafter[list[int]]):
    """Drafts the tokens that the grammar of an answer forces, such as keys and braces of a JSON object."""

    name = "grammar"

    def can_draft(self, sequence: DraftContext) -> bool:
        return sequence.sampler.constraint is not None

    def start(self, sequence: DraftContext) -> list[int]:
        constraint = sequence.sampler.constraint
        return constraint.forced(sequence.tokens) if constraint is not None else []

    def distribution(self, place: list[int], sequence: DraftContext, most: int) -> Mapping[int, float]:
        return {place[0]: FORCED} if place else {}

    def step(self, place: list[int], token: int) -> list[int]:
        return place[1:]
