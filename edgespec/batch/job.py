"""The loop of a job: send rows to the model while it has room, and return results as they finish."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

from edgespec.batch.results import Results, RowResult
from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError
from edgespec.events import COMPLETE, TokenEvent
from edgespec.llm.model import Model
from edgespec.requests.row import BadRow, Row, Sample
from edgespec.settings import Request

MOST_WAITING = 256  # results that were not taken yet


class Job:
    """Answers `rows` with `llm`; iterate over `run` for the results. None in `rows` means that no row is there yet.

    With `ordered`, results have the order of the rows. `heard` is called with each event, and `dropped` with the number
    of tokens of an answer that begins anew.
    """

    def __init__(
        self,
        llm: Model,
        rows: Iterator[Row | BadRow | None],
        results: Results,
        cancel: CancelFlag,
        *,
        ordered: bool = False,
        heard: Callable[[TokenEvent | EdgespecError], None] = lambda event: None,
        dropped: Callable[[int], None] = lambda n_tokens: None,
    ) -> None:
        self._llm, self._rows, self._results, self._cancel = llm, rows, results, cancel
        self._ordered, self._heard, self._dropped = ordered, heard, dropped
        self._flights: dict[int, _Flight] = {}
        self._asked: dict[int, tuple[_Flight, int]] = {}  # the row and the sample of each request
        self._n_taken = self._n_asked = self._n_delivered = 0
        self._is_last = False
        self._ready: deque[RowResult] = deque()
        self._early: dict[int, RowResult] = {}

    @property
    def n_waiting(self) -> int:
        """The number of results that wait for an earlier row."""
        return len(self._early)

    def run(self) -> Generator[RowResult, None, None]:
        """Yield the results. A row whose answers were cancelled has no result. Raises EdgespecError when the model
        cannot answer any more."""
        while not (self._is_last or self._cancel.is_set()):
            self._asked.clear()
            self._n_asked = 0
            with closing(self._llm.stream(self._next_requests(), self._cancel)) as events:
                for index, event in events:
                    self._hear(index, event)
                    self._heard(event)
                    if self._ready:
                        yield from self._take_ready()
            yield from self._take_ready()

    # --- rows on their way to the model -------------------------------------------------------------------------------

    def _next_requests(self) -> Iterator[Request | None]:
        """Yield the requests of the next rows, or None while no row is there.

        Ends after the last row. Also ends if too many results wait for an earlier row or for the reader: the model
        then finishes its answers, and `run` asks for requests again.
        """
        while len(self._ready) + len(self._early) < MOST_WAITING:
            try:
                row = next(self._rows)
            except StopIteration:
                self._is_last = True
                return
            if row is None:
                if self._ready and not self._flights:  # no event will come soon with which these are returned
                    return
                yield None
                continue
            number, self._n_taken = self._n_taken, self._n_taken + 1
            if isinstance(row, BadRow):
                self._deliver(number, self._results.refused(row))
            else:
                flight = self._flights[number] = _Flight(number, row)
                yield from self._requests(flight)

    def _requests(self, flight: _Flight) -> Iterator[Request]:
        """Yield a request for each sample, until a sample is rejected."""
        request = flight.row.request
        for sample in range(flight.row.n):
            if flight.number not in self._flights:
                return
            flight.begin(sample)
            self._asked[self._n_asked] = flight, sample
            self._n_asked += 1
            yield replace(request, sample=sample) if sample else request

    # --- answers on their way back ------------------------------------------------------------------------------------

    def _hear(self, index: int, event: TokenEvent | EdgespecError) -> None:
        flight, sample = self._asked[index]
        if isinstance(event, EdgespecError):
            del self._asked[index]
            if flight.number in self._flights:
                self._deliver(flight.number, self._results.failed(flight.row, event))
            return
        if event.is_anew:
            lost = flight.answers[sample]
            self._dropped(lost.n_tokens or len(lost.pieces))  # a server may report no tokens
            flight.begin(sample)
        flight.answers[sample].add(event)
        if event.finish_reason is None:
            return
        del self._asked[index]
        flight.n_done += event.finish_reason in COMPLETE
        if flight.n_done == flight.row.n and flight.number in self._flights:
            self._deliver(flight.number, self._results.answered(flight.row, flight.answers))

    def _deliver(self, number: int, result: RowResult) -> None:
        """Pass on the result of a row, after the results of earlier rows if they are ordered."""
        self._flights.pop(number, None)
        if not self._ordered:
            self._ready.append(result)
            return
        self._early[number] = result
        while self._n_delivered in self._early:
            self._ready.append(self._early.pop(self._n_delivered))
            self._n_delivered += 1

    def _take_ready(self) -> Iterator[RowResult]:
        while self._ready:
            yield self._ready.popleft()


@dataclass(slots=True)
class _Flight:
    """A row that is being answered: its place in the input, and its samples, of which `n_done` have ended."""

    number: int
    row: Row
    answers: list[Sample] = field(default_factory=list)
    n_done: int = 0

    def begin(self, sample: int) -> None:
        """Begin a sample, or begin it again."""
        self.answers[sample : sample + 1] = [Sample(keeps_tokens=self.row.request.logprobs is not None)]
