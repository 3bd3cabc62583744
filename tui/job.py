"""Long work in a thread that never waits for the screen: the screen fetches its results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, wait
from typing import Generic, TypeVar

from edgespec.cancel import CancelFlag

Item = TypeVar("Item")


class Job(Generic[Item]):
    """Calls `work` in a thread of `pool` with a flag that stops it and a function that passes something to the screen.
    `error` is what it raised; `is_over` is set once it has ended, after its last item."""

    def __init__(self, work: Callable[[CancelFlag, Callable[[Item], None]], None], pool: Executor) -> None:
        self.cancel = CancelFlag()
        self.error: Exception | None = None
        self.is_over = False
        self._work = work
        self._items: deque[Item] = deque()
        self._future = pool.submit(self._run)

    def join(self, timeout_s: float) -> None:
        """Wait for its end, at most so long."""
        wait([self._future], timeout_s)

    def _run(self) -> None:
        try:
            self._work(self.cancel, self._items.append)
        except Exception as error:
            self.error = error
        finally:
            self.is_over = True

    def take(self) -> list[Item]:
        """The items since the last call."""
        return [self._items.popleft() for _ in range(len(self._items))]
