"""Find any of many texts in another text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise


class TextFinder:
    """Finds any of some texts, of which there may be thousands, in time that hardly depends on their number."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(texts) - {""}
        self._lengths = sorted({len(text) for text in self._texts})
        beginnings = "|".join(re.escape(beginning) for beginning in sorted({text[:2] for text in self._texts}))
        # A look-ahead takes no characters, so that beginnings which overlap are all found.
        self._beginning = re.compile(f"(?={beginnings})") if self._texts else None

    def any_in(self, text: str) -> bool:
        """Return True if `text` contains one of the texts."""
        return any(True for _ in self._starts(text))

    def cut(self, text: str) -> list[str]:
        """Return `text` in parts that contain none of the texts, except for those of one character."""
        cuts = [0, *(start + 1 for start in self._starts(text)), len(text)]
        return [text[start:end] for start, end in pairwise(cuts)]

    def _starts(self, text: str) -> Iterator[int]:
        for found in self._beginning.finditer(text) if self._beginning else ():
            start = found.start()
            if any(text[start : start + length] in self._texts for length in self._lengths):
                yield start
