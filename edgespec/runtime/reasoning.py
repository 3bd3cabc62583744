"""Reasoning at the beginning of an answer: its limit, and the constraint of what follows it."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edgespec.core.prefix import common_prefix
from edgespec.core.sampler import Constraint
from edgespec.dialects.dialect import Dialect


@dataclass(frozen=True, slots=True)
class Frame:
    """The texts around the reasoning and before the content of an answer.

    Attributes:
        open: Begins reasoning.
        close: Ends reasoning.
        end: Ends reasoning that has reached its limit.
        rest: Follows the end, before the content.
        header: Begins the content of an answer without reasoning.
    """

    open: str
    close: str
    end: str
    rest: str
    header: str = ""

    @classmethod
    def of(cls, dialect: Dialect, *, calls: bool) -> Frame | None:
        """Return the frame of a dialect, None if it has no reasoning and no header. With `calls`, what follows the
        reasoning is a message that calls a tool, whose header is not part of the frame."""
        if (form := dialect.messages) is not None:
            header = "" if calls else f"{form.answer}{form.header_end}"
            thought = f"{form.thought}{form.header_end}" if form.thought else ""
            return cls(thought, form.ends[0], form.ends[0], f"{form.start}{header}", header)
        if dialect.reasoning is None:
            return None
        open, close = dialect.reasoning
        return cls(open, close, f"\n{close}", f"\n\n{'' if calls else dialect.content[0]}")


class Reasoning:
    """A constraint by which an answer may begin with reasoning.

    Reasoning is free for `most` tokens, after which only its end is allowed. A character or a mark that the last of
    these tokens leaves unfinished may be completed. What is allowed depends on the tokens alone, so that drafts do not
    change the text.

    Args:
        most: The most tokens of reasoning; None: no limit.
        start: The position in the sequence where the answer begins.
        is_open: The prompt has opened the reasoning.
        n_begun: The number of tokens of the answer that exist already.
        tokenize: Returns a text with marks as ids.
        ends: The tokens that end an answer. They are not allowed within reasoning that a constrained content
            follows.
        inner: The constraint of all other tokens.
        after: Returns the constraint of the content, given the position where it begins. Without it, an answer need not
            have the frame.
    """

    def __init__(
        self,
        frame: Frame,
        most: int | None,
        start: int,
        n_vocab: int,
        tokenize: Callable[[str], list[int]],
        token_bytes: Callable[[int], bytes],
        *,
        is_open: bool,
        n_begun: int = 0,
        ends: Iterable[int] = (),
        inner: Constraint | None = None,
        after: Callable[[int], Constraint] | None = None,
    ) -> None:
        self._frame, self._most, self._start = frame, most, start
        self._n_vocab, self._bytes = n_vocab, token_bytes
        self._inner, self._after, self._is_open, self._n_begun = inner, after, is_open, n_begun
        self._latest: int | None = None  # the place where the reasoning is to end
        self._open, self._close = frame.open.encode(), frame.close.encode()
        self._opening, self._header = tokenize(frame.open), tokenize(frame.header)
        self._rest = tokenize(frame.rest)
        self._end = tokenize(frame.end + frame.rest)
        self._contents: dict[int, Constraint] = {}  # the constraints of contents, by their positions
        self._passing: dict[bytes, NDArray[np.intp]] = {}
        self._ends = np.array([*{*ends} - {*tokenize(frame.close)}], np.intp)
        self.is_narrow = after is not None
        # What was read of the answer: its tokens, the position where the reasoning begins, the end of the reasoning's
        # text, and how it is over.
        self._read: list[int] = []
        self._begun: int | None = None
        self._tail = b""
        self._over: _Over | None = None
        self._restart()

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_] | None:
        """Return bool[V], True for each id that may follow `tokens` (prompt and answer); None: all of them."""
        if self._is_early(tokens):
            return self._inner.allowed(tokens) if self._inner is not None else None
        answer = [*tokens[self._start :]]
        self._go_to(answer)
        if following := self._following(answer):
            return self._only(following[0])
        if marks := self._unfinished_marks(answer):
            return self._only(*(rest[0] for rest in marks))
        place = self._content(answer)
        constraint = self._inner if place is None else self._constraint(place)
        allowed = constraint.allowed(tokens) if constraint is not None else None
        if place is None and self._after is not None:
            return self._without_ends(allowed)
        if not answer and self._reasons_first and allowed is not None:
            allowed = allowed.copy()
            allowed[self._opening[0]] = True
        return allowed

    def forced(self, tokens: Sequence[int]) -> list[int]:
        if self._is_early(tokens):
            return self._inner.forced(tokens) if self._inner is not None else []
        answer = [*tokens[self._start :]]
        self._go_to(answer)
        if following := self._following(answer):
            return following
        place = self._content(answer)
        if self._unfinished_marks(answer) or (not answer and self._reasons_first):
            return []
        constraint = self._inner if place is None else self._constraint(place)
        return constraint.forced(tokens) if constraint is not None else []

    def end_at(self, n_tokens: int) -> None:
        """End the reasoning after this number of tokens of the sequence, unless it is over there."""
        self._latest = n_tokens - self._start
        if self._over is not None and self._over.n_read > self._latest:
            self._restart()

    def _is_early(self, tokens: Sequence[int]) -> bool:
        """Return True where nothing can be decided yet, which is the usual case without a constraint of the content."""
        limits = [limit for limit in (self._most, self._latest) if limit is not None]
        return self._after is None and (not limits or len(tokens) - self._start < min(limits))

    def _only(self, *ids: int) -> NDArray[np.bool_]:
        allowed = np.zeros(self._n_vocab, np.bool_)
        allowed[[*ids]] = True
        return allowed

    def _constraint(self, place: int) -> Constraint | None:
        """Return the constraint of a content that begins at this place of the answer."""
        if self._after is None:
            return self._inner
        if place not in self._contents:
            self._contents[place] = self._after(self._start + place)
        return self._contents[place]

    @cached_property
    def _reasons_first(self) -> bool:
        """True if a constrained answer may begin with the mark of reasoning. The mark must not be a beginning of the
        content, too."""
        if self._after is None or self._is_open or not self._opening or self._most == 0:
            return False
        if self._header:
            return True
        first = self._constraint(0)
        allowed = first.allowed([0] * self._start) if first is not None else None
        return allowed is not None and not allowed[self._opening[0]]

    # --- reading --------------------------------------------------------------------------------------------------

    def _following(self, answer: list[int]) -> list[int]:
        """Return the tokens that must follow the answer that was read: of a mark, or of the end of its reasoning."""
        if self._over is not None:
            return self._over.following[len(answer) - self._over.place :]
        marks = self._unfinished_marks(answer)
        return marks[0][: common_prefix(marks[0], marks[-1])] if marks else []

    def _unfinished_marks(self, answer: list[int]) -> list[list[int]]:
        """Return the rests of the marks with which an answer may have begun. An answer without a header may begin with
        its content instead."""
        if self._after is None or self._begun is not None or self._over is not None or not (answer or self._header):
            return []
        marks = [self._opening if self._reasons_first else [], self._header]
        return [mark[len(answer) :] for mark in marks if len(mark) > len(answer) and mark[: len(answer)] == answer]

    def _content(self, answer: list[int]) -> int | None:
        """Return where the content of an answer begins, None within reasoning."""
        if self._over is not None:
            return self._over.place + len(self._over.following)
        return None if self._begun is not None else 0

    def _restart(self) -> None:
        self._read, self._tail, self._over = [], b"", None
        self._begun = 0 if self._is_open else None

    def _go_to(self, answer: list[int]) -> None:
        """Read an answer up to the end of its reasoning."""
        agreed = common_prefix(self._read, answer)
        if agreed < len(self._read):
            if self._over is not None and agreed < self._over.n_read:
                self._over = None
            if self._begun is not None and agreed < self._begun:
                self._restart()
                agreed = 0
            first = 0 if self._begun is None else max(self._begun, agreed - self._n_tail)
            self._tail = b"".join(map(self._bytes, answer[first:agreed]))
        place = agreed
        while self._over is None and not self._ends_at(place) and place < len(answer):
            self._take(answer, place)
            place += 1
        self._read = answer

    def _ends_at(self, place: int) -> bool:
        """Return whether the reasoning has reached its limit before this place."""
        if self._begun is None or not self._is_too_long(place):
            return False
        self._over = _Over(place, self._end, place)
        return True

    def _take(self, answer: list[int], place: int) -> None:
        """Read the token at this place."""
        n_read, token = place + 1, self._bytes(answer[place])
        self._tail += token
        if self._begun is not None:
            if self._close in self._tail:
                is_followed = not self._tail.endswith(self._close)
                begun = self._begun_content(answer, n_read)
                has_rest = self._after is None or is_followed or begun is not None
                self._over = _Over(n_read if begun is None else begun, [] if has_rest else self._rest, n_read)
            self._tail = self._tail[-self._n_tail :]
        elif self._after is None:
            said = self._tail.lstrip()
            if self._open and said.startswith(self._open):
                self._begin(n_read)
            elif not self._open.startswith(said):
                self._over = _Over(0, [], n_read)
        elif self._reasons_first and answer[:n_read] == self._opening:
            self._begin(n_read)
        elif not self._header:
            if not self._reasons_first or answer[:n_read] != self._opening[:n_read]:
                self._over = _Over(0, [], n_read)
        elif answer[:n_read] == self._header:
            self._over = _Over(n_read, [], n_read)

    def _begun_content(self, answer: list[int], place: int) -> int | None:
        """Return where the content after the reasoning begins, if it is a part of the answer that exists already."""
        text, wanted = b"", self._frame.rest.strip().encode()
        for end in range(place, self._n_begun):
            text = (text + self._bytes(answer[end])).lstrip()
            if wanted and text == wanted:
                return end + 1
            if text and not wanted.startswith(text):
                return end if not wanted else place
        return None

    def _begin(self, place: int) -> None:
        self._begun, self._tail = place, b""

    @property
    def _n_tail(self) -> int:
        """Bytes that may hold the mark at the end of the reasoning, and a character."""
        return len(self._close) + 3

    def _is_too_long(self, place: int) -> bool:
        """Return whether to end the reasoning before this place."""
        limits = [] if self._most is None else [(self._begun or 0) + self._most]
        limits += [] if self._latest is None else [self._latest]
        limit = max(min(limits), self._n_begun) if limits else None
        if limit is None or place < limit:
            return False
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(self._tail)
        begun = any(self._tail.endswith(self._close[:n]) for n in range(1, len(self._close)))
        is_whole = not decoder.getstate()[0] and not begun
        return is_whole or place >= limit + len(self._close)

    def _without_ends(self, allowed: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        """Forbid the end of the answer, and tokens that complete the mark at the end of the reasoning and have more
        text, which the constraint of the content would not see."""
        allowed = np.ones(self._n_vocab, np.bool_) if allowed is None else allowed.copy()
        allowed[self._ends] = False
        n = next((n for n in range(len(self._close) - 1, 0, -1) if self._tail.endswith(self._close[:n])), 0)
        if n:
            allowed[self._tokens_beyond(self._close[n:])] = False
        return allowed

    def _tokens_beyond(self, rest: bytes) -> NDArray[np.intp]:
        """Return the tokens that begin with this rest of a mark, and have more text."""
        if rest not in self._passing:
            pieces = ((id, self._bytes(id)) for id in range(self._n_vocab))
            found = [id for id, piece in pieces if piece.startswith(rest) and piece[len(rest) :].strip()]
            self._passing[rest] = np.array(found, np.intp)
        return self._passing[rest]


@dataclass(frozen=True, slots=True)
class _Over:
    """The end of reasoning at `place`, which `following` must follow; known once `n_read` tokens were read. An answer
    without reasoning is over where its content begins."""

    place: int
    following: list[int]
    n_read: int
