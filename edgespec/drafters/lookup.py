"""Prompt lookup: what the text said the last time it came by here (Saxena 2023; Yang et al., 2304.04487).

The longest run of tokens at the end of prompt and answer that occurred before, of several the most recent, is looked up
and what followed it is guessed again: as many tokens as the match is long.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.core.draft import Draft
from edgespec.drafters.base import Budget, Guessable

GRAM = 3
CANDIDATES = 64
LONGEST = 64


class LookupDrafter:
    """Needs no model. Matches of fewer than `shortest` tokens count for nothing. Guesses are not drawn from a law."""

    name = "lookup"

    def __init__(self, shortest: int = 1) -> None:
        self.shortest = shortest
        self._indexes: dict[int, tuple[Guessable, Index]] = {}

    def propose(self, sequences: Sequence[Guessable], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._guess(sequence, budget.tokens) for sequence, budget in zip(sequences, budgets, strict=True)]

    def _guess(self, sequence: Guessable, n_max: int) -> Draft:
        known = self._indexes.get(sequence.slot)
        if known is None or known[0] is not sequence:
            known = self._indexes[sequence.slot] = sequence, Index()
        index = known[1]
        index.extend(sequence.tokens)
        end, length = index.longest_match()
        if length < self.shortest:
            return Draft.empty()
        guessed: list[int] = []
        n = len(sequence.tokens)
        for at in range(end, end + min(length, n_max)):
            # What follows a match that reaches up to the end is the guess itself: the text repeats.
            guessed.append(sequence.tokens[at] if at < n else guessed[at - n])
        # The longer the match, the surer what follows it; 1/2 for a match of one token.
        return Draft.chain(guessed, [length / (length + 1)] * len(guessed), self.name)


class Index:
    """Where each run of `GRAM` tokens, and each shorter one, occurred last. Takes constant time a token.

    Runs of `GRAM` are chained to their occurrence before, as in LZ77; longer matches are found along the chain.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}
        self._before: dict[int, int] = {}
        self._n_indexed = 0

    def extend(self, tokens: list[int]) -> None:
        """Take in what is new of `tokens`, to which only more may have been added."""
        self._tokens = tokens
        # The last token is what is searched for: a run that ends there has no continuation yet.
        for end in range(self._n_indexed + 1, len(tokens)):
            for n in range(1, min(GRAM, end) + 1):
                run = tuple(tokens[end - n : end])
                if n == GRAM and run in self._last:
                    self._before[end] = self._last[run]
                self._last[run] = end
            self._n_indexed = end

    def longest_match(self) -> tuple[int, int]:
        """Where the longest earlier occurrence of the end of the tokens ends, and how long it is (0: there is none).

        Looks at the `CANDIDATES` most recent ones that have at least `GRAM` tokens in common.
        """
        tokens, n = self._tokens, len(self._tokens)
        best, longest = self._last.get(tuple(tokens[-GRAM:]), 0) if n > GRAM else 0, 0
        end = best
        for _ in range(CANDIDATES):
            if not end:
                break
            length = GRAM
            while length < min(end, LONGEST) and tokens[end - 1 - length] == tokens[n - 1 - length]:
                length += 1
            if length > longest:
                best, longest = end, length
            if longest == LONGEST:
                break
            end = self._before.get(end, 0)
        for shorter in range(GRAM - 1, 0, -1):
            if not longest and n > shorter and tuple(tokens[-shorter:]) in self._last:
                best, longest = self._last[tuple(tokens[-shorter:])], shorter
        return best, longest
