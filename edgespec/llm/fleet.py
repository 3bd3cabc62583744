"""Members that answer as one model: a worker process, servers, or actors on the nodes of a cluster.

If a member is lost, it is started or reached again, and other members answer its requests meanwhile.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import NoReturn, Protocol

from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, GenerationError, LostError, UsageError, for_users
from edgespec.events import TokenEvent
from edgespec.llm.info import ModelInfo
from edgespec.llm.model import Model
from edgespec.llm.notes import Notes
from edgespec.llm.stream import Loop, Stream
from edgespec.settings import LoadSettings, Request

POLL_S = 0.03  # how long a cancel may go unnoticed
DEAD_S = 10.0  # after which a lost member counts as dead; it may still come back
IN_SYNC = ("model", "model size", "model digest", "served by")
"""Properties that must be equal for all members; errors name these first."""
MOST_CRASHES = 12  # of members without an answer in between

Arrived = TokenEvent | EdgespecError | None
"""An event of an answer, the error with which it fails, or None: the member is too busy, and the request waits."""
Put = Callable[[Arrived], None]


class Member(Protocol):
    """A model of a fleet.

    Attributes:
        restarts: `recover` starts it again, however long that takes; otherwise it may be gone for good.
    """

    restarts: bool

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> LoadSettings: ...
    @property
    def info(self) -> ModelInfo: ...
    @property
    def own_settings(self) -> Mapping[str, object]: ...
    @property
    def texts_depend_on(self) -> Mapping[str, object]: ...
    def close(self) -> None: ...
    def check_settings(self, request: Request) -> None:
        """Raise UsageError if the model does not support the settings of a request."""

    def begin(self, request: Request, put: Put) -> Future[None]:
        """Ask for an answer, and pass its events to `put`, in any thread; cancelling the future cancels the answer.

        The last event has `is_last`, or is an error. After LostError, the other answers of the member are lost too.
        """

    def recover(self, error: LostError) -> Future[None]:
        """Wait until the lost member is back. The future raises EdgespecError if it will not return."""


class Recruits(Protocol):
    """A source of further members."""

    def close(self) -> None: ...
    def are_expected(self, alone_s: float) -> bool:
        """True if a member may still join, although all have been lost for `alone_s` seconds."""

    def joined(self) -> Sequence[Member]:
        """Return the members that joined since the last call."""


@dataclass(slots=True, eq=False)
class _Flight:
    """A request that is being answered.

    Attributes:
        has_begun: events of the answer were passed on.
        n_lost: how many members were lost while they had the request.
        failed_at: the places where the engine failed.
    """

    stream: Stream
    number: int
    request: Request
    cancel: CancelFlag
    has_begun: bool = False
    n_lost: int = 0
    failed_at: set[_Place] = field(default_factory=set)

    @property
    def is_suspect(self) -> bool:
        """True if the request may be the reason why the engine failed, or why two members were lost."""
        return bool(self.failed_at) or self.n_lost > 1

    def put(self, event: TokenEvent | EdgespecError) -> None:
        self.has_begun = True
        self.stream.put(self.number, event)

    def asks_for_the_same(self, other: _Flight) -> bool:
        """Return whether the two are samples of one request."""
        return replace(self.request, sample=0) == replace(other.request, sample=0)


@dataclass(slots=True, eq=False)
class _Place:
    """A member and its requests, by the numbers of the attempts. `recovering` waits for a lost member since
    `lost_s`."""

    member: Member
    room: int
    flights: dict[int, tuple[_Flight, Future[None]]] = field(default_factory=dict)
    recovering: Future[None] | None = None
    lost_s: float = 0.0
    is_dead: bool = False
    is_busy: bool = False

    @property
    def is_lost(self) -> bool:
        return self.recovering is not None

    @property
    def is_alone(self) -> bool:
        """True if a suspect is here, which is always the only request: its next error is final."""
        return any(flight.is_suspect for flight, _ in self.flights.values())

    @property
    def free(self) -> int:
        return 0 if self.is_lost or self.is_busy or self.is_alone else self.room - len(self.flights)

    def remove(self, attempt: int) -> _Flight:
        """Remove a request, and ignore its further events."""
        flight, future = self.flights.pop(attempt)
        future.cancel()
        self.is_busy &= bool(self.flights)
        return flight


class Fleet(Loop, Model):
    """Members that answer as one.

    Each member gets up to `room` requests at a time. With 0, a member gets one request more than it has slots, so that
    no slot is idle while a request is being sent.

    If a member is lost, the fleet tries to reach it again, and other members answer its requests. A request that made
    an engine fail or a process end, or that two lost members had, is tried again alone, at another member if there is
    one; a further error is final. Answers end with LostError when no member is left, and with GenerationError when
    processes end again and again. An answer that is tried again begins with an event that says so
    (`TokenEvent.is_anew`). Raises UsageError if members differ in a property on which texts depend.

    Attributes:
        notes: messages about lost and returned members, and those that the members themselves add to this list.
        kind: the word for a member in messages.
        tell: called after new notes were added.
    """

    def __init__(
        self,
        members: Sequence[Member],
        room: int = 0,
        *,
        kind: str = "server",
        recruits: Recruits | None = None,
        notes: Notes | None = None,
    ) -> None:
        super().__init__()
        self.loop = self
        self.notes = Notes() if notes is None else notes
        self.kind, self._room, self._recruits = kind, room, recruits
        for other in members[1:]:
            if unlike := difference(members[0], other):
                raise UsageError(f"{members[0].name} and {other.name} would not give the same texts", why=unlike)
        self._first = members[0]
        self.own_settings = self._first.own_settings
        self._places = [self._place(member) for member in members]
        self._waiting: deque[_Flight] = deque()
        self._again: deque[_Flight] = deque()  # flights whose member was lost, and suspects
        self._arrived: queue.SimpleQueue[tuple[_Place, int, Arrived]] = queue.SimpleQueue()
        self._n_attempts = self._n_notes = self._n_crashes = 0
        self._crash: LostError | None = None  # the last one
        self._present_s = monotonic()  # when a member was last there
        self.tell: Callable[[], None] = lambda: None

    def close(self) -> None:
        with ExitStack() as stack:
            if self._recruits is not None:
                stack.callback(self._recruits.close)
            for place in self._places:
                stack.callback(place.member.close)
            self.shut()

    @property
    def settings(self) -> LoadSettings:
        return self._first.settings

    @property
    def info(self) -> ModelInfo:
        return self._first.info

    def call(self, name: str, *args: object, **keywords: object) -> NoReturn:
        raise UsageError("the members of a fleet cannot be asked this", why=f"{name} is for one model")

    @property
    def n_members(self) -> int:
        """The number of members that are not lost."""
        return sum(not place.is_lost for place in self._places)

    @property
    def room(self) -> int:
        return max(1, sum(place.room for place in self._places if not place.is_lost))

    def check_settings(self, request: Request) -> None:
        self._first.check_settings(request)

    # --- requests to members ------------------------------------------------------------------------------------------

    def add(self, stream: Stream, number: int, what: Request, cancel: CancelFlag) -> None:
        if not (self._waiting or self._again or any(place.flights for place in self._places)):
            self._look_again()
        self._waiting.append(_Flight(stream, number, what, cancel))

    def turn(self) -> None:
        if cancelled := self._remove(lambda flight: flight.cancel.is_set()):
            for flight in cancelled:
                flight.put(TokenEvent(-1, "", finish_reason="cancelled", stats=Stats()))
            return
        self._assign()
        try:
            self._muster()
        except EdgespecError as error:
            for flight in self._remove(lambda flight: True):
                flight.stream.fail(flight.number, error)
            return
        try:
            place, attempt, event = self._arrived.get(timeout=POLL_S)
        except queue.Empty:
            return
        if attempt in place.flights:
            self._hear(place, attempt, event)

    def settle(self) -> None:
        self._remove(lambda flight: flight.stream.is_closed)

    def _remove(self, is_over: Callable[[_Flight], bool]) -> list[_Flight]:
        """Cancel the answers for which `is_over` is True, and return them."""
        removed = []
        for flights in (self._waiting, self._again):
            for flight in filter(is_over, [*flights]):
                flights.remove(flight)
                removed.append(flight)
        for place in self._places:
            removed += [place.remove(attempt) for attempt, (flight, _) in [*place.flights.items()] if is_over(flight)]
        return removed

    def _assign(self) -> None:
        """Send requests to free members, and suspects to an idle one; new requests wait for suspects."""
        for flight in [*self._again]:
            place = self._idle(flight) if flight.is_suspect else self._freest()
            if place is not None:
                self._again.remove(flight)
                self._send(place, flight)
        while self._waiting and not self._again and (free := self._freest()) is not None:
            self._send(free, self._waiting.popleft())

    def _freest(self) -> _Place | None:
        found = max(self._places, key=lambda place: place.free / place.room, default=None)
        return found if found is not None and found.free > 0 else None

    def _idle(self, suspect: _Flight) -> _Place | None:
        """Return an idle place where the suspect has not failed; if it has failed everywhere, any idle place."""
        there = [place for place in self._places if not place.is_lost]
        others = [place for place in there if place not in suspect.failed_at]
        return next((place for place in others or there if place.free > 0 and not place.flights), None)

    def _send(self, place: _Place, flight: _Flight) -> None:
        if flight.has_begun:
            flight.put(TokenEvent(-1, "", is_anew=True))
        self._n_attempts += 1
        attempt, arrived = self._n_attempts, self._arrived  # events of an earlier attempt have another number
        future = place.member.begin(flight.request, lambda event: arrived.put((place, attempt, event)))
        place.flights[attempt] = flight, future

    # --- events of members --------------------------------------------------------------------------------------------

    def _hear(self, place: _Place, attempt: int, event: Arrived) -> None:
        flight = place.flights[attempt][0]
        place.is_busy = event is None
        if event is None:
            return
        if isinstance(event, TokenEvent):
            if event.is_last:
                place.remove(attempt)
                self._n_crashes = 0
            flight.put(event)
        elif isinstance(event, LostError):
            self._lose(place, event)
        elif not isinstance(event, GenerationError):
            place.remove(attempt).put(event)
        elif place.is_alone:
            self._fail(place.remove(attempt), event)
        else:
            flight.failed_at.add(place)
            self._again.append(place.remove(attempt))

    def _lose(self, place: _Place, error: LostError) -> None:
        """Queue the requests of a lost member for others, and try to reach it again. A request that was alone fails."""
        was_alone = place.is_alone
        for attempt in [*place.flights]:
            flight = place.remove(attempt)
            flight.n_lost += 1
            if error.is_crash:
                flight.failed_at.add(place)
            if was_alone:
                self._fail(flight, error)
            else:
                self._again.append(flight)
        if error.is_crash:
            self._n_crashes, self._crash = self._n_crashes + 1, error
        place.recovering, place.lost_s = place.member.recover(error), monotonic()
        place.recovering.add_done_callback(lambda _: self._arrived.put((place, 0, None)))  # ends a wait

    def _fail(self, suspect: _Flight, error: EdgespecError) -> None:
        """End an answer with an error, and those to other samples of its request: they would do the same again."""
        for flight in (suspect, *self._remove(suspect.asks_for_the_same)):
            flight.put(error)

    # --- who is there -------------------------------------------------------------------------------------------------

    def _place(self, member: Member) -> _Place:
        return _Place(member, self._room or member.info.sequences + 1)

    def _look_again(self) -> None:
        """Wait for lost members as if they had just been lost."""
        self._present_s = monotonic()
        for place in self._places:
            place.lost_s, place.is_dead = self._present_s, False

    def _muster(self) -> None:
        """Add new members, and note which lost members are dead or back.

        Raises LostError when all are dead, the error of a member that cannot be started again, and GenerationError
        when processes end again and again.
        """
        if self._n_crashes >= MOST_CRASHES and self._crash is not None:
            crash, self._n_crashes = self._crash, 0
            what = f"the model crashed {MOST_CRASHES} times without an answer in between"
            raise GenerationError(what, why=crash.line, hint=crash.hint)
        if self._recruits is not None:
            self._places += map(self._place, self._recruits.joined())
        for place in [*self._places]:
            if place.recovering is not None:
                self._look_for(place, place.recovering)
        if len(self.notes) > self._n_notes:
            self._n_notes = len(self.notes)
            self.tell()
        if not all(place.is_dead for place in self._places):
            self._present_s = monotonic()
        elif self._recruits is None or not self._recruits.are_expected(monotonic() - self._present_s):
            which = self._places[0].member.name if len(self._places) == 1 else f"every {self.kind}"
            raise LostError(f"{which} is lost", hint=f"start {_WHAT[self.kind]} again, then run the same command again")

    def _look_for(self, place: _Place, recovering: Future[None]) -> None:
        """Note that a lost member is back, dead, or gone for good. Raises the error of one that cannot be started
        again."""
        if not recovering.done():
            if not place.member.restarts and monotonic() - place.lost_s > DEAD_S:
                self._bury(place)
        elif (error := recovering.exception()) is None:
            if place.is_dead:
                self.notes.append(f"{place.member.name} is back")
            place.recovering, place.is_dead = None, False
        elif place.member.restarts:
            raise error
        else:
            self._bury(place, f" ({error.line})" if isinstance(error, EdgespecError) else "")
            self._places.remove(place)
            place.member.close()

    def _bury(self, place: _Place, why: str = "") -> None:
        if not place.is_dead:
            others = "; its rows go to the others" if len(self._places) > 1 else ""
            self.notes.append(f"{place.member.name} is lost{why}{others}")
            place.is_dead = True


_WHAT = {"server": "'edgespec serve'", "node": "the cluster"}


def started(work: Callable[[], None]) -> Future[None]:
    """Start some work in a thread, which does not keep the program from ending. The future raises EdgespecError."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except Exception as error:
            done.set_exception(for_users(error))
        else:
            done.set_result(None)

    threading.Thread(target=run, daemon=True).start()
    return done


def difference(first: Member, other: Member) -> str:
    """Return the first difference that would make texts of two members differ; "" if there is none."""
    one, two = first.texts_depend_on, other.texts_depend_on
    differ = [name for name in {*one, *two} if one.get(name) != two.get(name)]
    if not differ:
        return ""
    name = min(differ, key=lambda name: IN_SYNC.index(name) if name in IN_SYNC else len(IN_SYNC))
    return f"{name}: {one.get(name)!r} and {two.get(name)!r}"
