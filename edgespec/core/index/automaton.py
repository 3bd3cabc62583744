"""A suffix automaton of a growing text, which finds every substring and the tokens that followed (Blumer et al. 1985).

A state represents the substrings that end at the same places of the text. Its edges are the tokens that followed, and
its link is the state of the longest suffix with more ends. Appending a token takes amortised constant time, and a text
of n tokens has fewer than 2 n states.
"""

from __future__ import annotations

from collections.abc import Iterable

ROOT = 0
COUNTED = 32  # states counted at each token, longest substrings first; a text that repeats one token has n of them


class SuffixAutomaton:
    """The automaton, as lists by state.

    `lengths` has the length of the longest substring, `links` the next shorter state, `edges` the state after each
    token that followed, and `counts` the number of occurrences, which is complete for long substrings only.
    """

    def __init__(self) -> None:
        self.lengths, self.links, self.counts = [0], [-1], [0]
        self.edges: list[dict[int, int]] = [{}]
        self._whole = ROOT  # the state of the whole text

    @property
    def match(self) -> int:
        """The state of the longest suffix of the text that occurred before, or the root."""
        return max(ROOT, self.links[self._whole])

    def extend(self, tokens: Iterable[int]) -> None:
        """Append the next tokens."""
        for token in tokens:
            self._append(token)

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Return state and match length after `token`, for a text of which the last `length` tokens match `state`."""
        while state and length <= self.lengths[self.links[state]]:
            state = self.links[state]  # the state was divided after the match
        while state and token not in self.edges[state]:
            state = self.links[state]
            length = self.lengths[state]
        behind = self.edges[state].get(token)
        return (ROOT, 0) if behind is None else (behind, length + 1)

    def _append(self, token: int) -> None:
        lengths, links, edges, counts = self.lengths, self.links, self.edges, self.counts
        state, whole = self._whole, self._add(lengths[self._whole] + 1, {}, 0)
        while state >= 0 and token not in edges[state]:
            edges[state][token] = whole
            state = links[state]
        if state >= 0:
            behind = edges[state][token]
            if lengths[behind] > lengths[state] + 1:
                behind = self._divide(state, token, behind)
            links[whole] = behind
        else:
            links[whole] = ROOT
        self._whole = counted = whole
        for _ in range(COUNTED):
            if counted == ROOT:
                break
            counts[counted] += 1
            counted = links[counted]

    def _divide(self, state: int, token: int, behind: int) -> int:
        """Split a state, because its shorter substrings now have one more end than the longer ones."""
        lengths, links, edges = self.lengths, self.links, self.edges
        shorter = self._add(lengths[state] + 1, dict(edges[behind]), self.counts[behind])
        links[shorter], links[behind] = links[behind], shorter
        while state >= 0 and edges[state].get(token) == behind:
            edges[state][token] = shorter
            state = links[state]
        return shorter

    def _add(self, length: int, edges: dict[int, int], count: int) -> int:
        self.lengths.append(length)
        self.links.append(ROOT)
        self.edges.append(edges)
        self.counts.append(count)
        return len(self.lengths) - 1
