"""Texts that arrive in pieces, and the steps of their readers.

A reader of calls is a generator, which continues where it stopped. It yields WAIT when it needs more text, a `Begun`
when a call is certain, the text of the arguments as it becomes certain, and ENDED after the last of it. The
result does not depend on the pieces in which the text arrives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeVar

T = TypeVar("T")


class UnfinishedError(Exception):
    """The text may become a call when more of it arrives."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A call of a known tool whose arguments have begun."""

    name: str


class Mark(Enum):
    WAIT = 1
    ENDED = 2


WAIT: Literal[Mark.WAIT] = Mark.WAIT
ENDED: Literal[Mark.ENDED] = Mark.ENDED

Step = Begun | str | Mark
Steps = Generator[Step, None, T]
"""The steps of a reader. It raises UnfinishedError if the answer ends too early, and ValueError for a text that is not
a call."""

_BLANKS = re.compile(r"\s*")


class Source:
    """The text of an answer, with a place `start` where a call may begin. It is read up to `at`; `is_over` is True at
    the end of the answer."""

    def __init__(self, text: str, start: int) -> None:
        self.text, self.start, self.at = text, start, start
        self.is_over = False

    def wait(self) -> Steps[None]:
        """Wait for more of the text."""
        if self.is_over:
            raise UnfinishedError
        yield WAIT

    def peek(self, n: int) -> Steps[str]:
        """Return the next characters: `n`, or fewer at the end of the answer."""
        while len(self.text) - self.at < n and not self.is_over:
            yield WAIT
        return self.text[self.at : self.at + n]

    def visible(self, blanks: re.Pattern[str] = _BLANKS) -> Steps[str]:
        """Go to the next character that is not blank, and return it."""
        while True:
            found = blanks.match(self.text, self.at)
            self.at = found.end() if found else self.at
            if self.at < len(self.text):
                return self.text[self.at]
            yield from self.wait()

    def passed(self, mark: str) -> Steps[bool]:
        """Pass a mark, before which there may be blanks. Return whether it is there."""
        while mark:
            place = after_blanks(self.text, self.at)
            if self.text.startswith(mark, place):
                self.at = place + len(mark)
                return True
            if self.is_over or not mark.startswith(self.text[place : place + len(mark)]):
                return False
            yield WAIT
        return False

    def when(self, read: Callable[[str, bool], T]) -> Steps[T]:
        """Return what `read` finds in the text, as soon as it raises no UnfinishedError."""
        while True:
            try:
                return read(self.text, self.is_over)
            except UnfinishedError:
                yield from self.wait()


def collected(steps: Steps[None]) -> Steps[str]:
    """Return the texts of steps when all of them have arrived."""
    found = list[str]()
    for step in steps:
        if isinstance(step, str):
            found.append(step)
        else:
            yield step
    return "".join(found)


def after_blanks(text: str, start: int) -> int:
    """Return the end of the blanks that begin at `start`."""
    found = _BLANKS.match(text, start)
    return found.end() if found else start


def begun(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)
