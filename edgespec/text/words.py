"""Words in a text, as people select and count them."""

from __future__ import annotations

import unicodedata

JOINERS = "_\u200c\u200d"
APOSTROPHES = "'\u2019"


def word_at(text: str, index: int) -> tuple[int, int]:
    """Return where the word at `index` begins and ends; where there is no word, the run of equal characters."""
    is_word = _in_word(text, index)
    start, end = index, index + 1
    while start > 0 and (_in_word(text, start - 1) if is_word else text[start - 1] == text[index]):
        start -= 1
    while end < len(text) and (_in_word(text, end) if is_word else text[end] == text[index]):
        end += 1
    return start, end


def _in_word(text: str, index: int) -> bool:
    """Return whether a character belongs to a word; an apostrophe does between letters, as in "don't"."""
    if text[index] in APOSTROPHES:
        return 0 < index < len(text) - 1 and text[index - 1].isalpha() and text[index + 1].isalpha()
    return text[index].isalnum() or text[index] in JOINERS or unicodedata.category(text[index]).startswith("M")
