"""Several members as one engine: each row goes to one that is free, and on to another one if that is lost."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import monotonic

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.errors import EdgespecError, GenerationError, UsageError
from edgespec.events import TokenEvent
from edgespec.remote.member import POLL_S, Arrived, LostError, Member, Recruits
from edgespec.runtime.stream import Events
from edgespec.settings import Request

PROBES = 3  # of a member that was lost, before it counts as dead
PROBE_S = 1.0  # between them
REVIVE_S = 10.0  # between looks at a dead one
IN_SYNC = ("model", "model size", "model digest", "served by")
"""What all members of a job must have in common, beside what texts depend on; named first in errors."""


@dataclass(slots=True)
class _Flight:
    """A request on its way: the events of its answer so far, which nobody sees before it is whole."""

    index: int
    request: Request
    events: list[TokenEvent] = field(default_factory=list)
    n_lost: int = 0  # members that had it
    is_suspect: bool = False  # the engine, or a second member, may have failed because of it
    failed_at: set[int] = field(default_factory=set)  # the places where it was then


@dataclass(slots=True, eq=False)
class _Place:
    """A member, and the requests that it has: with `is_alone` a suspect, and no other beside it."""

    member: Member
    room: int
    flights: dict[int, tuple[_Flight, Future[None]]] = field(default_factory=dict)
    probing: Future[bool] | None = None
    is_lost: bool = False
    is_dead: bool = False
    is_busy: bool = False
    is_alone: bool = False

    @property
    def free(self) -> int:
        return 0 if self.is_lost or self.is_busy or self.is_alone else self.room - len(self.flights)


class Fleet(Closable):
    """An engine for `Job` that answers at its members, `room` rows at a time at each (0: one more than it has slots, so
    that none is idle while a row is on its way). `kind` is what messages call a member; `recruits` may bring others.

    A member that is lost is asked for a sign of life a few times, and now and then later on; its rows go to others.
    Rows at which the engine fails, or that were with two lost members, are retried alone, elsewhere if there is such a
    place; what fails then gets an error. `notes` says what happened; `tell` is called when there are new ones. Raises
    UsageError if members differ in what texts depend on.
    """

    def __init__(
        self, members: Sequence[Member], room: int = 0, *, kind: str = "server", recruits: Recruits | None = None
    ) -> None:
        self.notes: list[str] = [] if recruits is None else recruits.notes
        self.kind, self._room, self._recruits = kind, room, recruits
        for other in members[1:]:
            if unlike := difference(members[0], other):
                raise UsageError(f"{members[0].name} and {other.name} would not give the same texts", why=unlike)
        self._places = [self._place(member) for member in members]
        self._arrived: queue.SimpleQueue[tuple[_Place, int, Arrived]] = queue.SimpleQueue()
        self._tokens = self._n_told = 0
        self._present_s = monotonic()  # when somebody was there
        self.tell: Callable[[], None] = lambda: None

    def close(self) -> None:
        with ExitStack() as stack:
            if self._recruits is not None:
                stack.callback(self._recruits.close)
            for place in self._places:
                stack.callback(place.member.close)

    @property
    def n_members(self) -> int:
        """Those that are there."""
        return sum(not place.is_lost for place in self._places)

    # --- what a job asks ----------------------------------------------------------------------------------------------

    def check_settings(self, request: Request) -> None:
        """Raises UsageError."""
        self._places[0].member.check_settings(request)

    def stream(self, requests: Iterable[Request], cancel: CancelFlag | None = None) -> Events:
        """The events of answers, each answer at once when it is whole. Raises LostError when no member is left.

        Requests are taken as `runtime.stream.feed` takes them.
        """
        arriving, is_last, n_taken = iter(requests), False, 0
        is_ready: Callable[[], bool] = getattr(arriving, "is_ready", lambda: True)
        again: deque[_Flight] = deque()
        for place in self._places:
            if place.is_lost:
                place.is_dead = False
                self._probe(place, PROBE_S)
        try:
            while True:
                if cancel is not None and cancel.is_set():
                    return
                self._assign_again(again)
                is_idle = not again and not any(place.flights for place in self._places)
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
            for place in self._places:
                for _, future in place.flights.values():
                    future.cancel()
                if place.probing is not None:
                    place.probing.cancel()
                place.flights.clear()
                place.probing = None
                place.is_busy = place.is_alone = False

    # --- rows on their way --------------------------------------------------------------------------------------------

    def _freest(self) -> _Place | None:
        found = max(self._places, key=lambda place: place.free / place.room, default=None)
        return found if found is not None and found.free > 0 else None

    def _assign_again(self, again: deque[_Flight]) -> None:
        """Rows whose member was lost go to whoever is free, suspects to one that is idle."""
        for flight in [*again]:
            place = self._idle(flight) if flight.is_suspect else self._freest()
            if place is not None:
                again.remove(flight)
                self._send(place, flight)
                place.is_alone = flight.is_suspect

    def _idle(self, suspect: _Flight) -> _Place | None:
        """A place for a suspect: where it has not failed, unless that is everywhere."""
        there = [place for place in self._places if not place.is_lost]
        others = [place for place in there if id(place) not in suspect.failed_at]
        return next((place for place in others or there if place.free > 0 and not place.flights), None)

    def _send(self, place: _Place, flight: _Flight) -> None:
        flight.events.clear()
        self._tokens += 1
        token, arrived = self._tokens, self._arrived  # what comes of an earlier attempt has another number
        future = place.member.begin(flight.request, lambda event: arrived.put((place, token, event)))
        place.flights[token] = flight, future

    # --- answers on their way back ------------------------------------------------------------------------------------

    def _hear(self, again: deque[_Flight]) -> Iterator[tuple[int, TokenEvent | EdgespecError]]:
        """What arrives next, if that is a whole answer or an error of its row."""
        self._muster()
        try:
            place, token, event = self._arrived.get(timeout=POLL_S)
        except queue.Empty:
            return
        if token not in place.flights:
            return
        flight = place.flights[token][0]
        place.is_busy = event is None
        if event is None:
            return
        if isinstance(event, TokenEvent):
            flight.events.append(event)
            if event.is_last:
                self._landed(place, token)
                yield from ((flight.index, each) for each in flight.events)
        elif isinstance(event, LostError):
            yield from self._lose(place, again, event)
        elif isinstance(event, GenerationError) and not place.is_alone:
            flight.is_suspect = True
            flight.failed_at.add(id(place))
            again.append(flight)
            self._landed(place, token)
        else:
            self._landed(place, token)
            yield flight.index, event

    def _landed(self, place: _Place, token: int) -> None:
        del place.flights[token]
        place.is_alone = False

    def _lose(self, place: _Place, again: deque[_Flight], error: LostError) -> Iterator[tuple[int, EdgespecError]]:
        """Give the rows of a member to others, and find out whether it still lives. A row that was alone fails."""
        for flight, future in place.flights.values():
            future.cancel()
            flight.n_lost += 1
            flight.is_suspect = flight.n_lost > 1
            if place.is_alone:
                yield flight.index, error
            else:
                again.append(flight)
        place.flights.clear()
        place.is_lost, place.is_alone = True, False
        self._probe(place, PROBE_S)

    # --- who is there -------------------------------------------------------------------------------------------------

    def _place(self, member: Member) -> _Place:
        return _Place(member, self._room or member.n_slots + 1)

    def _probe(self, place: _Place, after_s: float) -> None:
        place.probing = place.member.probe(after_s, 1 if place.is_dead else PROBES)

    def _muster(self) -> None:
        """Let those in that are new, look after those that were lost. Raises LostError when all are dead."""
        if self._recruits is not None:
            self._places += map(self._place, self._recruits.joined())
        for place in [*self._places]:
            if place.probing is None or not place.probing.done():
                continue
            member = place.member
            if place.probing.result():
                if place.is_dead:
                    self.notes.append(f"{member.name} is back")
                place.probing, place.is_lost, place.is_dead = None, False, False
                continue
            if not place.is_dead:
                why = f" ({member.why_lost})" if member.why_lost else ""
                others = "; its rows go to the others" if len(self._places) > 1 else ""
                self.notes.append(f"{member.name} is lost{why}{others}")
                place.is_dead = True
            if member.is_gone:
                self._places.remove(place)
                member.close()
            else:
                self._probe(place, REVIVE_S)
        if len(self.notes) > self._n_told:
            self._n_told = len(self.notes)
            self.tell()
        if not all(place.is_dead for place in self._places):
            self._present_s = monotonic()
        elif self._recruits is None or not self._recruits.are_expected(monotonic() - self._present_s):
            which = self._places[0].member.name if len(self._places) == 1 else f"every {self.kind}"
            raise LostError(f"{which} is lost", hint=f"start {_WHAT[self.kind]} again, and this job with it")


_WHAT = {"server": "'edgespec serve'", "node": "the cluster"}


def difference(first: Member, other: Member) -> str:
    """What keeps two members from giving the same texts, in words; "" for nothing."""
    one, two = first.texts_depend_on, other.texts_depend_on
    differ = [name for name in {*one, *two} if one.get(name) != two.get(name)]
    if not differ:
        return ""
    name = min(differ, key=lambda name: IN_SYNC.index(name) if name in IN_SYNC else len(IN_SYNC))
    return f"{name}: {one.get(name)!r} and {two.get(name)!r}"
