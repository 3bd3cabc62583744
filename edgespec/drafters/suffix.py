"""Suffix drafting: drafts the tokens that followed the same last tokens in the prompt, the answer or earlier answers.

A suffix automaton over the sequence finds the longest such match at every token (Hu et al., SAM Decoding, arXiv
2411.10666). Continuations are weighted by frequency, and the most likely ones become a chain or a tree (Oliaro et al.,
SuffixDecoding, arXiv 2411.04975).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edgespec.core.index.automaton import ROOT, SuffixAutomaton
from edgespec.core.index.continuation import InText, Place
from edgespec.drafters.base import DraftContext
from edgespec.drafters.walk import ContinuingDrafter

PLACES = 4  # matches of different lengths that are followed


class Answers(Protocol):
    """Earlier answers: those of this process in an automaton, which may be restarted, and saved ones."""

    recent: SuffixAutomaton

    def places(self, text: Sequence[int]) -> Iterable[Place]:
        """Return the places where saved answers have the last tokens of `text`."""


@dataclass(slots=True)
class _Cursor:
    """The position of a text in an automaton over other texts: the state of its last `length` tokens."""

    automaton: SuffixAutomaton
    state: int = ROOT
    length: int = 0

    def read(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.state, self.length = self.automaton.step(self.state, self.length, token)

    def places(self) -> list[InText]:
        return InText(self.automaton, self.state, self.length).and_shorter(PLACES)


@dataclass(slots=True)
class _Text:
    """The first `n_tokens` tokens of a sequence: their automaton, and their position in other answers."""

    automaton: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    others: _Cursor | None = None
    n_tokens: int = 0


class SuffixDrafter(ContinuingDrafter):
    """Drafts from the sequence itself and from `answers`."""

    def __init__(self, answers: Answers | None = None, name: str = "suffix") -> None:
        super().__init__()
        self.answers, self.name = answers, name
        self._texts = self._by_slot(_Text)

    def n_unread(self, sequence: DraftContext) -> int:
        return max(0, len(sequence.tokens) - 1 - self._texts[sequence.slot].n_tokens)

    def start(self, sequence: DraftContext) -> list[Place]:
        text = self._texts[sequence.slot]
        tokens, automaton, answers = sequence.tokens, text.automaton, self.answers
        new = tokens[text.n_tokens :]
        automaton.extend(new)
        text.n_tokens = len(tokens)
        again = InText(automaton, automaton.match, automaton.lengths[automaton.match])
        places: list[Place] = [*again.and_shorter(PLACES)]
        if answers is not None and sequence.is_draft_invariant:
            if text.others is None or text.others.automaton is not answers.recent:
                text.others, new = _Cursor(answers.recent), tokens
            text.others.read(new)
            places += [*text.others.places(), *answers.places(tokens)]
        return places
