"""Predict the next token from the tokens that followed the same text before.

A place represents the earlier occurrences of some of the last tokens, with counts of the tokens that followed. The
place of the longest match decides; places of shorter matches only add other tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Protocol

from edgespec.core.index.automaton import ROOT, SuffixAutomaton

BETWEEN = 2**32 - 1  # a mark for the end of a text, not a token
NEGLIGIBLE = 0.02  # remaining probability below which shorter matches are ignored
UNSURE = 1.5  # length of a match that continues as before in half of the cases
BROAD = 128  # a match followed by more different tokens is too short to predict anything


class Place(Protocol):
    """The earlier occurrences of the last `length` tokens of a text."""

    length: int

    def counts(self) -> Mapping[int, int]:
        """Return how often each token came next."""

    def behind(self, token: int) -> Place | None:
        """Return the place after one more token, or None if the token never came next."""


class InText:
    """A place in an automaton, which must not grow while the place is in use."""

    __slots__ = ("_counts", "automaton", "length", "state")

    def __init__(self, automaton: SuffixAutomaton, state: int, length: int) -> None:
        self.automaton, self.state, self.length = automaton, state, length
        self._counts: dict[int, int] | None = None

    def counts(self) -> Mapping[int, int]:
        if self._counts is None:
            edges, counts = self.automaton.edges[self.state], self.automaton.counts
            known = edges.items() if len(edges) <= BROAD else ()
            self._counts = {token: counts[behind] for token, behind in known if 0 <= token != BETWEEN}
        return self._counts

    def behind(self, token: int) -> InText | None:
        state = self.automaton.edges[self.state].get(token)
        return None if state is None else InText(self.automaton, state, self.length + 1)

    def and_shorter(self, most: int) -> list[InText]:
        """Return this place and the places of shorter matches, up to `most`."""
        places: list[InText] = []
        automaton, state, length = self.automaton, self.state, self.length
        while state != ROOT and len(places) < most:
            places.append(InText(automaton, state, length))
            state = automaton.links[state]
            length = automaton.lengths[state]
        return places


class Trie:
    """A place in a tree of token sequences, with the count of each prefix."""

    __slots__ = ("_children", "_counts", "length")

    def __init__(self, length: int, runs: Iterable[Sequence[int]] = ()) -> None:
        self.length = length
        self._counts: dict[int, int] = {}
        self._children: dict[int, Trie] = {}
        for run in runs:
            node = self
            for token in run:
                node._counts[token] = node._counts.get(token, 0) + 1
                child = node._children.get(token)
                if child is None:
                    child = node._children[token] = Trie(node.length + 1)
                node = child

    def counts(self) -> Mapping[int, int]:
        return self._counts

    def behind(self, token: int) -> Trie | None:
        return self._children.get(token)


def reliability(length: float, share: float = 1.0) -> float:
    """Return the probability that a match continues as before, with a token that followed in this share of cases.

    Measured on real answers (docs/measurements.md). Draft tokens after accepted ones are as reliable as the
    first draft token after a longer match. A match that continued in several ways predicts little, however long it is.
    """
    clear = length * share**2
    return clear / (clear + UNSURE)


def likely(places: Iterable[Place], most: int) -> dict[int, float]:
    """Return the `most` most likely next tokens, best first, with their probabilities, which add up to at most 1."""
    rest, found = 1.0, dict[int, float]()
    for place in sorted(places, key=lambda place: -place.length):
        counts = place.counts()
        if not counts:
            continue
        total = sum(counts.values())
        for token, count in counts.items():
            if token not in found:
                found[token] = rest * count / total * reliability(place.length, count / total)
        rest *= 1 - reliability(place.length)
        if rest < NEGLIGIBLE:
            break
    return dict(sorted(found.items(), key=itemgetter(1), reverse=True)[:most])
