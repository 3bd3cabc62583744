"""Events of answers on their way to readers in any threads: whoever waits for one runs the loop that makes them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, GenerationError, UsageError
from edgespec.events import TokenEvent

Event = tuple[int, TokenEvent | EdgespecError]
Events = Generator[Event, None, None]


class Waiter(Protocol):
    """Somebody who waits for the loop."""

    @property
    def has_news(self) -> bool: ...


class Loop(ABC):
    """What makes the events of all streams, in turns of at most a forward pass. `stats` are those of the answer that
    was started last.

    Of the threads that wait one takes a turn for all, while the others sleep until there is something for them. So
    nothing runs that nobody waits for, and one reader needs no thread.
    """

    def __init__(self) -> None:
        self.stats = Stats()
        self.streams: set[Stream] = set()
        self._condition = threading.Condition()
        self._leader: int | None = None
        self._is_settled = True
        self.is_closed = False

    def check(self) -> None:
        """Raise EdgespecError if nothing can be asked for any more."""
        if self.is_closed:
            raise closed_error()

    @abstractmethod
    def add(self, stream: Stream, number: int, what: Any, cancel: CancelFlag, *, tells: bool) -> None:
        """Take on a request, from any thread; with `tells` progress is told of its prompt."""

    @abstractmethod
    def turn(self) -> None:
        """Begin with what was added, and put what comes of it into the streams."""

    @abstractmethod
    def settle(self) -> None:
        """Let go of the requests of closed streams."""

    def wait(self, waiter: Waiter) -> None:
        """Return when there is something new, or after a turn."""
        with self._condition:
            while self._leader is not None and not waiter.has_news:
                self._condition.wait()
            if waiter.has_news:
                return
            self._leader = threading.get_ident()
        self._lead(self.turn)

    @contextmanager
    def alone(self, timeout_s: float | None = None) -> Iterator[bool]:
        """Nobody takes a turn during this block. False where somebody does: for so long, or around this very block."""
        with self._condition:
            is_own = self._leader == threading.get_ident()
            is_free = not is_own and self._condition.wait_for(lambda: self._leader is None, timeout_s)
            if is_free:
                self._leader = threading.get_ident()
        try:
            yield is_free
        finally:
            if is_free:
                self._lead(lambda: None)

    def closed(self, stream: Stream) -> None:
        """A stream has no reader any more."""
        with self._condition:
            self.streams.discard(stream)
            self._is_settled = False
            if self._leader is not None:  # who sees to it after the turn
                return
            self._leader = threading.get_ident()
        self._lead(lambda: None)

    def _lead(self, do: Callable[[], None]) -> None:
        try:
            do()
        finally:
            try:
                while not self._has_led():
                    self.settle()
            except BaseException:
                with self._condition:  # whoever is next settles again
                    self._is_settled, self._leader = False, None
                    self._condition.notify_all()
                raise

    def _has_led(self) -> bool:
        """Let others lead, unless a stream was closed that is not settled."""
        with self._condition:
            was_settled, self._is_settled = self._is_settled, True
            if was_settled:
                self._leader = None
                self._condition.notify_all()
            return was_settled


class Stream(Closable):
    """The answers to some requests, for one reader. `open` are the numbers of those that are not over. A failure of one
    is that of all, unless they are `apart`."""

    def __init__(self, loop: Loop, *, apart: bool = False) -> None:
        self._loop, self._apart = loop, apart
        self._arrived: deque[Event] = deque()
        self._failure: EdgespecError | None = None
        self.open: set[int] = set()
        self.is_closed = False
        loop.streams.add(self)

    def add(self, number: int, what: Any, cancel: CancelFlag, *, tells: bool = False) -> None:
        """Ask for one more answer, whose events come with that number; `cancel` ends it, and no other."""
        self.open.add(number)
        self._loop.add(self, number, what, cancel, tells=tells)

    def put(self, number: int, event: TokenEvent | EdgespecError) -> None:
        """From the loop: what comes of a request, at last an error or an event that is the last one."""
        self._arrived.append((number, event))
        if isinstance(event, EdgespecError) or event.is_last:
            self.open.discard(number)

    def fail(self, number: int, error: EdgespecError) -> None:
        """From the loop: an answer has broken off, behind its last event."""
        if self._apart:
            self.put(number, error)
            return
        self._failure = error
        self.open.clear()

    @property
    def stats(self) -> Stats:
        return self._loop.stats

    @property
    def has_news(self) -> bool:
        return bool(self._arrived) or not self.open

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.is_closed or not (self.open or self._arrived or self._failure)

    def take(self) -> Iterator[Event]:
        """What has come; if that is nothing, what a turn of the loop brings. Raises what has ended all answers."""
        if not self.has_news:
            self._loop.wait(self)
        yield from self.arrived()
        if self._failure is not None and not self.is_closed:
            error, self._failure = self._failure, None
            raise error.with_traceback(None)

    def arrived(self) -> Iterator[Event]:
        """What has come."""
        while self._arrived and not self.is_closed:
            yield self._arrived.popleft()

    def __iter__(self) -> Events:
        """Everything, until no request is open; the stream is closed with the iterator."""
        with self:
            while not self.is_over:
                yield from self.take()

    def close(self) -> None:
        """Cancel what is still open."""
        if not self.is_closed:
            self.is_closed = True
            self.open.clear()
            self._loop.closed(self)


class Answer(Closable, Iterator[TokenEvent]):
    """The events of one answer, for one reader; the last one has its finish reason.

    `close` cancels the answer, also from another thread; then there is no last event. Raises what became of the answer,
    after a last event if it had begun.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream, self._events = stream, _events_of(stream)

    def __next__(self) -> TokenEvent:
        return next(self._events)

    def close(self) -> None:
        self.stream.close()

    def __del__(self) -> None:
        self.stream.close()


def _events_of(stream: Stream) -> Iterator[TokenEvent]:
    """The events of the only request of a stream."""
    for _, event in stream:
        if isinstance(event, GenerationError):
            yield TokenEvent(-1, "", finish_reason="error", stats=stream.stats)
        if isinstance(event, EdgespecError):
            raise event
        yield event


def closed_error() -> UsageError:
    """The error for a model that is closed."""
    return UsageError("this model is closed")
