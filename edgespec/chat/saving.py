"""Writes to the store of chats, of which none is lost where it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable

from edgespec.history import StoreError, UnknownChatError

Write = Callable[[], object]


class Writes:
    """Writes in their order: what the store does not take is kept, tried again with the next one, and `error` says why.

    `everything` puts the open chat into a store that does not know it; it is empty where no chat is open.
    """

    def __init__(self, everything: Callable[[], list[Write]]) -> None:
        self._everything = everything
        self._waiting: list[Write] = []
        self._lock = threading.RLock()  # the screen writes beside the answer
        self.error: StoreError | None = None

    def __len__(self) -> int:
        """How many the store has not taken yet."""
        return len(self._waiting)

    def write(self, write: Write) -> None:
        """Write, after what the store did not take before."""
        with self._lock:
            self._waiting.append(write)
            self.retry()

    def retry(self) -> None:
        """Write what was kept."""
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
                    rewritten = True  # the file was begun anew, or the chat deleted: what is open goes in again
                    self._waiting[:0] = again
                except StoreError as error:
                    self.error = error
                    return
                else:
                    self._waiting.pop(0)
            self.error = None
