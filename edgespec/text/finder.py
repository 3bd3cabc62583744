"""Find any of many texts in another text."""

from __future__ import annotations

import re
from collections.abc import Iterable


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
        if self._beginning is None:
            return False
        starts = (found.start() for found in self._beginning.finditer(text))
        return any(text[start : start + length] in self._texts for start in starts for length in self._lengths)
