"""Iterators over rows that may not be there yet: they report if the next one is, so that no answer waits for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from time import sleep
from typing import Generic, TypeVar

MOST_AHEAD = 16  # items that are read before they are needed
IDLE_S = 0.005  # between two looks at an iterator that has no item yet

Item = TypeVar("Item")


class Arriving(Iterator[Item], Generic[Item]):
    """An iterator that may be slow."""

    def __init__(self) -> None:
        self._next: Item | Exception | None = None

    def is_ready(self, timeout_s: float = 0.0) -> bool:
        """True if the next item or the end is there, or arrives within the timeout."""
        if self._next is None:
            self._next = self._look(timeout_s)
        return self._next is not None

    def __next__(self) -> Item:
        while not self.is_ready(1.0):
            pass
        item = self._next
        if isinstance(item, Exception):  # the end, which is final
            raise item
        self._next = None
        assert item is not None
        return item

    def push_back(self, item: Item) -> None:
        """Make this item the next one, if the next one has not been looked at."""
        self._next = item

    def _look(self, timeout_s: float) -> Item | Exception | None:
        raise NotImplementedError


class ReadAhead(Arriving[Item]):
    """Reads an iterator that blocks in a separate thread, a few items ahead."""

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
    """Reads an iterator that yields None in place of an item that is not there yet."""

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
