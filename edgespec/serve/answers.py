"""Answers of a worker for asyncio: one thread reads them all, and no coroutine waits for a forward pass."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence

from edgespec.errors import EdgespecError, GenerationError
from edgespec.events import TokenEvent
from edgespec.runtime.gathered import News
from edgespec.runtime.worker import Worker
from edgespec.settings import Request

Event = tuple[int, TokenEvent | EdgespecError]


class Answers:
    """The open answers of one worker, for one event loop."""

    def __init__(self, worker: Worker) -> None:
        self._gathered, self._loop = worker.gather(), asyncio.get_running_loop()
        self._readers: dict[int, tuple[asyncio.Queue[Event], int]] = {}
        self._thread = threading.Thread(target=self._read, name="answers", daemon=True)
        self._thread.start()

    async def of(self, requests: Sequence[Request]) -> AsyncGenerator[tuple[int, TokenEvent], None]:
        """The events of the answers to `requests`, each with the index of its request.

        Closing this generator cancels what is open. Raises what becomes of one of them.
        """
        events = asyncio.Queue[Event]()
        numbers: list[int] = []
        try:
            for index, request in enumerate(requests):
                number = self._gathered.submit(request)
                numbers.append(number)
                self._readers[number] = events, index
            n_open = len(numbers)
            while n_open:
                index, event = await events.get()
                if isinstance(event, EdgespecError):
                    raise event
                if event.finish_reason in ("error", "cancelled"):
                    raise GenerationError("the answer was broken off")
                n_open -= event.is_last
                yield index, event
        finally:
            for number in numbers:
                self._readers.pop(number, None)
                self._gathered.cancel(number)

    def close(self, error: EdgespecError) -> None:
        """End the thread, and all answers with this error."""
        self._gathered.close()
        for events, index in self._readers.values():
            events.put_nowait((index, error))

    def _read(self) -> None:
        try:
            for news in self._gathered:
                self._loop.call_soon_threadsafe(self._deliver, news)
        except RuntimeError:  # the event loop is closed
            self._gathered.close()

    def _deliver(self, news: list[News]) -> None:
        for number, arrived in news:
            reader = self._readers.get(number)  # there is none once it has left
            if reader is not None:
                events, index = reader
                for event in arrived:
                    events.put_nowait((index, event))
