"""Work that takes long, in a thread that never waits for the screen: the screen fetches what comes of it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from edgespec.cancel import CancelFlag

Item = TypeVar("Item")


class Job(threading.Thread, Generic[Item]):
    """Calls `work` with a flag that stops it and a function that hands something to the screen.

    `error` is what it raised; `is_over` once it has ended, which is after its last item.
    """

    def __init__(self, work: Callable[[CancelFlag, Callable[[Item], None]], None]) -> None:
        super().__init__(name="chat", daemon=True)
        self.cancel = CancelFlag()
        self.error: Exception | None = None
        self.is_over = False
        self._work = work
        self._items: deque[Item] = deque()
        self.start()

    def run(self) -> None:
        try:
            self._work(self.cancel, self._items.append)
        except Exception as error:
            self.error = error
        finally:
            self.is_over = True

    def take(self) -> list[Item]:
        """What has come since the last time."""
        return [self._items.popleft() for _ in range(len(self._items))]
