"""Prompt lookup: what the text said the last time it came by here (Saxena 2023; Yang et al., 2304.04487).

The longest run of tokens at the end of prompt and answer that occurred before, of several the most recent, is looked up
and what followed it is guessed again: as many tokens as the match is long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edgespec.core.draft import Draft
from edgespec.core.index.continuation import reliability
from edgespec.core.policy.calibration import Calibrations
from edgespec.drafters.base import Budget, DraftContext, Drafter

GRAM = 3
CANDIDATES = 64
LONGEST = 64


@dataclass(slots=True)
class _Slot:
    """The index of a sequence, and the last guess: behind how many tokens, which ones, by a match of what length. What
    became of guesses of the first `n_learnt` tokens is learnt already."""

    index: Index = field(default_factory=lambda: Index())
    n_tokens: int = 0
    guessed: list[int] = field(default_factory=list)
    length: int = 0
    n_learnt: int = 0


class LookupDrafter(Drafter):
    """Needs no model. Guesses are not drawn from a distribution."""

    name = "lookup"

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._calibrations = Calibrations()

    def begin(self, sequence: DraftContext) -> None:
        self._slots[sequence.slot] = _Slot()

    def end(self, sequence: DraftContext) -> None:
        self._slots.pop(sequence.slot, None)

    def propose(self, sequences: Sequence[DraftContext], budgets: Sequence[Budget]) -> list[Draft]:
        self.passes += 1
        return [self._draft(sequence, budget.tokens) for sequence, budget in zip(sequences, budgets, strict=True)]

    def state(self) -> dict[str, Any]:
        return self._calibrations.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._calibrations.restore(state)

    def _draft(self, sequence: DraftContext, n_max: int) -> Draft:
        slot = self._slots[sequence.slot]
        self._learn(slot, sequence)
        index = slot.index
        index.extend(sequence.tokens)
        end, length = index.longest_match()
        guessed: list[int] = []
        n = len(sequence.tokens)
        for at in range(end, end + min(length, n_max)):
            # What follows a match that reaches up to the end is the guess itself: the text repeats.
            guessed.append(sequence.tokens[at] if at < n else guessed[at - n])
        slot.n_tokens, slot.guessed, slot.length = n, guessed, length
        return Draft.chain(guessed, [self._confidence(sequence, length, at) for at in range(len(guessed))], self.name)

    def _learn(self, slot: _Slot, sequence: DraftContext) -> None:
        """See what the text says where the last guess was."""
        if sequence.is_draft_invariant:
            for at, (guess, token) in enumerate(zip(slot.guessed, sequence.tokens[slot.n_tokens :], strict=False)):
                if slot.n_tokens + at >= slot.n_learnt:
                    self._calibrations[_sort(sequence, at)].observe(reliability(slot.length), guess == token)
                    slot.n_learnt = slot.n_tokens + at + 1
                if guess != token:
                    break
        slot.guessed = []

    def _confidence(self, sequence: DraftContext, length: int, at: int) -> float:
        raw = reliability(length)
        return self._calibrations[_sort(sequence, at)].probability(raw) if sequence.is_draft_invariant else raw


def _sort(sequence: DraftContext, at: int) -> str:
    """Noise makes guesses less sure; one that follows a right guess is surer."""
    noise = "greedy" if sequence.sampler.settings.temperature == 0 else "noise"
    return f"{noise}, {'first' if at == 0 else 'later'}"


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
