"""Answers as streams of events, for threads and coroutines. One of the threads that wait for events runs the loop."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, GenerationError, UsageError, for_users
from edgespec.events import Completion, FinishReason, TokenEvent

MOST_UNREAD = 2**13  # events
UNREAD_S = 5.0  # for a reader to take an event

Event = tuple[int, TokenEvent | EdgespecError]
Events = Generator[Event, None, None]


class Waiter(Protocol):
    """A reader that waits for events."""

    @property
    def has_news(self) -> bool: ...


class Loop(ABC):
    """Generates the events of all streams; each turn of the loop runs at most one forward pass.

    One of the waiting threads takes a turn for all, while the others sleep until they have an event. So nothing runs
    while no thread waits, and a single reader needs no extra thread.

    Attributes:
        stats: the statistics of the answer that was started last, or of the one that ended last elsewhere.
        streams: all streams that are not closed.
    """

    def __init__(self) -> None:
        self.stats = Stats()
        self.streams: set[Stream] = set()
        self._condition = threading.Condition()
        self._leader: int | None = None
        self._is_settled = True
        self.is_closed = False
        self._reader: StreamReader | None = None

    def closed_error(self) -> EdgespecError:
        """Return the error for requests to a closed model, and for coroutines whose answers were open then."""
        return UsageError("this model is closed")

    def check(self) -> None:
        """Raise EdgespecError if no request can be accepted any more."""
        if self.is_closed:
            raise self.closed_error()

    def shut(self) -> None:
        """Accept no more requests, and cancel all answers."""
        self.is_closed = True
        for stream in [*self.streams]:
            stream.close()

    def reader(self) -> StreamReader:
        """Return the reader of streams for the running event loop of asyncio."""
        if self._reader is None or self._reader.event_loop is not asyncio.get_running_loop():
            self._reader = StreamReader(self)
        return self._reader

    @abstractmethod
    def add(self, stream: Stream, number: int, what: Any, cancel: CancelFlag) -> None:
        """Accept a request, from any thread."""

    @abstractmethod
    def turn(self) -> None:
        """Start the requests that were added, and put new events into the streams."""

    @abstractmethod
    def settle(self) -> None:
        """Cancel the requests of closed streams."""

    def wait(self, waiter: Waiter) -> None:
        """Return when the waiter has news, or after a turn."""
        with self._condition:
            while self._leader is not None and not waiter.has_news:
                self._condition.wait()
            if waiter.has_news:
                return
            self._leader = threading.get_ident()
        try:
            self.turn()
        finally:
            self._hand_over()

    @contextmanager
    def alone(self, timeout_s: float | None = None) -> Iterator[bool]:
        """Keep other threads from taking a turn during this block.

        Yields False if another thread is still taking a turn when the timeout ends, or if this thread is taking one.
        """
        with self._condition:
            is_own = self._leader == threading.get_ident()
            is_free = not is_own and self._condition.wait_for(lambda: self._leader is None, timeout_s)
            if is_free:
                self._leader = threading.get_ident()
        try:
            yield is_free
        finally:
            if is_free:
                self._hand_over()

    def closed(self, stream: Stream) -> None:
        """Cancel the requests of a stream that was closed."""
        with self._condition:
            self.streams.discard(stream)
            self._is_settled = False
            if self._leader is not None:  # the leading thread settles after its turn
                return
            self._leader = threading.get_ident()
        self._hand_over()

    def _hand_over(self) -> None:
        """Cancel the requests of streams that were closed meanwhile, then let another thread lead."""
        try:
            while not self._has_led():
                self.settle()
        except BaseException:
            with self._condition:  # the next leader settles again
                self._is_settled, self._leader = False, None
                self._condition.notify_all()
            raise

    def _has_led(self) -> bool:
        """Let another thread lead and return True, unless a stream was closed meanwhile: then return False to
        settle."""
        with self._condition:
            was_settled, self._is_settled = self._is_settled, True
            if was_settled:
                self._leader = None
                self._condition.notify_all()
            return was_settled


class Stream(Closable):
    """The events of some answers, for one thread or coroutine, each with the number of its request.

    If the engine fails, the error ends all answers of the stream; with `apart`, only the answers that failed. A
    coroutine gets the error of any answer as an exception, also if the answer was cancelled.

    Attributes:
        n_arrived: the number of events until now.
        open: the numbers of the answers that are not over.
    """

    def __init__(self, loop: Loop, cancel: CancelFlag | None = None, *, apart: bool = False) -> None:
        self._loop, self._cancel, self._apart = loop, cancel or CancelFlag(), apart
        self._arrived: deque[Event] = deque()
        self._failure: EdgespecError | None = None
        self.n_arrived = 0
        self.open: set[int] = set()
        self.is_closed = False
        loop.streams.add(self)

    def add(self, number: int, what: Any, cancel: CancelFlag | None = None) -> None:
        """Ask for one more answer, whose events have this number; setting its `cancel` ends this answer and no
        other."""
        self.open.add(number)
        self._loop.add(self, number, what, cancel or self._cancel)

    def end_reasoning(self) -> None:
        """Let the content of the answers begin now, if they reason."""
        self._cancel.end_reasoning()

    def put(self, number: int, event: TokenEvent | EdgespecError) -> None:
        """Add an event of an answer (called by the loop). The last one is an error, or an event with `is_last`."""
        self._arrived.append((number, event))
        self.n_arrived += 1
        if isinstance(event, EdgespecError) or event.is_last:
            self.open.discard(number)

    def fail(self, number: int, error: EdgespecError) -> None:
        """End an answer with an error of the engine, after its earlier events (called by the loop)."""
        if self._apart:
            self.put(number, error)
            return
        self._failure = error
        self.open.clear()

    @property
    def stats(self) -> Stats:
        return self._loop.stats

    @property
    def n_unread(self) -> int:
        """The number of events that have arrived and were not taken."""
        return len(self._arrived)

    @property
    def has_news(self) -> bool:
        return bool(self._arrived) or not self.open

    @property
    def is_over(self) -> bool:
        """True if there will be no more events."""
        return self.is_closed or not (self.open or self._arrived or self._failure)

    def take(self) -> Iterator[Event]:
        """Yield the events that are there; if there are none, take a turn of the loop first.

        Raises the error that ended all answers.
        """
        if not self.has_news:
            self._loop.wait(self)
        yield from self.arrived()
        if self._failure is not None and not self.is_closed:
            error, self._failure = self._failure, None
            raise error.with_traceback(None)

    def arrived(self) -> Iterator[Event]:
        """Yield the events that are there."""
        while self._arrived and not self.is_closed:
            yield self._arrived.popleft()

    def __iter__(self) -> Events:
        """Yield events until no answer is open; closing the iterator closes the stream."""
        with self:
            while not self.is_over:
                yield from self.take()

    def __aiter__(self) -> AsyncEvents:
        return self._loop.reader().read(self)

    def close(self) -> None:
        """Cancel the answers that are not over."""
        if not self.is_closed:
            self.is_closed = True
            self.open.clear()
            self._loop.closed(self)


class Answer(Closable, Iterator[TokenEvent]):
    """The events of one answer, for one thread or coroutine; the last one has its finish reason.

    `str()` and `text` wait for the whole answer, and so do the other attributes that `Completion` has. They can be used
    after the events were read, too.

    `close` cancels the answer, also from another thread; then there is no last event. If the answer fails, reading
    raises EdgespecError; a GenerationError comes after a last event with the finish reason "error".
    """

    def __init__(self, stream: Stream, *, is_chat: bool = False) -> None:
        self.stream, self._events = stream, _events_of(stream)
        self._is_chat = is_chat
        self._read: list[TokenEvent] = []

    def _note(self, event: TokenEvent) -> None:
        if event.is_anew:
            self._read.clear()
        self._read.append(event)

    def __next__(self) -> TokenEvent:
        event = next(self._events)
        self._note(event)
        return event

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        if self._has_ended:
            return
        with self:
            async for _, event in self.stream:
                self._note(event)
                yield event

    @property
    def completion(self) -> Completion:
        """The whole answer, with all that is known of it. Raises UsageError if it was closed before its end."""
        self._wait()
        if not self._has_ended:
            what, hint = "this answer was closed before its end", "text has the part until then"
            raise UsageError(what, hint=hint)
        return Completion.of(self._read)

    @property
    def text(self) -> str:
        """The whole text, with the model's reasoning; the part until then if the answer was closed before its end."""
        self._wait()
        return self._text_so_far

    @property
    def content(self) -> str:
        """The text without the model's reasoning."""
        return self.completion.content

    @property
    def reasoning(self) -> str:
        """The model's reasoning; "" if there is none."""
        return self.completion.reasoning

    @property
    def message(self) -> dict[str, str]:
        """The answer as a message, to continue the chat."""
        return self.completion.message

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids of the answer, without the end token."""
        return self.completion.tokens

    @property
    def finish_reason(self) -> FinishReason:
        """The reason why the answer ended."""
        return self.completion.finish_reason

    @property
    def stats(self) -> Stats:
        """The counts and times of the answer."""
        return self.completion.stats

    def __str__(self) -> str:
        """Wait for the end of the answer, and return its whole text."""
        return self.text

    def __repr__(self) -> str:
        """Return the text until now. It does not wait, because debuggers call it."""
        if not self._read:
            return "<Answer: print() waits for its text>"
        return f"<Answer: {self._text_so_far!r}{'' if self._has_ended else '...'}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Wait for the answer, and show its text in IPython."""
        printer.text(self.text)

    def _repr_markdown_(self) -> str | None:
        """Wait for the answer of a chat, and return it for a notebook."""
        if not self._is_chat:
            return None
        if not (reasoning := self.reasoning):
            return self.content
        return f"<details>\n<summary>Thinking</summary>\n\n{reasoning}\n\n</details>\n\n{self.content}"

    @property
    def _has_ended(self) -> bool:
        return bool(self._read) and self._read[-1].is_last

    def _wait(self) -> None:
        for _ in self:
            pass

    @property
    def _text_so_far(self) -> str:
        return "".join(event.text for event in self._read)

    def close(self) -> None:
        self.stream.close()

    def __del__(self) -> None:
        self.stream.close()


def _events_of(stream: Stream) -> Iterator[TokenEvent]:
    """The events of the only request of a stream."""
    is_over = False
    try:
        for _, event in stream:
            if isinstance(event, EdgespecError):
                raise event
            is_over = event.is_last
            yield event
    except GenerationError:
        if not is_over:
            yield TokenEvent(-1, "", finish_reason="error", stats=stream.stats)
        raise


# --- asyncio ----------------------------------------------------------------------------------------------------------


class StreamReader:
    """Takes turns of a loop for the coroutines of one event loop, in a thread that runs while an answer is open.

    A stream whose coroutine takes no events is closed: its slot is of more use to others.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop, self.event_loop = loop, asyncio.get_running_loop()
        self._open: set[AsyncEvents] = set()
        self._lock = threading.Lock()
        self._is_running = False

    def read(self, stream: Stream) -> AsyncEvents:
        """Return the events of a stream for a coroutine."""
        events = AsyncEvents(self, stream)
        with self._lock:
            if not self._is_running:
                threading.Thread(target=self._run, name="answers", daemon=True).start()
                self._is_running = True
            self._open.add(events)
        return events

    def forget(self, events: AsyncEvents) -> None:
        """Wait for no more events of a stream."""
        with self._lock:
            self._open.discard(events)

    @property
    def has_news(self) -> bool:
        return any(events.has_news for events in [*self._open])

    def _run(self) -> None:
        while (open := self._readable()) is not None:
            try:
                self.loop.wait(self)
                news = [events for events in open if events.notice()]
            except Exception as error:  # it is not known which answer caused it: it ends all
                news = open
                for events in open:
                    events.fail(for_users(error))
            try:
                if news:
                    self.event_loop.call_soon_threadsafe(self._wake, news)
            except RuntimeError:  # the event loop is closed
                for events in open:
                    events.cancel()

    def _readable(self) -> list[AsyncEvents] | None:
        """Return the open streams; None ends the thread."""
        with self._lock:
            self._is_running = bool(self._open)
            return [*self._open] or None

    def _wake(self, news: Sequence[AsyncEvents]) -> None:
        for events in news:
            events.wake()


class AsyncEvents:
    """The events of a stream for one coroutine. Raises EdgespecError if one of the answers fails."""

    def __init__(self, reader: StreamReader, stream: Stream) -> None:
        self.stream, self._reader = stream, reader
        self._arrival = asyncio.Event()
        self._n_noticed = 0
        self._unread_s: float | None = None  # since when there are events that the coroutine does not take
        self._error: EdgespecError | None = None
        self._is_over = False

    def __aiter__(self) -> AsyncEvents:
        return self

    async def __anext__(self) -> tuple[int, TokenEvent]:
        try:
            while not self.stream.is_over:
                if self.stream.has_news and (arrived := next(self.stream.take(), None)) is not None:
                    number, event = arrived
                    self._unread_s = self._reader.event_loop.time() if self.stream.n_unread else None
                    if isinstance(event, EdgespecError):
                        raise event
                    if event.finish_reason == "cancelled":
                        raise GenerationError("the answer was broken off")
                    if event.finish_reason != "error":  # the next event is the reason
                        return number, event
                self._arrival.clear()
                if not self.stream.has_news:
                    await self._arrival.wait()
            if self.stream.is_closed and not self._is_over:  # by the model or by the reader, while answers were open
                why = self._reader.loop.closed_error().line
                raise self._error or GenerationError("the answer was broken off", why=why)
        except EdgespecError:
            self._end()
            raise
        self._end()
        raise StopAsyncIteration

    def _end(self) -> None:
        self._is_over = True
        self.cancel()

    def cancel(self) -> None:
        """Cancel the answers that are not over, from any thread."""
        self._reader.forget(self)
        self.stream.close()

    def fail(self, error: EdgespecError) -> None:
        """End the answers with an error, from any thread."""
        self._error = error
        self.cancel()

    @property
    def has_news(self) -> bool:
        return self.stream.n_arrived != self._n_noticed or not self.stream.open

    def notice(self) -> bool:
        """Return whether the coroutine has to wake up; called in the thread of the reader."""
        n_arrived, is_ended = self.stream.n_arrived, not self.stream.open
        had_news = n_arrived != self._n_noticed or is_ended
        self._n_noticed = n_arrived
        if is_ended:  # nothing more arrives
            self._reader.forget(self)
        return had_news

    def wake(self) -> None:
        """Wake the coroutine, and close the stream if it takes nothing; called in the thread of the event loop."""
        now_s = self._reader.event_loop.time()
        if not self.stream.n_unread:
            self._unread_s = None
        elif self._unread_s is None:
            self._unread_s = now_s
        elif now_s - self._unread_s > UNREAD_S or self.stream.n_unread > MOST_UNREAD:
            self.fail(GenerationError("the answer was cancelled", why="its client did not read the events"))
        self._arrival.set()
