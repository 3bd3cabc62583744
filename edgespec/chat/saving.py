"""Writes to the store of chats; if the store fails, they are repeated later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from edgespec.history import StoreError, UnknownChatError, UnwritableError

Write = Callable[[], object]


class Writes:
    """Ordered writes. Failed writes are kept and retried with the next write; `error` is the reason.

    `everything` returns the writes that save the open chat again if the store has lost it.
    """

    def __init__(self, everything: Callable[[], list[Write]]) -> None:
        self._everything = everything
        self._waiting: list[Write] = []
        self._lock = threading.RLock()  # the screen writes while an answer is written
        self.error: StoreError | None = None

    def __len__(self) -> int:
        """Return the number of pending writes."""
        return len(self._waiting)

    def write(self, write: Write) -> None:
        """Run the pending writes, then this one."""
        with self._lock:
            self._waiting.append(write)
            self.retry()
            if isinstance(self.error, UnwritableError) and len(self._waiting) > 1:
                # Only the first pending write was tried. The others must change at least the copy in memory, which the
                # chat is read from.
                with suppress(StoreError):
                    write()

    def retry(self) -> None:
        """Run the pending writes."""
        with self._lock:
            rewritten = False
            while self._waiting:
                try:
                    self._waiting[0]()
                except UnknownChatError as error:
                    again = [] if rewritten else self._everything()
                    if not again:
                        self._waiting.pop(0)
                        self.error = error
                        return
                    rewritten = True  # the file was replaced or the chat deleted: write the open chat again
                    self._waiting[:0] = again
                except StoreError as error:
                    self.error = error
                    return
                else:
                    self._waiting.pop(0)
            self.error = None
