"""Finds messages by their words: all must occur, the last one may be unfinished; if none matches, by parts of words.

A query has no syntax. A word with characters other than letters and digits must occur literally, and scripts without
spaces are searched for parts of words at once.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
import unicodedata
from collections.abc import Iterator, Sequence

from edgespec.history.data import valid_text

BEGIN, END = "\x02", "\x03"  # of context in an excerpt
INDEXED_WORDS = 32  # of a query; further ones are matched literally
EXCERPT_WORDS = 16
EXCERPT_CHARACTERS = 100


def matches(db: sqlite3.Connection, query: str, *, excerpts: bool = True) -> Iterator[tuple[int, str]]:
    """Numbers of the messages that `query` finds, newest first, and an excerpt of each on one line, or ""."""
    words = valid_text(query).replace("\0", " ").split()
    if not words:
        return
    found = False
    if not any(unicodedata.category(character) == "Lo" for word in words for character in word):
        for number, excerpt in _by_words(db, words, excerpts):
            found = True
            yield number, excerpt
    if not found:
        yield from _by_parts(db, words, excerpts)


def folded_words(query: str) -> list[str]:
    """The words that `holds` searches for."""
    return [word.casefold() for word in valid_text(query).replace("\0", " ").split()]


def holds(text: str, words: Sequence[str]) -> bool:
    """Return whether all of these folded words occur in `text`, also as parts of words."""
    folded = text.casefold()
    return all(word in folded for word in words)


def found_in(query: str, content: str) -> re.Pattern[str] | None:
    """Return a pattern for `spans` of the words to mark in a message; None for an empty query.

    The last word of the query may be incomplete. Parts of words are marked if some word alone does not occur.
    """
    words = [_bare(word) for word in valid_text(query).split()]
    if not words:
        return None
    bare = _bare(content)
    bounded = [_bounded(word, is_last=number == len(words)) for number, word in enumerate(words, 1)]
    parts = [re.escape(word) for word in words]
    terms = bounded if all(re.search(term, bare) for term in bounded) else parts
    return re.compile("|".join(sorted(terms, key=len, reverse=True)))


def spans(pattern: re.Pattern[str], line: str) -> list[tuple[int, int]]:
    """Return the places where a pattern of `found_in` matches."""
    return [found.span() for found in pattern.finditer(_bare(line))]


def _bare(text: str) -> str:
    """The text without case and diacritics, of the same length."""
    if text.isascii():
        return text.lower()
    return "".join(unicodedata.normalize("NFD", character)[0].casefold()[0] for character in text)


def _bounded(word: str, *, is_last: bool) -> str:
    """The expression for a word of a text, not for a part of one."""
    begin, end = r"(?<!\w)" if word[0].isalnum() else "", r"(?!\w)" if word[-1].isalnum() and not is_last else ""
    return begin + re.escape(word) + end


def _by_words(db: sqlite3.Connection, words: Sequence[str], excerpts: bool) -> Iterator[tuple[int, str]]:
    indexed = words[:INDEXED_WORDS]
    literal = folded_words(" ".join([*words[INDEXED_WORDS:], *(word for word in indexed if not word.isalnum())]))
    terms = ['"' + word.replace('"', '""') + '"' for word in indexed]
    unfinished = "*" if indexed[-1][-1].isalnum() else ""
    begin, end = (mark + secrets.token_hex(8) for mark in (BEGIN, END))  # the text itself may contain such marks
    found = db.execute(
        """SELECT rowid, CASE WHEN ? THEN snippet(message_words, 0, ?, ?, '…', ?) ELSE '' END,
        CASE WHEN ? THEN content ELSE '' END
        FROM message_words WHERE message_words MATCH ? ORDER BY rowid DESC""",
        (excerpts, begin, end, EXCERPT_WORDS, bool(literal), " ".join(terms) + unfinished),
    )
    for number, excerpt, content in found:
        if literal and not holds(content, literal):
            continue
        bare = re.sub(f"[{BEGIN}{END}](?!{begin[1:]}|{end[1:]})", "", excerpt)
        yield number, _one_line(bare.replace(begin, BEGIN).replace(end, END))


def _by_parts(db: sqlite3.Connection, words: Sequence[str], excerpts: bool) -> Iterator[tuple[int, str]]:
    folded = folded_words(" ".join(words))
    for number, content in db.execute("SELECT number, CAST(content AS TEXT) FROM message ORDER BY number DESC"):
        if holds(content, folded):
            yield number, _around(content, words) if excerpts else ""


def _around(content: str, words: Sequence[str]) -> str:
    """An excerpt around the first literal, case-insensitive match."""
    bare = re.sub(f"[{BEGIN}{END}]", "", content)
    found = re.search("|".join(map(re.escape, words)), bare, re.IGNORECASE)
    at, end = found.span() if found else (0, 0)
    first, last = max(0, at - EXCERPT_CHARACTERS // 2), end + EXCERPT_CHARACTERS // 2
    marked = bare[first:at] + (BEGIN + bare[at:end] + END if found else "") + bare[end:last]
    return ("…" if first else "") + _one_line(marked) + ("…" if last < len(bare) else "")


def _one_line(text: str) -> str:
    return " ".join(text.split())
