"""Answers whose events are delivered by another thread, for readers in any threads."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError
from edgespec.events import TokenEvent
from edgespec.remote.member import POLL_S, Arrived, Put
from edgespec.remote.wire import Partial
from edgespec.runtime.stream import Loop, Stream
from edgespec.settings import Request


@dataclass(slots=True)
class _Open:
    """An answer that is not over; `made` counts its events, `future` cancels it."""

    stream: Stream
    number: int
    cancel: CancelFlag
    made: Partial
    future: Future[None] | None = None
    has_waited: bool = False


class Deliveries(Loop):
    """The open answers of one server. A turn waits for the next event of any of them.

    Attributes:
        begin: asks for an answer, and passes its events to a function.
        prompt_tokens: returns the length of a request's prompt, 0 if it is not known.
        note_busy: called when an answer has to wait because the server is too busy.
    """

    def __init__(
        self,
        begin: Callable[[Request, Put], Future[None]],
        prompt_tokens: Callable[[Request], int],
        note_busy: Callable[[], None],
    ) -> None:
        super().__init__()
        self.begin, self.prompt_tokens, self.note_busy = begin, prompt_tokens, note_busy
        self._ids = count()
        self._open: dict[int, _Open] = {}
        self._arrived: queue.SimpleQueue[tuple[int, Arrived]] = queue.SimpleQueue()

    def add(self, stream: Stream, number: int, what: Request, cancel: CancelFlag) -> None:
        id = next(self._ids)
        answer = self._open[id] = _Open(stream, number, cancel, Partial(self.prompt_tokens(what)))
        answer.future = self.begin(what, lambda event: self._arrived.put((id, event)))

    def turn(self) -> None:
        for id, answer in [*self._open.items()]:
            if answer.cancel.is_set():
                self._end(id, TokenEvent(-1, "", finish_reason="cancelled", stats=answer.made.stats))
        if any(stream.has_news for stream in [*self.streams]):
            return
        try:
            id, event = self._arrived.get(timeout=POLL_S)
        except queue.Empty:
            return
        if id in self._open:
            self._hear(id, event)

    def settle(self) -> None:
        for id, answer in [*self._open.items()]:
            if answer.stream.is_closed:
                self._forget(id)

    def _hear(self, id: int, event: Arrived) -> None:
        answer = self._open[id]
        if event is None:
            if not answer.has_waited:
                answer.has_waited = True
                self.note_busy()
                answer.stream.put(answer.number, TokenEvent(-1, ""))  # so that the reader shows the note now
        elif isinstance(event, TokenEvent) and not event.is_last:
            answer.made.add(event)
            answer.stream.put(answer.number, event)
        else:
            self._end(id, event)

    def _end(self, id: int, event: TokenEvent | EdgespecError) -> None:
        answer = self._forget(id)
        answer.made.told = getattr(event, "stats", None) or answer.made.told
        self.stats = answer.made.stats
        answer.stream.put(answer.number, event)

    def _forget(self, id: int) -> _Open:
        answer = self._open.pop(id)
        if answer.future is not None:
            answer.future.cancel()
        return answer
