"""What may come next, from what came behind the same tokens before.

A place is where some run of the last tokens occurred before: it counts what came behind it. The place of the longest
run decides; those of shorter ones only add tokens that it does not know.
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
    """Behind a run of `length` tokens. `counts` says how often which token came next, `behind` is the place there, None
    where it never came."""

    length: int

    def counts(self) -> Mapping[int, int]: ...

    def behind(self, token: int) -> Place | None: ...


class InText:
    """A state of an automaton, which must not grow meanwhile."""

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
        """This place and those of shorter runs, up to `most`."""
        places: list[InText] = []
        automaton, state, length = self.automaton, self.state, self.length
        while state != ROOT and len(places) < most:
            places.append(InText(automaton, state, length))
            state = automaton.links[state]
            length = automaton.lengths[state]
        return places


class Trie:
    """Runs of tokens by how they begin, each with how many of them there are."""

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
    """How likely a run of that many tokens is followed as it was before, by what came there in this share of the cases.

    Measured on real answers (docs/drafters.md): guesses behind right ones are as sure as the first one of a longer run,
    and a run that went on in several ways says little, however long it is.
    """
    clear = length * share**2
    return clear / (clear + UNSURE)


def likely(places: Iterable[Place], most: int) -> dict[int, float]:
    """The `most` likeliest next tokens, best first, each with its probability; what is left of 1 nobody knows."""
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
