"""The constraint of requests that rule out some ends and some words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.llama.model import LlamaModel
from edgespec.settings import Request


class Ends:
    """The constraint of `min_tokens` and `bad_words`. It depends on the tokens of an answer alone, so that drafts do
    not change the text.

    A bad word is a sequence of tokens, and its last token is not allowed after the others (as in vLLM). An answer can
    still spell the word with other tokens.
    """

    is_narrow = False

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


def ends_of(request: Request, model: LlamaModel, start: int) -> Ends | None:
    """Return the constraint for `min_tokens` and `bad_words` of a request, if any."""
    if not (request.min_tokens or request.bad_words):
        return None
    ends = (*model.end_tokens, *request.stop_token_ids)
    spelled = [tuple(model.tokenize(text)) for word in request.bad_words for text in (word, f" {word}")]
    return Ends(start, model.n_vocab, request.min_tokens, ends, [[*ids] for ids in dict.fromkeys(spelled)])
