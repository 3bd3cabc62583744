"""Characters as people see them: an accent, an emoji of several characters, and a flag are one."""

from __future__ import annotations

import unicodedata

ZERO_WIDTH_JOINER = "\u200d"


def cluster_start(text: str, end: int) -> int:
    """Return where the visible character that ends at `end` begins."""
    start = end - 1
    while start > 0 and not _begins(text, start):
        start -= 1
    return max(0, start)


def cluster_end(text: str, start: int) -> int:
    """Return where the visible character that begins at `start` ends."""
    end = start + 1
    while end < len(text) and not _begins(text, end):
        end += 1
    return min(end, len(text))


def _begins(text: str, index: int) -> bool:
    """Return whether a visible character begins here."""
    character, before = text[index], text[index - 1]
    if _is_regional(character):
        first = index
        while first > 0 and _is_regional(text[first - 1]):
            first -= 1
        return (index - first) % 2 == 0  # two of them are a flag
    return before != ZERO_WIDTH_JOINER and not _extends(character)


def _is_regional(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _extends(character: str) -> bool:
    """Return whether a character is drawn together with the one before: marks, joiners, tags and skin tones."""
    is_tone, is_tag = "\U0001f3fb" <= character <= "\U0001f3ff", "\U000e0020" <= character <= "\U000e007f"
    is_mark = unicodedata.category(character).startswith("M")
    return is_mark or character == ZERO_WIDTH_JOINER or is_tone or is_tag
