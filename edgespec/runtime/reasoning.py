"""The limit of reasoning: after so many tokens, an answer continues with the mark that ends its reasoning."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.core.sampler import Constraint
from edgespec.text.thinking import CLOSE, OPEN

END = f"\n{CLOSE}\n\n"  # as models write it
_OPEN, _CLOSE = OPEN.encode(), CLOSE.encode()


class ReasoningBudget:
    """Allows `most` tokens of reasoning at the beginning of an answer, and then only the tokens `end`.

    What is allowed depends on the tokens alone, so that drafts do not change the text. The answer begins at position
    `start` of a sequence, inside of reasoning if `is_open`. A character or a mark that the last token leaves unfinished
    may be completed. Other tokens are subject to `inner`, if there is such a constraint.
    """

    is_narrow = False

    def __init__(
        self,
        most: int,
        end: list[int],
        start: int,
        n_vocab: int,
        token_bytes: Callable[[int], bytes],
        inner: Constraint | None,
        *,
        is_open: bool,
    ) -> None:
        self._most, self._end, self._start, self._n_vocab = most, end, start, n_vocab
        self._bytes, self._inner, self._is_open = token_bytes, inner, is_open
        # The beginning of the answer that decides whether the reasoning is too long, and the place where it is ended.
        self._decided: tuple[list[int], int | None] | None = None

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_] | None:
        """Return bool[V], True for each id that may follow `tokens` (prompt and answer); None: all of them."""
        rest = self._rest(tokens)
        if not rest:
            return self._inner.allowed(tokens) if self._inner is not None else None
        allowed = np.zeros(self._n_vocab, np.bool_)
        allowed[rest[0]] = True
        return allowed

    def forced(self, tokens: Sequence[int]) -> list[int]:
        return self._rest(tokens) or (self._inner.forced(tokens) if self._inner is not None else [])

    def _rest(self, tokens: Sequence[int]) -> list[int]:
        """Return what is left of the end of the reasoning, or nothing if the answer is not within this end."""
        n_answer = len(tokens) - self._start
        if n_answer < self._most:  # the usual case, and a quick one
            return []
        answer = [*tokens[self._start :]]
        if self._decided is None or answer[: len(self._decided[0])] != self._decided[0]:
            self._decided = self._decision(answer)
        place = self._decided[1] if self._decided is not None else None
        return self._end[n_answer - place :] if place is not None else []

    def _decision(self, answer: list[int]) -> tuple[list[int], int | None] | None:
        """Return the beginning of an answer that decides whether its reasoning is too long, and the place where it is
        ended, if any; None if nothing is decided yet."""
        begun, text = 0 if self._is_open else None, b""
        for place in range(len(answer) + 1):
            if begun is not None and self._is_over(place - begun, text):
                return answer[:place], place
            if place == len(answer):
                return None
            text += self._bytes(answer[place])
            if begun is None:
                said = text.lstrip()
                begun = place + 1 if said.startswith(_OPEN) else None
                if begun is None and not _OPEN.startswith(said):
                    return answer[: place + 1], None
            elif _CLOSE in text:
                return answer[: place + 1], None
            text = text if begun is None else text[-len(CLOSE) :]
        return None

    def _is_over(self, n_tokens: int, text: bytes) -> bool:
        """Return whether to end the reasoning after `n_tokens`, of which `text` is the end."""
        if n_tokens < self._most:
            return False
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(text)
        is_whole = not decoder.getstate()[0] and not any(text.endswith(_CLOSE[:n]) for n in range(1, len(_CLOSE)))
        return is_whole or n_tokens >= self._most + len(_CLOSE)
