"""Converts the bytes of tokens into text that may be shown: whole characters only, and no part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from edgespec.errors import UsageError


class TextStream:
    """Text of one answer as its tokens arrive.

    Bytes of an unfinished character, and text that may yet become a stop string, are held back until it is clear what
    they are. Invalid bytes become U+FFFD as in `bytes.decode(errors="replace")`, but a character that is unfinished
    when the answer ends is left out. The stop string that is complete first wins (of several that end together, the
    longest); a stop string may span tokens. `begun` holds the last bytes of the text that the answer continues: if the
    text ended inside a character, the answer begins with the whole character.

    `stopped` becomes the stop string with the token that completes it; the text before it has already been returned.
    """

    def __init__(self, stop: Sequence[str] = (), begun: bytes = b"") -> None:
        if any(not text for text in stop):
            raise UsageError("a stop string is empty", why="it would end every answer before its first character")
        self.stopped = ""
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(begun)  # Only an unfinished character stays in the decoder; the rest was shown before.
        self._held = ""

    def push(self, piece: bytes) -> str:
        """The text that is certain after `piece`, the bytes of one token."""
        return self._advance(self._decoder.decode(piece))

    def flush(self) -> str:
        """The held-back text, when the answer is over.

        The bytes of an unfinished character are dropped: as U+FFFD they would stay in the text of a chat that is
        continued, in front of the character.
        """
        rest, self._held = self._held, ""
        return rest

    def _advance(self, decoded: str) -> str:
        if not self._stop:
            return decoded
        if self.stopped:
            return ""
        text = self._held + decoded
        stop = _first_stop(text, self._stop)
        if stop is not None:
            self.stopped, self._held = text[stop], ""
            return text[: stop.start]
        certain = len(text) - _undecided(text, self._stop)
        self._held = text[certain:]
        return text[:certain]


def _first_stop(text: str, stop: Sequence[str]) -> slice | None:
    """Return the place of the stop string that ends first."""
    found = [(start + len(string), start) for string in stop if (start := text.find(string)) >= 0]
    end, start = min(found, default=(0, 0))
    return slice(start, end) if found else None


def _undecided(text: str, stop: Sequence[str]) -> int:
    """Return the length of the longest end of `text` that a stop string begins with."""
    begun = (n for string in stop for n in range(1, len(string)) if text.endswith(string[:n]))
    return max(begun, default=0)
