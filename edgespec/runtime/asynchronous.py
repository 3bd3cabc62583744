"""Answers for asyncio: one thread waits for the events of all, and no coroutine waits for a forward pass."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError, GenerationError, for_users
from edgespec.events import TokenEvent
from edgespec.runtime.stream import Event, Loop, Stream, closed_error

MOST_UNREAD = 2**13  # events
UNREAD_S = 5.0  # for a reader to take an event


class AsyncAnswers:
    """Reads the open answers of one model for one event loop. The thread runs while an answer is open.

    An answer whose reader takes no events is cancelled: its slot is of more use to others.

    Attributes:
        closed_error: makes the error for answers that were open when the model was closed.
    """

    def __init__(self, loop: Loop, closed_error: Callable[[], EdgespecError] = closed_error) -> None:
        self._loop, self.event_loop, self.closed_error = loop, asyncio.get_running_loop(), closed_error
        self._open: set[AsyncStream] = set()
        self._lock = threading.Lock()
        self._is_running = False

    def read(self, answers: Stream, flag: CancelFlag | None = None) -> AsyncStream:
        """Return the events of these answers for one coroutine. `flag` is that of the answers."""
        stream = AsyncStream(self, answers, flag or CancelFlag())
        with self._lock:
            if not self._is_running:
                threading.Thread(target=self._run, name="answers", daemon=True).start()
                self._is_running = True
            self._open.add(stream)
        return stream

    def forget(self, stream: AsyncStream) -> None:
        """Deliver no more events of a stream."""
        with self._lock:
            self._open.discard(stream)

    @property
    def has_news(self) -> bool:
        return any(stream.has_news for stream in [*self._open])

    def _run(self) -> None:
        while (streams := self._readable()) is not None:
            try:
                if not self.has_news:
                    self._loop.wait(self)
                news = [(stream, arrived) for stream in streams if (arrived := stream.arrived())]
            except Exception as error:  # it is not known which answer caused it: it ends all
                news = [(stream, [(0, for_users(error))]) for stream in streams]
                for stream in streams:
                    stream.cancel()
            try:
                if news:
                    self.event_loop.call_soon_threadsafe(self._deliver, news)
            except RuntimeError:  # the event loop is closed
                for stream in streams:
                    stream.cancel()

    def _readable(self) -> list[AsyncStream] | None:
        """Return the open streams; None ends the thread."""
        with self._lock:
            self._is_running = bool(self._open)
            return [*self._open] or None

    def _deliver(self, news: Sequence[tuple[AsyncStream, Sequence[Event | None]]]) -> None:
        for stream, arrived in news:
            stream.deliver(arrived)


class AsyncStream:
    """The events of a stream, each with the number of its answer, for one coroutine.

    Raises EdgespecError if one of the answers fails. `close` cancels all that are not over; call it in the thread of
    the event loop.
    """

    def __init__(self, source: AsyncAnswers, stream: Stream, flag: CancelFlag) -> None:
        self._source, self._stream = source, stream
        self.end_reasoning = flag.end_reasoning
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()  # None: there are no more
        self._taken_s = source.event_loop.time()  # when an event was taken last, or there was none to take
        self._is_closed = False

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> tuple[int, TokenEvent]:
        while not self._is_closed or not self._events.empty():
            arrived = await self._events.get()
            self._taken_s = self._source.event_loop.time()
            if arrived is None:
                break
            number, event = arrived
            if isinstance(event, TokenEvent):
                if event.finish_reason == "error":  # the next event is the reason
                    continue
                if event.finish_reason != "cancelled":
                    return number, event
                event = GenerationError("the answer was broken off")
            self.close()
            raise event
        self._is_closed = True
        raise StopAsyncIteration

    def close(self) -> None:
        """Cancel the answers that are not over, and forget what was not read."""
        self._is_closed = True
        while not self._events.empty():
            self._events.get_nowait()
        self.cancel()

    def cancel(self) -> None:
        """Cancel the answers that are not over, from any thread."""
        self._source.forget(self)
        self._stream.close()

    @property
    def has_news(self) -> bool:
        return self._stream.has_news

    def arrived(self) -> list[Event | None]:
        """Return what has arrived; called in the thread that reads."""
        events: list[Event | None] = []
        try:
            events += self._stream.take() if self.has_news else ()
        except EdgespecError as error:
            events.append((0, error))
        if self._stream.is_over:
            if self._stream.is_closed:  # by the model, while answers were open
                events.append((0, self._source.closed_error()))
            events.append(None)
            self.cancel()
        return events

    def deliver(self, arrived: Sequence[Event | None]) -> None:
        """Pass on what has arrived, unless the reader takes nothing; called in the thread of the event loop."""
        if self._is_closed:
            return
        if self._events.empty():
            self._taken_s = self._source.event_loop.time()
        elif self._source.event_loop.time() - self._taken_s > UNREAD_S or self._events.qsize() > MOST_UNREAD:
            self.cancel()
            why = "its client did not read the events"
            arrived = [(0, GenerationError("the answer was cancelled", why=why))]
        for event in arrived:
            self._events.put_nowait(event)
