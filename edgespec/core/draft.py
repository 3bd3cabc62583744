"""A draft: the tokens a drafter guesses to come next, as a tree, and how many it may have. A chain is a tree without
branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edgespec.core.distribution import Distribution


def always(reaches: Sequence[float], survival: float) -> bool:
    """Every further token is worth a pass."""
    return True


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens a draft may have, and how many of them may be leaves: 1 asks for a chain.

    `worth` says whether another pass of the drafter pays, given the probabilities that the target gets to the nodes
    drafted so far, the largest first, and that of the node that new ones would hang below.
    """

    tokens: int
    leaves: int = 1
    worth: Callable[[Sequence[float], float], bool] = always


@dataclass(frozen=True, slots=True)
class Draft:
    """n draft tokens. `parents[i] < i`; -1 is a child of the last committed token. Siblings have different tokens.

    `confidence[i]` is the drafter's estimate that the node is accepted given that its parent was. `distributions[i]` is
    what the token was sampled from, given the siblings before it; None if it was not sampled. `source` is the drafter;
    if several contributed, `sources` are those of the nodes. `recalled`, if it is not empty, says of each node
    whether it was copied from an earlier answer.
    """

    tokens: list[int]
    parents: list[int]
    confidence: list[float]
    distributions: list[Distribution | None]
    source: str = ""
    sources: list[str] = field(default_factory=list)
    recalled: list[bool] = field(default_factory=list)

    @classmethod
    def chain(cls, tokens: list[int], confidence: list[float], source: str) -> Draft:
        """Each token is the child of the one before it; none was sampled."""
        return cls(tokens, list(range(-1, len(tokens) - 1)), confidence, [None] * len(tokens), source)

    @classmethod
    def empty(cls) -> Draft:
        return cls.chain([], [], "")

    def first(self, n: int) -> Draft:
        """Its first n nodes."""
        return self._only(range(min(n, len(self))))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_sampled(self) -> bool:
        """Whether it must not be left out for what it is."""
        return any(distribution is not None for distribution in self.distributions)

    @property
    def is_chain(self) -> bool:
        return all(parent == index - 1 for index, parent in enumerate(self.parents))

    @property
    def n_leaves(self) -> int:
        return len(self.tokens) - len(set(self.parents) - {-1})

    def children(self, node: int) -> list[int]:
        return [index for index in range(node + 1, len(self.parents)) if self.parents[index] == node]

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` with this token, or None."""
        return next((index for index in self.children(node) if self.tokens[index] == token), None)

    def depths(self) -> list[int]:
        """Each node's number of ancestors; 0 for children of the last committed token."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    def reaches(self) -> list[float]:
        """Each node's path probability: that the target accepts its whole path, if the confidences are right."""
        reaches: list[float] = []
        for parent, confidence in zip(self.parents, self.confidence, strict=True):
            reaches.append(confidence if parent < 0 else reaches[parent] * confidence)
        return reaches

    def chances(self) -> list[float]:
        """The confidences of the best child of the last committed token, and of the best child of each node."""
        first = {parent: node for node, parent in reversed(list(enumerate(self.parents)))}
        return [self.confidence[node] for node in sorted(first.values())]

    def best(self, n: int) -> Draft:
        """The n nodes with the largest path probability, in their order; a parent's is at least its child's."""
        if n >= len(self):
            return self
        if self.is_chain:
            return self.first(n)
        reaches = self.reaches()
        return self._only(sorted(sorted(range(len(self)), key=lambda node: -reaches[node])[:n]))

    def within(self, leaves: int) -> Draft:
        """This draft with at most so many leaves; if some must go, nodes with a large path probability stay."""
        if self.n_leaves <= leaves:
            return self
        reaches, kept, with_child = self.reaches(), set[int](), set[int]()
        for node in sorted(range(len(self)), key=lambda node: -reaches[node]):
            parent = self.parents[node]
            if parent >= 0 and parent not in kept:
                continue
            if parent in with_child:
                if leaves == 1:
                    continue
                leaves -= 1
            with_child.add(parent)
            kept.add(node)
        return self._only(sorted(kept))

    def merged(self, other: Draft) -> Draft:
        """One tree of both. A node that both have gets the larger confidence and counts as this draft's."""
        tokens, parents, confidence, distributions = (
            [*self.tokens],
            [*self.parents],
            [*self.confidence],
            [*self.distributions],
        )
        sources = [self.source_of(node) for node in range(len(self))]
        recalled = [self.is_recalled(node) for node in range(len(self))]
        known = {(parent, token): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
        place = {-1: -1}
        for node, token in enumerate(other.tokens):
            parent = place[other.parents[node]]
            same = known.get((parent, token))
            if same is not None:
                place[node] = same
                confidence[same] = max(confidence[same], other.confidence[node])
                continue
            place[node] = known[parent, token] = len(tokens)
            tokens.append(token)
            parents.append(parent)
            confidence.append(other.confidence[node])
            distributions.append(other.distributions[node])
            sources.append(other.source_of(node))
            recalled.append(other.is_recalled(node))
        merged = Draft(tokens, parents, confidence, distributions, self.source, sources=sources, recalled=recalled)
        return merged.depth_first()

    def depth_first(self) -> Draft:
        """The same tree, with what hangs below a node right behind it: the cells of the first path then lie side by
        side in the target's cache, as they would without a draft."""
        children: dict[int, list[int]] = {}
        for node in reversed(range(len(self))):
            children.setdefault(self.parents[node], []).append(node)
        order, pending = list[int](), children.get(-1, [])
        while pending:
            order.append(node := pending.pop())
            pending += children.get(node, [])
        return self._only(order)

    def source_of(self, node: int) -> str:
        return self.sources[node] if self.sources else self.source

    def is_recalled(self, node: int) -> bool:
        return bool(self.recalled) and self.recalled[node]

    def _only(self, kept: Sequence[int]) -> Draft:
        """The subtree of these nodes, parents before children, which are renumbered."""
        place = {node: index for index, node in enumerate(kept)} | {-1: -1}
        return Draft(
            [self.tokens[node] for node in kept],
            [place[self.parents[node]] for node in kept],
            [self.confidence[node] for node in kept],
            [self.distributions[node] for node in kept],
            self.source,
            sources=[self.sources[node] for node in kept] if self.sources else [],
            recalled=[self.recalled[node] for node in kept] if self.recalled else [],
        )

    def leaves(self) -> list[list[int]]:
        """For each node the numbers of the leaves at or below it; leaves are numbered in node order."""
        below: list[list[int]] = [[] for _ in self.parents]
        inner = set(self.parents)
        leaf = 0
        for node in range(len(self.parents)):
            if node in inner:
                continue
            ancestor = node
            while ancestor >= 0:
                below[ancestor].append(leaf)
                ancestor = self.parents[ancestor]
            leaf += 1
        return below
