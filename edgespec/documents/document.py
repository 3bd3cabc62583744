"""A document as text, and the choice of a part of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from edgespec.errors import UsageError
from edgespec.text.figures import counted

MOST_TEXT_BYTES = 4 << 20  # of the text of a document
_RANGE = re.compile(r"(\d{1,9})(?:(-)(\d{1,9})?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Span:
    """Pages, rows or lines of a document, counted from 1. `last` None is the end of the document."""

    first: int
    last: int | None

    @classmethod
    def of(cls, text: str) -> Self | None:
        """Return the span that a text such as "3", "1-20" or "30-" describes, else None."""
        found = _RANGE.fullmatch(text)
        if found is None:
            return None
        first = int(found[1])
        last = int(found[3]) if found[3] else None if found[2] else first
        return cls(first, last) if first and (last is None or last >= first) else None

    @staticmethod
    def fault(text: str, unit: str) -> str:
        """Return why a text that looks like a range of pages, rows or lines is not one, else ""."""
        found = _RANGE.fullmatch(text)
        if found is None or Span.of(text):
            return ""
        return "the first is after the last" if int(found[1]) else f"{unit}s count from 1"

    def within(self, name: str, unit: str, total: int) -> Self:
        """Return the part of this span that a document of `total` pages, rows or lines has. Raises UsageError."""
        if self.first > total:
            raise UsageError(f"{name} has no {unit} {self.first}", why=f"it has {counted(total, unit)}")
        return type(self)(self.first, min(self.last or total, total))


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a file. `about` is its extent, such as "12 pages" or "rows 1-20 of 500", if that is known."""

    name: str
    text: str
    about: str = ""

    @property
    def n_bytes(self) -> int:
        return len(self.text.encode("utf-8", "replace"))

    @property
    def block(self) -> str:
        """The document as a part of a message."""
        return block_of(self)


def block_of(document: Document) -> str:
    """Return the name and the extent of a document, and its text in a fence."""
    about = f" ({document.about})" if document.about else ""
    return f"{document.name}{about}:\n{fenced(document.text.rstrip())}"


def fenced(text: str) -> str:
    """Return a text in a fence that it does not contain."""
    longest_run = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest_run + 1)
    return f"{fence}\n{text}\n{fence}"


HEADER = re.compile(
    r"(?P<name>[^\n]{1,1000}?)(?: \((?P<about>(?:[\d,]+ )?(?:page|row|line)s?\b[^()\n]*)\))?:\n(?P<fence>`{3,})\n"
)
"""The beginning of a block."""


def extent(unit: str, total: int, span: Span | None = None) -> str:
    """Return how many pages, rows or lines a document has, or which of them a span is."""
    if span is None or (span.first, span.last) == (1, total):
        return f"{total:,} {unit}" + ("" if total == 1 else "s")
    if span.first == span.last:
        return f"{unit} {span.first:,} of {total:,}"
    return f"{unit}s {span.first:,}-{span.last:,} of {total:,}"
