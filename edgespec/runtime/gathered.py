"""Many answers, asked for in any threads, that one thread reads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError
from edgespec.events import TokenEvent
from edgespec.runtime.stream import Loop, Stream, closed_error
from edgespec.settings import Request

News = tuple[int, list[TokenEvent | EdgespecError]]


class Gathered:
    """The open answers of one loop, by number. Each has a stream of its own, so that one that fails is alone in it."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._streams: dict[int, Stream] = {}
        self._numbers = count()
        self._asked = threading.Condition()
        self._is_closed = False

    def submit(self, request: Request) -> int:
        """Ask for an answer, from any thread; its number."""
        stream, number = Stream(self._loop), next(self._numbers)
        stream.add(0, request, CancelFlag(), tells=False)
        with self._asked:
            self._streams[number] = stream
            self._asked.notify()
        return number

    def cancel(self, number: int) -> None:
        """Nobody waits for this answer any more, from any thread; nothing more is heard of it."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.close()

    @property
    def has_news(self) -> bool:
        return any(stream.has_news or stream.is_closed for stream in [*self._streams.values()])

    def __iter__(self) -> Iterator[list[News]]:
        """What is new of the answers, in one thread, until `close`. An answer's last event is one, or an error."""
        while not self._is_closed:
            with self._asked:
                while not self._streams and not self._is_closed:
                    self._asked.wait()
            if not self.has_news:
                self._loop.wait(self)
            news = [(number, self._new(number, stream)) for number, stream in [*self._streams.items()]]
            if found := [(number, events) for number, events in news if events]:
                yield found

    def close(self) -> None:
        """End the reading thread, and all answers with it."""
        with self._asked:
            self._is_closed = True
            self._asked.notify()
        for number in [*self._streams]:
            self.cancel(number)

    def _new(self, number: int, stream: Stream) -> list[TokenEvent | EdgespecError]:
        events: list[TokenEvent | EdgespecError] = []
        if stream.has_news or stream.is_closed:
            try:
                events += [event for _, event in stream.take()]
            except EdgespecError as error:
                events.append(error)
            if stream.is_over:
                if not (events and _is_end(events[-1])):
                    events.append(closed_error())
                self.cancel(number)
        return events


def _is_end(event: TokenEvent | EdgespecError) -> bool:
    return isinstance(event, EdgespecError) or event.is_last
