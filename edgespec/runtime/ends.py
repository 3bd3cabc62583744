"""The minimum length of an answer, tokens that end it, and words that it must not contain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import UsageError
from edgespec.llama.model import Model
from edgespec.settings import CONSTRAINTS, Request, shown

MOST_BAD_WORDS, MOST_CHARACTERS = 256, 256  # in a request, and in each of them


class Ends:
    """The constraint of `min_tokens` and `bad_words`. It depends on the tokens of an answer alone, so that drafts do
    not change the text.

    A bad word is a sequence of tokens, and its last token is not allowed after the others (as in vLLM). An answer can
    still spell the word with other tokens.
    """

    def __init__(self, start: int, n_vocab: int, least: int, ends: Iterable[int], banned: Iterable[list[int]]) -> None:
        """`start` is the length of the prompt; no token in `ends` is allowed in the first `least` tokens."""
        self._start, self._n_vocab, self._least = start, n_vocab, least
        self._ends = np.array([*ends], np.intp)
        self._banned = [*banned]

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_]:
        """Return bool[V], True for each id that may follow `tokens` (prompt and answer)."""
        allowed = np.ones(self._n_vocab, np.bool_)
        answer = tokens[self._start :]
        if len(answer) < self._least:
            allowed[self._ends] = False
        for *before, last in self._banned:
            if not before or [*answer[-len(before) :]] == before:
                allowed[last] = False
        return allowed

    def forced(self, tokens: Sequence[int]) -> list[int]:
        return []


def ends_of(request: Request, model: Model, start: int) -> Ends | None:
    """Return the constraint for `min_tokens` and `bad_words` of a request, if any. Raises UsageError."""
    _check(request, model.n_vocab)
    if not (request.min_tokens or request.bad_words):
        return None
    ends = (*model.end_tokens, *request.stop_token_ids)
    spelled = [tuple(model.tokenize(text)) for word in request.bad_words for text in (word, f" {word}")]
    return Ends(start, model.n_vocab, request.min_tokens, ends, [[*ids] for ids in dict.fromkeys(spelled)])


def _check(request: Request, n_vocab: int) -> None:
    least, most = request.min_tokens, request.max_tokens
    if not isinstance(least, int) or isinstance(least, bool) or least < 0:
        raise UsageError(f"min_tokens must be an integer of 0 or more, not {shown(least)}")
    if 0 <= most < least:
        raise UsageError(f"min_tokens must be at most max_tokens ({most}), not {least}")
    for token in request.stop_token_ids:
        if not isinstance(token, int) or not 0 <= token < n_vocab:
            raise UsageError(f"stop_token_ids must be from 0 to {n_vocab - 1}, not {shown(token)}")
    words = request.bad_words
    if len(words) > MOST_BAD_WORDS or not all(isinstance(word, str) and word.strip() for word in words):
        raise UsageError(f"bad_words must be at most {MOST_BAD_WORDS} texts that are not blank")
    if any(len(word) > MOST_CHARACTERS for word in words):
        raise UsageError(f"bad_words must have at most {MOST_CHARACTERS} characters each")
    asked = [name for name in ("min_tokens", "stop_token_ids", "bad_words") if getattr(request, name)]
    others = [name for name in (*CONSTRAINTS, "reference") if getattr(request, name)]
    if asked and others:
        raise UsageError(f"{asked[0]} and {others[0]} cannot be combined", why=f"{others[0]} determines the answer")
    if least and request.stop:
        raise UsageError("min_tokens and stop cannot be combined", why="a stop string may come before min_tokens")
