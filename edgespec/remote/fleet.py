"""Several servers as one engine: each row goes to one that is free, and on to another one if that is lost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.errors import EdgespecError, GenerationError, UsageError
from edgespec.events import TokenEvent
from edgespec.remote.connection import POLL_S, ServerLostError
from edgespec.remote.engine import Arrived, RemoteEngine
from edgespec.runtime.stream import Events
from edgespec.settings import Request

PROBES = 3  # of a server that was lost, before it counts as dead
PROBE_S = 1.0  # between them
REVIVE_S = 10.0  # between looks at a dead one
IN_SYNC = ("model", "model size", "model digest", "served by")
"""What all servers of a job must have in common, beside what texts depend on; named first in errors."""


@dataclass(slots=True)
class _Flight:
    """A request on its way: the events of its answer so far, which nobody sees before it is whole."""

    index: int
    request: Request
    events: list[TokenEvent] = field(default_factory=list)
    n_lost: int = 0  # servers that had it
    is_suspect: bool = False  # the engine, or a second server, may have failed because of it


@dataclass(slots=True, eq=False)
class _Server:
    """A server, and the requests that it has: with `is_alone` a suspect, and no other beside it."""

    engine: RemoteEngine
    room: int
    flights: dict[int, tuple[_Flight, concurrent.futures.Future[None]]] = field(default_factory=dict)
    probing: concurrent.futures.Future[bool] | None = None
    is_lost: bool = False
    is_dead: bool = False
    is_busy: bool = False
    is_alone: bool = False

    @property
    def free(self) -> int:
        return 0 if self.is_lost or self.is_busy or self.is_alone else self.room - len(self.flights)


class Fleet(Closable):
    """An engine for `Job` that answers on servers, `room` rows at a time on each (0: one more than it has slots, so
    that none is idle while a row is on its way).

    A server that is lost is asked for a sign of life a few times, and now and then later on; its rows go to others.
    Rows at which the engine fails, or that were with two lost servers, are retried alone; what fails then gets an
    error. `notes` says what happened. Raises UsageError if servers differ in what texts depend on.
    """

    def __init__(self, engines: Sequence[RemoteEngine], room: int = 0) -> None:
        self.notes: list[str] = []
        self.engines = engines
        first = engines[0]
        for other in engines[1:]:
            names = {*first.texts_depend_on, *other.texts_depend_on}
            differ = [name for name in names if first.texts_depend_on.get(name) != other.texts_depend_on.get(name)]
            if differ:
                name = min(differ, key=lambda name: IN_SYNC.index(name) if name in IN_SYNC else len(IN_SYNC))
                values = " and ".join(repr(engine.texts_depend_on.get(name)) for engine in (first, other))
                raise UsageError(f"{first.url} and {other.url} would not give the same texts", why=f"{name}: {values}")
        self._servers = [_Server(engine, room or engine.n_slots + 1) for engine in engines]
        self._arrived: queue.SimpleQueue[tuple[_Server, int, Arrived]] = queue.SimpleQueue()
        self._tokens = 0

    def close(self) -> None:
        with ExitStack() as stack:
            for engine in self.engines:
                stack.callback(engine.close)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token that an answer with log-probabilities had."""
        return next((data for engine in self.engines if (data := engine.token_bytes(token))), b"")

    # --- what a job asks ----------------------------------------------------------------------------------------------

    def check_settings(self, request: Request) -> None:
        """Raises UsageError."""
        self.engines[0].check_settings(request)

    def stream(self, requests: Iterable[Request], cancel: CancelFlag | None = None) -> Events:
        """The events of answers, each answer at once when it is whole. Raises ServerLostError when no server is left.

        Requests are taken as `runtime.stream.feed` takes them.
        """
        arriving, is_last, n_taken = iter(requests), False, 0
        is_ready: Callable[[], bool] = getattr(arriving, "is_ready", lambda: True)
        again: deque[_Flight] = deque()
        for server in self._servers:
            if server.is_lost:
                server.is_dead = False
                self._probe(server, PROBE_S)
        try:
            while True:
                if cancel is not None and cancel.is_set():
                    return
                self._assign_again(again)
                is_idle = not again and not any(server.flights for server in self._servers)
                while not is_last and not again and (free := self._freest()) is not None and (is_idle or is_ready()):
                    try:
                        request = next(arriving)
                    except StopIteration:
                        is_last = True
                        break
                    self._send(free, _Flight(n_taken, request))
                    n_taken += 1
                    is_idle = False
                if is_last and is_idle:
                    return
                yield from self._hear(again)
        finally:
            for server in self._servers:
                for _, future in server.flights.values():
                    future.cancel()
                if server.probing is not None:
                    server.probing.cancel()
                server.flights.clear()
                server.probing = None
                server.is_busy = server.is_alone = False

    # --- rows on their way --------------------------------------------------------------------------------------------

    def _freest(self) -> _Server | None:
        found = max(self._servers, key=lambda server: server.free / server.room)
        return found if found.free > 0 else None

    def _assign_again(self, again: deque[_Flight]) -> None:
        """Rows whose server was lost go to whoever is free, suspects to one that is idle."""
        for flight in [*again]:
            idle = (server for server in self._servers if server.free > 0 and not server.flights)
            server = next(idle, None) if flight.is_suspect else self._freest()
            if server is not None:
                again.remove(flight)
                self._send(server, flight)
                server.is_alone = flight.is_suspect

    def _send(self, server: _Server, flight: _Flight) -> None:
        flight.events.clear()
        self._tokens += 1
        token, arrived = self._tokens, self._arrived  # what comes of an earlier attempt has another number
        work = server.engine.deliver(flight.request, lambda event: arrived.put((server, token, event)))
        server.flights[token] = flight, server.engine.connection.submit(work)

    # --- answers on their way back ------------------------------------------------------------------------------------

    def _hear(self, again: deque[_Flight]) -> Iterator[tuple[int, TokenEvent | EdgespecError]]:
        """What arrives next, if that is a whole answer or an error of its row."""
        self._look_after_lost()
        try:
            server, token, event = self._arrived.get(timeout=POLL_S)
        except queue.Empty:
            return
        if token not in server.flights:
            return
        flight = server.flights[token][0]
        server.is_busy = event is None
        if event is None:
            return
        if isinstance(event, TokenEvent):
            flight.events.append(event)
            if event.is_last:
                self._landed(server, token)
                yield from ((flight.index, each) for each in flight.events)
        elif isinstance(event, ServerLostError):
            yield from self._lose(server, again, event)
        elif isinstance(event, GenerationError) and not server.is_alone:
            flight.is_suspect = True
            again.append(flight)
            self._landed(server, token)
        else:
            self._landed(server, token)
            yield flight.index, event

    def _landed(self, server: _Server, token: int) -> None:
        del server.flights[token]
        server.is_alone = False

    def _lose(
        self, server: _Server, again: deque[_Flight], error: ServerLostError
    ) -> Iterator[tuple[int, EdgespecError]]:
        """Give the rows of a server to others, and find out whether it still lives. A row that was alone fails."""
        for flight, future in server.flights.values():
            future.cancel()
            flight.n_lost += 1
            flight.is_suspect = flight.n_lost > 1
            if server.is_alone:
                yield flight.index, error
            else:
                again.append(flight)
        server.flights.clear()
        server.is_lost, server.is_alone = True, False
        self._probe(server, PROBE_S)

    def _probe(self, server: _Server, after_s: float) -> None:
        async def lives() -> bool:
            for _ in range(1 if server.is_dead else PROBES):
                await asyncio.sleep(after_s)
                try:
                    await server.engine.connection.ask("GET", "/health")
                except EdgespecError:
                    continue
                return True
            return False

        server.probing = server.engine.connection.submit(lives())

    def _look_after_lost(self) -> None:
        """Raises ServerLostError when all are dead."""
        for server in self._servers:
            if server.probing is None or not server.probing.done():
                continue
            if server.probing.result():
                if server.is_dead:
                    self.notes.append(f"{server.engine.url} is back")
                server.probing, server.is_lost, server.is_dead = None, False, False
                continue
            if not server.is_dead:
                others = "; its rows go to the others" if len(self._servers) > 1 else ""
                self.notes.append(f"{server.engine.url} is lost{others}")
                server.is_dead = True
            self._probe(server, REVIVE_S)
        if all(server.is_dead for server in self._servers):
            which = self._servers[0].engine.url if len(self._servers) == 1 else "every server"
            raise ServerLostError(f"{which} is lost", hint="start 'edgespec serve' again, and this job with it")
