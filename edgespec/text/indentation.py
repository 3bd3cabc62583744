"""The end of an answer that has to be indented, such as the rest of a block of code."""

from __future__ import annotations


class Indentation:
    """Follows the lines of a text. Each line but the first must begin with at least `least` blanks or tabs."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._n_blanks: int | None = None  # of this line so far; None: after them, or in the first line

    def end(self, text: str) -> int | None:
        """Return the place in the next part of the text where a line has too few blanks, or None."""
        for place, character in enumerate(text):
            if self._n_blanks is not None and character in " \t":
                self._n_blanks += 1
            elif self._n_blanks is not None and self._n_blanks < self._least:
                return place
            else:
                self._n_blanks = 0 if character == "\n" else None
        return None
