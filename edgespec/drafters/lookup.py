"""Prompt lookup: what followed the same tokens last time (Saxena 2023; Yang et al., 2304.04487).

The longest suffix of prompt and answer that occurred before, the most recent of several, is looked up, and what
followed it is drafted: as many tokens as the match is long.
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
    """The index of a sequence, and the last draft: after how many tokens, its tokens, and the length of the match.
    Draft tokens for the first `n_learnt` tokens have been compared with the text."""

    index: Index = field(default_factory=lambda: Index())
    n_tokens: int = 0
    drafted: list[int] = field(default_factory=list)
    length: int = 0
    n_learnt: int = 0


class LookupDrafter(Drafter):
    """Needs no model. Draft tokens are not sampled from a distribution."""

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
        drafted: list[int] = []
        n = len(sequence.tokens)
        for at in range(end, end + min(length, n_max)):
            # A match that reaches the end is followed by the draft itself: the text repeats.
            drafted.append(sequence.tokens[at] if at < n else drafted[at - n])
        slot.n_tokens, slot.drafted, slot.length = n, drafted, length
        return Draft.chain(drafted, [self._confidence(sequence, length, at) for at in range(len(drafted))], self.name)

    def _learn(self, slot: _Slot, sequence: DraftContext) -> None:
        """Compare the last draft with the text."""
        if sequence.is_draft_invariant:
            text = sequence.tokens[slot.n_tokens :]
            for at, (draft_token, token) in enumerate(zip(slot.drafted, text, strict=False)):
                if slot.n_tokens + at >= slot.n_learnt:
                    self._calibrations[_sort(sequence, at)].observe(reliability(slot.length), draft_token == token)
                    slot.n_learnt = slot.n_tokens + at + 1
                if draft_token != token:
                    break
        slot.drafted = []

    def _confidence(self, sequence: DraftContext, length: int, at: int) -> float:
        raw = reliability(length)
        return self._calibrations[_sort(sequence, at)].probability(raw) if sequence.is_draft_invariant else raw


def _sort(sequence: DraftContext, at: int) -> str:
    """Noise lowers acceptance; a token after an accepted one is more likely to be accepted."""
    noise = "greedy" if sequence.sampler.settings.temperature == 0 else "noise"
    return f"{noise}, {'first' if at == 0 else 'later'}"


class Index:
    """Where each run of `GRAM` tokens, and each shorter one, occurred last. Takes constant time per token.

    Runs of `GRAM` are chained to their previous occurrence, as in LZ77; longer matches are found along the chain.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._last: dict[tuple[int, ...], int] = {}
        self._before: dict[int, int] = {}
        self._n_indexed = 0

    def extend(self, tokens: list[int]) -> None:
        """Index what is new of `tokens`, which is append-only."""
        self._tokens = tokens
        # A run that ends at the last token has no continuation yet: that run is what is searched for.
        for end in range(self._n_indexed + 1, len(tokens)):
            for n in range(1, min(GRAM, end) + 1):
                run = tuple(tokens[end - n : end])
                if n == GRAM and run in self._last:
                    self._before[end] = self._last[run]
                self._last[run] = end
            self._n_indexed = end

    def longest_match(self) -> tuple[int, int]:
        """The end of the longest earlier occurrence of the last tokens, and its length (0: there is none).

        Compares the `CANDIDATES` most recent ones that have at least `GRAM` tokens in common.
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
