"""The one way to ask for answers, from this process, a worker or a fleet."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from time import sleep
from typing import Any

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.errors import EdgespecError
from edgespec.runtime.stream import Answer, Events, Loop, Stream
from edgespec.settings import Inputs, Request

IDLE_S = 0.005  # between two looks for a request while no answer is open
LAST = object()


class Backend(Closable):
    """A model that answers requests: in this process (Runtime), in a worker process (Worker), or on other machines
    (Fleet).

    A request is submitted; its answer is a stream of events, and closing the stream cancels the answer. Threads iterate
    over the stream; coroutines read it through `AsyncAnswers`.

    Attributes:
        notes: messages for the user about how the model runs.
        loop: makes the events of all answers.
    """

    notes: list[str]
    loop: Loop

    @abstractmethod
    def check_settings(self, request: Request) -> None:
        """Raise UsageError if the model does not support the settings of a request, whichever prompt it has."""

    @property
    @abstractmethod
    def room(self) -> int:
        """The number of requests of `stream` that are open at a time."""

    def prepared(self, request: Request | Inputs, cancel: CancelFlag | None = None) -> Any:
        """Return what the loop needs of a request, or the error with which it is refused."""
        return request

    def submit(self, request: Request, cancel: CancelFlag | None = None) -> Answer:
        """Ask for an answer, and return its events.

        The request waits for a free slot from now on, and is decoded together with others. Setting `cancel` ends the
        answer early. Raises UsageError, at once or with the first event.
        """
        return Answer(self.submit_all([request], cancel))

    def submit_all(self, requests: Sequence[Request | Inputs], cancel: CancelFlag | None = None) -> Stream:
        """Ask for several answers, as `submit`, or for vectors; an event comes with the index of its request. Close the
        stream."""
        self.loop.check()
        cancel = cancel or CancelFlag()
        prepared = [self.prepared(request, cancel) for request in requests]
        for error in prepared:
            if isinstance(error, EdgespecError):
                raise error
        stream = Stream(self.loop)
        for number, each in enumerate(prepared):
            stream.add(number, each, cancel)
        return stream

    def stream(self, requests: Iterable[Request | None], cancel: CancelFlag | None = None) -> Events:
        """Ask for many answers, and yield the events of each with the index of its request.

        A request is taken when fewer than `room` are open, until `cancel` is set. None in `requests` means that the
        next one is still to come; answers do not wait for it. An error in place of an event is the reason why this
        request fails; the others continue.
        """
        self.loop.check()
        return self._stream(requests, cancel or CancelFlag())

    def _stream(self, requests: Iterable[Request | None], cancel: CancelFlag) -> Events:
        arriving, n_taken, is_last = iter(requests), 0, False
        with Stream(self.loop) as stream:
            while not stream.is_closed:
                while not is_last and len(stream.open) < self.room:
                    request: Any = LAST if cancel.is_set() else next(arriving, LAST)
                    if request is LAST:
                        is_last = True
                    elif request is not None:
                        stream.add(n_taken, self.prepared(request, cancel), cancel)
                        n_taken += 1
                        yield from stream.arrived()
                    elif stream.open:
                        break
                    else:
                        sleep(IDLE_S)
                yield from stream.take()
                if is_last and stream.is_over:
                    return
