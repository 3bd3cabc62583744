"""Drafts: trees of tokens that a drafter predicts, and their budgets. A chain is a tree without branches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from edgespec.core.distribution import Distribution


def always(reaches: Sequence[float], survival: float) -> bool:
    """Return True: every further token is worth a pass."""
    return True


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a draft."""

    #: most tokens
    tokens: int
    #: most leaves; 1 allows a chain only
    leaves: int = 1
    #: returns whether another pass of the drafter pays off, given the path probabilities of the drafted nodes, the
    #: largest first, and the path probability of the node that would get children
    worth: Callable[[Sequence[float], float], bool] = always


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree of n draft tokens, its nodes. Siblings have different tokens."""

    tokens: list[int]
    #: the parent of each node, which comes before it; -1 is the last committed token
    parents: list[int]
    #: the drafter's estimate for each node that the target accepts it, given that its parent was accepted
    confidence: list[float]
    #: the distribution from which each node was sampled, given the siblings before it; None if it was not sampled
    distributions: list[Distribution | None]
    #: the drafter
    source: str = ""
    #: the drafter of each node, if several contributed
    sources: list[str] = field(default_factory=list)

    @classmethod
    def chain(cls, tokens: list[int], confidence: list[float], source: str) -> Draft:
        """Return a draft without branches, of tokens that were not sampled."""
        return cls(tokens, list(range(-1, len(tokens) - 1)), confidence, [None] * len(tokens), source)

    @staticmethod
    def empty() -> Draft:
        return _EMPTY

    def first(self, n: int) -> Draft:
        """Return the draft of the first n nodes."""
        return self._only(range(min(n, len(self))))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_sampled(self) -> bool:
        """True if tokens were sampled. Such tokens must not be dropped by confidence: that would bias the text."""
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
        """Return the child of `node` with this token, or None."""
        for index in range(node + 1, len(self.tokens)):
            if self.parents[index] == node and self.tokens[index] == token:
                return index
        return None

    def depths(self) -> list[int]:
        """Return the number of ancestors of each node: 0 for children of the last committed token."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return depths

    def reaches(self) -> list[float]:
        """Return the path probability of each node: that the target accepts its path, if the confidences are right."""
        reaches: list[float] = []
        for parent, confidence in zip(self.parents, self.confidence, strict=True):
            reaches.append(confidence if parent < 0 else reaches[parent] * confidence)
        return reaches

    def chances(self) -> list[float]:
        """Return the confidences of the best child of the last committed token and of each node."""
        first = {parent: node for node, parent in reversed(list(enumerate(self.parents)))}
        return [self.confidence[node] for node in sorted(first.values())]

    def best(self, n: int) -> Draft:
        """Return the draft of the n nodes with the largest path probability."""
        if n >= len(self):
            return self
        if self.is_chain:
            return self.first(n)
        return self._only(sorted(likeliest(self.parents, self.reaches(), n, len(self))))

    def within(self, leaves: int) -> Draft:
        """Return this draft cut to at most `leaves` leaves, keeping the nodes with the largest path probability."""
        if self.n_leaves <= leaves:
            return self
        return self._only(sorted(likeliest(self.parents, self.reaches(), len(self), leaves)))

    def merged(self, other: Draft) -> Draft:
        """Return one tree of both drafts. A node in both gets the larger confidence and the source of this draft."""
        tokens, parents, confidence, distributions = (
            [*self.tokens],
            [*self.parents],
            [*self.confidence],
            [*self.distributions],
        )
        sources = [self.source_of(node) for node in range(len(self))]
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
        return Draft(tokens, parents, confidence, distributions, self.source, sources).depth_first()

    def depth_first(self) -> Draft:
        """Return the same tree with the descendants of each node directly after it.

        The cells of the first path are then adjacent in the target's KV cache, in the order of plain decoding.
        """
        if self.is_chain:
            return self
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

    def _only(self, kept: Sequence[int]) -> Draft:
        """Return the draft of these nodes, renumbered. Parents must come before their children."""
        place = {node: index for index, node in enumerate(kept)} | {-1: -1}
        return Draft(
            [self.tokens[node] for node in kept],
            [place[self.parents[node]] for node in kept],
            [self.confidence[node] for node in kept],
            [self.distributions[node] for node in kept],
            self.source,
            [self.sources[node] for node in kept] if self.sources else [],
        )

    def leaves(self) -> list[list[int]]:
        """Return for each node the numbers of the leaves at or below it. Leaves are numbered in node order."""
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


_EMPTY = Draft([], [], [], [])


def likeliest(
    parents: Sequence[int], reaches: Sequence[float], n: int, leaves: int, dropped: Collection[int] = ()
) -> list[int]:
    """Return the at most `n` nodes of a tree with the largest path probability, best first, with at most `leaves`
    leaves. The nodes that are `dropped`, and those below them, are left out."""
    kept: dict[int, None] = {}
    with_child: set[int] = set()
    for node in sorted(range(len(parents)), key=reaches.__getitem__, reverse=True):
        parent = parents[node]
        if len(kept) == n:
            break
        if node in dropped or (parent >= 0 and parent not in kept):
            continue
        if parent in with_child:
            if leaves == 1:
                continue
            leaves -= 1
        with_child.add(parent)
        kept[node] = None
    return list(kept)
