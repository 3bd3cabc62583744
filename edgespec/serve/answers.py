"""Answers of a worker for asyncio: one thread reads them all, and no coroutine waits for a forward pass."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from edgespec.errors import EdgespecError, GenerationError
from edgespec.events import TokenEvent
from edgespec.runtime.gathered import News
from edgespec.runtime.worker import Worker
from edgespec.settings import Request

Event = tuple[int, TokenEvent | EdgespecError]

MOST_UNREAD = 2**13  # events
UNREAD_S = 10.0  # for a reader to take an event
WANTED_S = 3.0  # the same while other answers wait for a slot


@dataclass(slots=True, eq=False)
class _Reader:
    """Takes the events of some answers. `taken_s` is when it last took one, or there was none to take."""

    taken_s: float
    numbers: list[int] = field(default_factory=list)
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)


class Answers:
    """The open answers of one worker, for one event loop. `others_wait`: for a slot that an answer has.

    An answer whose reader takes nothing of it is cancelled: its slot is of more use to others.
    """

    def __init__(self, worker: Worker, others_wait: Callable[[], bool] = lambda: False) -> None:
        self._gathered, self._loop = worker.gather(), asyncio.get_running_loop()
        self._readers: dict[int, tuple[_Reader, int]] = {}
        self._others_wait = others_wait
        self._thread = threading.Thread(target=self._read, name="answers", daemon=True)
        self._thread.start()

    async def of(self, requests: Sequence[Request]) -> AsyncGenerator[tuple[int, TokenEvent], None]:
        """The events of the answers to `requests`, each with the index of its request.

        Closing this generator cancels what is open. Raises what becomes of one of them.
        """
        reader = _Reader(self._loop.time())
        try:
            for index, request in enumerate(requests):
                number = self._gathered.submit(request)
                reader.numbers.append(number)
                self._readers[number] = reader, index
            n_open = len(requests)
            while n_open:
                index, event = await reader.events.get()
                reader.taken_s = self._loop.time()
                if isinstance(event, EdgespecError):
                    raise event
                if event.finish_reason in ("error", "cancelled"):
                    raise GenerationError("the answer was broken off")
                n_open -= event.is_last
                yield index, event
        finally:
            self._let_go(reader)

    def close(self, error: EdgespecError) -> None:
        """End the thread, and all answers with this error."""
        self._gathered.close()
        for reader, index in self._readers.values():
            reader.events.put_nowait((index, error))

    def _read(self) -> None:
        try:
            for news in self._gathered:
                self._loop.call_soon_threadsafe(self._deliver, news)
        except RuntimeError:  # the event loop is closed
            self._gathered.close()

    def _deliver(self, news: list[News]) -> None:
        for number, arrived in news:
            if number not in self._readers:  # once its reader has left
                continue
            reader, index = self._readers[number]
            if reader.events.empty():
                reader.taken_s = self._loop.time()
            elif self._is_stuck(reader):
                self._let_go(reader)
                arrived = [GenerationError("the answer was cancelled", why="its client did not read what came of it")]
            for event in arrived:
                reader.events.put_nowait((index, event))

    def _is_stuck(self, reader: _Reader) -> bool:
        limit_s = WANTED_S if self._others_wait() else UNREAD_S
        return self._loop.time() - reader.taken_s > limit_s or reader.events.qsize() > MOST_UNREAD

    def _let_go(self, reader: _Reader) -> None:
        for number in reader.numbers:
            self._readers.pop(number, None)
            self._gathered.cancel(number)
