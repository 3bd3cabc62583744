"""Rows that may still be to come: iterators that say whether the next one is there, so that no answer waits for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from time import sleep
from typing import Generic, TypeVar

MOST_AHEAD = 16  # items that are read before somebody wants them
IDLE_S = 0.005  # between two looks at an iterator that has nothing yet

Item = TypeVar("Item")


class Arriving(Iterator[Item], Generic[Item]):
    """The items of an iterator that may be slow."""

    def __init__(self) -> None:
        self._next: Item | Exception | None = None

    def is_ready(self, timeout_s: float = 0.0) -> bool:
        """Whether the next item, or the end, is there, or comes within that time."""
        if self._next is None:
            self._next = self._look(timeout_s)
        return self._next is not None

    def __next__(self) -> Item:
        while not self.is_ready(1.0):
            pass
        item = self._next
        if isinstance(item, Exception):  # the end, which stays
            raise item
        self._next = None
        assert item is not None
        return item

    def push_back(self, item: Item) -> None:
        """Let it come next, if nobody has looked for the next one yet."""
        self._next = item

    def _look(self, timeout_s: float) -> Item | Exception | None:
        raise NotImplementedError


class ReadAhead(Arriving[Item]):
    """One that blocks: it is read in a thread of its own, a few items ahead."""

    def __init__(self, items: Iterable[Item]) -> None:
        super().__init__()
        self._arrived: queue.Queue[Item | Exception] = queue.Queue(MOST_AHEAD)
        threading.Thread(target=self._read, args=(items,), name="rows", daemon=True).start()

    def _read(self, items: Iterable[Item]) -> None:
        try:
            for item in items:
                self._arrived.put(item)
        except Exception as error:
            self._arrived.put(error)
        else:
            self._arrived.put(StopIteration())

    def _look(self, timeout_s: float) -> Item | Exception | None:
        try:
            return self._arrived.get(timeout_s > 0, timeout_s)
        except queue.Empty:
            return None


class Polled(Arriving[Item]):
    """One that has None in place of an item that is not there yet."""

    def __init__(self, items: Iterable[Item | None]) -> None:
        super().__init__()
        self._items = iter(items)

    def _look(self, timeout_s: float) -> Item | Exception | None:
        try:
            item = next(self._items)
        except StopIteration as end:
            return end
        if item is None and timeout_s > 0:
            sleep(IDLE_S)
        return item
