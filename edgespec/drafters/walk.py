"""Drafters without a model: they walk from token to token through what they know, and a tree grows on the way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from edgespec.core.candidates import weighed
from edgespec.core.draft import Draft
from edgespec.core.index import continuation
from edgespec.drafters.base import Budget, DraftContext, Drafter
from edgespec.drafters.estimates import Estimates
from edgespec.drafters.tree import ROOT, Tree

PRIOR = 16.0  # what confidences fitted to real texts weigh, in drafts
UNLIKELY = 0.05  # reach of nodes behind which nothing is guessed

Place = TypeVar("Place")


@dataclass(slots=True)
class _Grown:
    """The last tree of a sequence, behind `n_tokens` tokens. What became of guesses of the first `n_learnt` tokens is
    learnt already."""

    tree: Tree
    n_tokens: int
    n_learnt: int = 0


class WalkingDrafter(Drafter, Generic[Place]):
    """Guesses are not drawn from a distribution."""

    def __init__(self) -> None:
        self._grown: dict[int, _Grown] = {}
        self._estimates = Estimates(PRIOR)

    @abstractmethod
    def start(self, sequence: DraftContext) -> Place:
        """Where the walk begins: behind the last token."""

    @abstractmethod
    def distribution(self, place: Place, sequence: DraftContext, most: int) -> Mapping[int, float]:
        """At most so many tokens that may come next, with probabilities of up to 1 in all."""

    @abstractmethod
    def step(self, place: Place, token: int) -> Place:
        """The place behind one of these tokens."""

    def state(self) -> dict[str, Any]:
        return self._estimates.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._estimates.restore(state)

    def begin(self, sequence: DraftContext) -> None:
        self._grown.pop(sequence.slot, None)

    def end(self, sequence: DraftContext) -> None:
        self._grown.pop(sequence.slot, None)

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        self.passes += 1
        return [self._draft(sequence, budget) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _draft(self, sequence: DraftContext, budget: Budget) -> Draft:
        last, tree = self._grown.get(sequence.slot), Tree(budget)
        grown = self._grown[sequence.slot] = _Grown(tree, len(sequence.tokens))
        if last is not None:
            grown.n_learnt = self._estimates.learn(last.tree, sequence, last.n_tokens, last.n_learnt)
        leaves = budget.leaves
        # For each node where the walk has come to, and which position of the sequence is guessed there.
        places = {ROOT: (self.start(sequence), len(sequence.tokens))}
        frontier = [ROOT] if sequence.tokens else []
        while frontier:
            [node] = frontier
            place, position = places.pop(node)
            distribution = self.distribution(place, sequence, leaves + 1) if tree.reach(node) >= UNLIKELY else {}
            guesses = weighed(sequence.sampler, distribution, position, leaves)
            for child, guess in zip(self._estimates.hang(tree, node, sequence, guesses), guesses, strict=True):
                places[child] = self.step(place, guess.token), position + 1
            frontier = tree.frontier(1)
        return tree.draft(self.name)


class ContinuingDrafter(WalkingDrafter[list[continuation.Place]]):
    """Goes on as texts did where the same tokens came before: it starts at some places at once, and follows all."""

    def distribution(self, place: list[continuation.Place], sequence: DraftContext, most: int) -> Mapping[int, float]:
        return continuation.likely(place, most)

    def step(self, place: list[continuation.Place], token: int) -> list[continuation.Place]:
        return [there for one in place if (there := one.behind(token)) is not None]
