"""Constraints of an answer: grammars, JSON schemas and regular expressions, as masks over a model's tokens.

A matcher of llguidance has a state; here it follows any prefix it is asked about.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.llamacpp import lltokenizer_from_vocab
from numpy.typing import NDArray

from edgespec.core.prefix import common_prefix
from edgespec.errors import UsageError
from edgespec.llama.constraint import compiled, readable
from edgespec.llama.model import Model
from edgespec.settings import CONSTRAINTS, Constraint

REMEMBERED = 64  # compiled ones
LIMITS = LLParserLimits(verbose_errors=False)


class Grammars:
    """Compiles constraints for a model's vocabulary. The first one takes a second if the vocabulary is large."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._tokenizer: LLTokenizer | None = None
        self._compiled = lru_cache(REMEMBERED)(self._compile)

    def check(self, kind: Constraint, text: str) -> None:
        """Raises UsageError, saying what is wrong in the text."""
        self._compiled(kind, text)

    def constraint(self, kind: Constraint, text: str, start: int) -> GrammarConstraint:
        """A constraint for the tokens of a sequence from `start` on. Raises UsageError."""
        return GrammarConstraint(self._compiled(kind, text).deep_copy(), kind, start, self._model.n_vocab)

    def _compile(self, kind: Constraint, text: str) -> LLMatcher:
        matcher = LLMatcher(self._llguidance, compiled(kind, text), log_level=0, limits=LIMITS)
        trial = matcher.deep_copy()  # some that nothing matches fail only at the first token
        if not trial.is_error():
            trial.compute_bitmask()
        if not trial.is_error():
            trial.compute_ff_tokens()
        if trial.is_error():
            raise UsageError(f"cannot use this {CONSTRAINTS[kind]}", why=readable(trial.get_error()))
        return matcher

    @property
    def _llguidance(self) -> LLTokenizer:
        if self._tokenizer is None:
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # one a token, in llama_cpp
                self._tokenizer = lltokenizer_from_vocab(
                    self._model.vocabulary_handle, eos_token=list(self._model.end_tokens)
                )
        return self._tokenizer


class GrammarConstraint:
    """Which tokens may follow a prefix, for `core.choose`. Raises UsageError where the grammar becomes too much work,
    or a dead end."""

    def __init__(self, matcher: LLMatcher, kind: Constraint, start: int, n_vocab: int) -> None:
        self._matcher, self._kind, self._start, self._n_vocab = matcher, kind, start, n_vocab
        self._read: list[int] = []

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_]:
        """bool[V]: which ids may follow `tokens`, prompt and answer; at the end of the grammar, end tokens. All after a
        prefix that does not match: its distribution is never sampled, but block verification reads it."""
        if not self._go_to(tokens):
            return np.ones(self._n_vocab, np.bool_)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(bits, count=self._n_vocab, bitorder="little").view(np.bool_)

    def forced(self, tokens: Sequence[int]) -> list[int]:
        """The tokens that must follow `tokens`, in the vocabulary's usual spelling; empty where there is a choice."""
        return self._matcher.compute_ff_tokens() if self._go_to(tokens) else []

    def _go_to(self, tokens: Sequence[int]) -> bool:
        """Advance the matcher to the end of these tokens; whether they match."""
        answer = list(tokens[self._start :])
        agreed = common_prefix(self._read, answer)
        if agreed < len(self._read):
            self._matcher.rollback(len(self._read) - agreed)
        n_read = agreed + self._matcher.try_consume_tokens(answer[agreed:])
        self._read = answer[:n_read]
        self._check()
        return n_read == len(answer)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise UsageError(f"this {CONSTRAINTS[self._kind]} failed", why=readable(self._matcher.get_error()))
