"""The constraint of answers that may call tools: a call that has begun has the form of a call, and fits its schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.core.prefix import common_prefix
from edgespec.core.sampler import Constraint
from edgespec.dialects.starts import CallStarts
from edgespec.llama.grammar import GrammarConstraint

WINDOW = 256  # tokens that hold the beginning of a call


@dataclass(slots=True)
class _Begun:
    """A call whose beginning ends at `place`; it is over after `end` tokens of the answer."""

    place: int
    constraint: GrammarConstraint
    end: int | None = None


class BegunCalls:
    """A constraint of the calls in an answer. What is allowed depends on the tokens alone, so that drafts do not change
    the text.

    Args:
        starts: Finds the beginnings of calls.
        start: The position in the sequence where the answer begins.
        opened: The text before the answer that is a part of its first message.
        token_bytes: Returns the bytes of a token, with those of marks.
        begun: Returns the constraint of a call, given its beginning and the position after it; None if the beginning
            is not that of a call.
        follow: The tokens of the marks one of which follows a call; none: anything may follow.
        ends: The tokens that end an answer, if it must end after its first call.
        inner: The constraint of all other tokens.
    """

    is_narrow = False

    def __init__(
        self,
        starts: CallStarts,
        start: int,
        opened: str,
        n_vocab: int,
        token_bytes: Callable[[int], bytes],
        begun: Callable[[str, int], GrammarConstraint | None],
        *,
        follow: Sequence[list[int]] = (),
        ends: Sequence[int] = (),
        inner: Constraint | None = None,
    ) -> None:
        self._starts, self._start, self._opened, self._n_vocab = starts, start, opened.encode(), n_vocab
        self._bytes, self._begin, self._inner = token_bytes, begun, inner
        self._follow, self._ends = [*follow], [*ends]
        self._last_bytes = tuple(end.encode() for end in starts.ends)  # of beginnings
        self._read: list[int] = []  # tokens of the answer
        self._calls: list[_Begun] = []

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_] | None:
        """Return bool[V], True for each id that may follow `tokens` (prompt and answer); None: all of them."""
        if (call := self._call(tokens)) is not None:
            return call.allowed(tokens)
        if only := self._only():
            allowed = np.zeros(self._n_vocab, np.bool_)
            allowed[only] = True
            return allowed
        return self._inner.allowed(tokens) if self._inner is not None else None

    def forced(self, tokens: Sequence[int]) -> list[int]:
        if (call := self._call(tokens)) is not None:
            return call.forced(tokens)
        return self._inner.forced(tokens) if self._inner is not None else []

    def _only(self) -> list[int]:
        """Return the tokens one of which must follow the answer that was read; none if anything may."""
        if not self._calls:
            return []
        if self._ends:
            return self._ends
        after = self._read[self._calls[-1].end :]
        return [mark[len(after)] for mark in self._follow if mark[: len(after)] == after and len(mark) > len(after)]

    def _call(self, tokens: Sequence[int]) -> GrammarConstraint | None:
        """Return the constraint of the call in which an answer is; None if it is in none."""
        answer = [*tokens[self._start :]]
        agreed = common_prefix(self._read, answer)
        if agreed < len(self._read):
            self._calls = [call for call in self._calls if call.place <= agreed]
            if self._calls and (self._calls[-1].end or 0) > agreed:
                self._calls[-1].end = None
        for n_read in range(agreed + 1, len(answer) + 1):
            self._take(tokens, answer, n_read)
        self._read = answer
        last = self._calls[-1] if self._calls else None
        return last.constraint if last is not None and last.end is None else None

    def _take(self, tokens: Sequence[int], answer: list[int], n_read: int) -> None:
        """Read the last of the first `n_read` tokens of an answer."""
        last = self._calls[-1] if self._calls else None
        if last is not None and last.end is None:
            if last.constraint.is_over(tokens[: self._start + n_read]):
                last.end = n_read
            return
        token = self._bytes(answer[n_read - 1])
        if not any(last in token for last in self._last_bytes):
            return
        first = max(last.end or 0 if last is not None else 0, n_read - WINDOW)
        text = b"".join(map(self._bytes, answer[first:n_read]))
        text = text if first else self._opened + text
        n_new = len(token.decode("utf-8", "replace"))
        beginning = self._starts.found(text.decode("utf-8", "replace"), n_new, is_whole=first == 0)
        if beginning is not None and (constraint := self._begin(beginning, self._start + n_read)) is not None:
            self._calls.append(_Begun(n_read, constraint))
