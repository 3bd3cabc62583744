"""What may come next, from what followed the same tokens before.

A place is where some suffix of the last tokens occurred before, with counts of what followed. The longest match's place
decides; shorter ones only add tokens that it does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Protocol

from edgespec.core.index.automaton import ROOT, SuffixAutomaton

BETWEEN = 2**32 - 1  # a mark for the end of a text: no token
NEGLIGIBLE = 0.02  # what shorter runs can still add
UNSURE = 1.5  # tokens of a run that is followed as before in half of the cases
BROAD = 128  # different tokens behind a run that is too short to say anything


class Place(Protocol):
    """After a match of `length` tokens. `counts` says how often each token came next; `behind` is the place after that
    token, None where it never came."""

    length: int

    def counts(self) -> Mapping[int, int]: ...

    def behind(self, token: int) -> Place | None: ...


class InText:
    """A state of an automaton, which must not grow while this is in use."""

    __slots__ = ("_counts", "automaton", "length", "state")

    def __init__(self, automaton: SuffixAutomaton, state: int, length: int) -> None:
        self.automaton, self.state, self.length = automaton, state, length
        self._counts: dict[int, int] | None = None

    def counts(self) -> Mapping[int, int]:
        if self._counts is None:
            edges, counts = self.automaton.edges[self.state], self.automaton.counts
            known = edges.items() if len(edges) <= BROAD else ()
            self._counts = {token: counts[behind] for token, behind in known if token != BETWEEN}
        return self._counts

    def behind(self, token: int) -> InText | None:
        state = self.automaton.edges[self.state].get(token)
        return None if state is None else InText(self.automaton, state, self.length + 1)

    def and_shorter(self, most: int) -> list[InText]:
        """This place and those of shorter matches, up to `most`."""
        places: list[InText] = []
        automaton, state, length = self.automaton, self.state, self.length
        while state != ROOT and len(places) < most:
            places.append(InText(automaton, state, length))
            state = automaton.links[state]
            length = automaton.lengths[state]
        return places


class Trie:
    """Token sequences by their prefixes, each with its count."""

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
    """How likely a match of that many tokens continues as it did before, with the token that followed in this share of
    cases.

    Measured on real answers (docs/drafters.md): draft tokens after accepted ones are as reliable as the first one of a
    longer match, and a match that continued in several ways says little, however long it is.
    """
    clear = length * share**2
    return clear / (clear + UNSURE)


def likely(places: Iterable[Place], most: int) -> dict[int, float]:
    """The `most` most likely next tokens, best first, each with its probability; the rest of 1 is unknown."""
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
