"""Finds messages by their words: all must occur, the last one may be unfinished; if none matches, by parts of words.

A query has no syntax. A word with characters other than letters and digits must occur literally, and scripts without
spaces are searched for parts of words at once.
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections.abc import Iterator, Sequence

from edgespec.history.data import valid_text

BEGIN, END = "\x02", "\x03"  # around a match in an excerpt
INDEXED_WORDS = 32  # of a query; further ones are matched literally
BEFORE, LENGTH = 50, 120  # characters of an excerpt before the first match, and in all


def matches(db: sqlite3.Connection, query: str) -> Iterator[int]:
    """Yield the numbers of the messages that `query` finds, newest first."""
    words, found = _words(query), False
    if words and not any(unicodedata.category(character) == "Lo" for word in words for character in word):
        for number in _by_words(db, words):
            found = True
            yield number
    if words and not found:
        folded = folded_words(query)
        for number, content in db.execute("SELECT number, CAST(content AS TEXT) FROM message ORDER BY number DESC"):
            if holds(content, folded):
                yield number


def folded_words(query: str) -> list[str]:
    """Return the words that `holds` searches for."""
    return [word.casefold() for word in _words(query)]


def holds(text: str, words: Sequence[str]) -> bool:
    """Return whether all of these folded words occur in `text`, also as parts of words."""
    folded = text.casefold()
    return all(word in folded for word in words)


def excerpt(content: str, query: str) -> str:
    """Return a part of a message on one line, with the words of a query between BEGIN and END."""
    text = re.sub(f"[{BEGIN}{END}]", "", content)
    pattern = found_in(query)
    places = spans(pattern, text) if pattern else []
    start = at = max(0, places[0][0] - BEFORE) if places else 0
    parts = ["…" if start else ""]
    for begin, end in places:
        if begin < start + LENGTH:
            parts += [text[at:begin], BEGIN, text[begin:end], END]
            at = end
    rest = text[at : max(at, start + LENGTH)]
    parts += [rest, "…" if at + len(rest) < len(text) else ""]
    return " ".join("".join(parts).split())


def found_in(query: str) -> re.Pattern[str] | None:
    """Return a pattern for `spans` of the words to mark in a message, also in other words; None for an empty query."""
    words = sorted(map(_bare, _words(query)), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, words))) if words else None


def spans(pattern: re.Pattern[str], line: str) -> list[tuple[int, int]]:
    """Return the places where a pattern of `found_in` matches."""
    return [found.span() for found in pattern.finditer(_bare(line))]


def _words(query: str) -> list[str]:
    return valid_text(query).replace("\0", " ").split()


def _bare(text: str) -> str:
    """Return the text without case and diacritics, of the same length."""
    if text.isascii():
        return text.lower()
    return "".join(unicodedata.normalize("NFD", character)[0].casefold()[0] for character in text)


def _by_words(db: sqlite3.Connection, words: Sequence[str]) -> Iterator[int]:
    indexed = words[:INDEXED_WORDS]
    literal = folded_words(" ".join([*words[INDEXED_WORDS:], *(word for word in indexed if not word.isalnum())]))
    terms = ['"' + word.replace('"', '""') + '"' for word in indexed]
    unfinished = "*" if indexed[-1][-1].isalnum() else ""
    found = db.execute(
        """SELECT rowid, CASE WHEN ? THEN content ELSE '' END
        FROM message_words WHERE message_words MATCH ? ORDER BY rowid DESC""",
        (bool(literal), " ".join(terms) + unfinished),
    )
    for number, content in found:
        if holds(content, literal):
            yield number
