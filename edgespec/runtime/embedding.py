"""Reads the texts of requests for vectors and scores, one forward pass at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, GenerationError, for_users
from edgespec.events import TokenEvent
from edgespec.llama.context import CancelledError, Part, PooledContext
from edgespec.llm.stream import Loop, Stream
from edgespec.runtime.inputs import Texts


@dataclass(slots=True, eq=False)
class _Job:
    """The texts of a request, the number of the text to read next, and how many tokens of this text are read."""

    stream: Stream
    number: int
    texts: Texts
    cancel: CancelFlag
    index: int = 0
    n_read: int = 0
    stats: Stats = field(default_factory=Stats)


class Embedder(Loop):
    """Reads the texts of requests, which take turns. A text that takes several passes is read to its end before others
    are.

    Several texts share a pass only in a context with branches: the bits of a vector then depend on the other texts.
    """

    def __init__(self, context: PooledContext) -> None:
        super().__init__()
        self._context = context
        self._added: deque[_Job] = deque()  # by any thread
        self._jobs: deque[_Job] = deque()

    def add(self, stream: Stream, number: int, what: Texts | EdgespecError, cancel: CancelFlag) -> None:
        if isinstance(what, EdgespecError):
            stream.put(number, what)
        else:
            self._added.append(_Job(stream, number, what, cancel, stats=Stats(prompt_tokens=sum(map(len, what)))))

    def turn(self) -> None:
        """Run a forward pass, if there is a text to read; an error in it ends the requests that it was for."""
        while self._added:
            self._jobs.append(self._added.popleft())
        self.settle()
        if self._jobs:
            self._read(self._jobs[0])

    def settle(self) -> None:
        for job in [*self._jobs]:
            if job.stream.is_closed or job.cancel.is_set():
                if job.n_read:
                    self._context.clear()
                self._end(job, TokenEvent(-1, "", finish_reason="cancelled", stats=job.stats))

    def _read(self, first: _Job) -> None:
        """Run a pass over the next texts that fit into it, or else over the next piece of the first one."""
        started_s, taken = perf_counter(), self._taken()
        jobs = [job for job, _ in taken] or [first]
        flags = {job.cancel for job in jobs}
        self._context.watch(flags.pop() if len(flags) == 1 else None)
        try:
            rows = self._context.read(*(_whole(taken) if taken else _piece(first, self._context.n_batch)))
        except Exception as error:
            self._context.clear()
            self.settle()  # ends those that were cancelled
            for job in [] if isinstance(error, CancelledError) else jobs:
                self._end(job, for_users(error))
            return
        for job in jobs:
            job.stats.prompt_s += (perf_counter() - started_s) / len(jobs)
        for job, row in zip(jobs, rows, strict=False):  # there are no rows before the end of a text
            self._take(job, row)

    def _taken(self) -> list[tuple[_Job, int]]:
        """Return the texts of the next pass: those that fit, one of each request in turn."""
        taken: list[tuple[_Job, int]] = []
        turns, room = deque((job, job.index) for job in self._jobs), self._context.n_batch
        while turns and len(taken) < self._context.n_texts:
            job, index = turns.popleft()
            if index < len(job.texts) and len(job.texts[index]) <= room:
                taken.append((job, index))
                room -= len(job.texts[index])
                turns.append((job, index + 1))
            elif not taken:  # the first one is longer than a pass
                break
        return taken

    def _take(self, job: _Job, row: NDArray[np.float32]) -> None:
        """Report the row of a text, and let another request continue."""
        if not np.isfinite(row).all():
            what = f"the result of text {job.index + 1} of {len(job.texts)} has values that are no numbers"
            why = "the weights are damaged, or the computation overflowed"
            self._end(job, GenerationError(what, why=why, hint="try another file of this model"))
        elif job in self._jobs:  # no earlier row of this pass has failed
            job.stream.put(job.number, TokenEvent(job.index, "", vector=row.tobytes()))
            job.index, job.n_read = job.index + 1, 0
            self._jobs.remove(job)
            self._jobs.append(job)
            if job.index == len(job.texts):
                self._end(job, TokenEvent(-1, "", finish_reason="stop", stats=job.stats))

    def _end(self, job: _Job, event: TokenEvent | EdgespecError) -> None:
        with suppress(ValueError):  # it has ended
            self._jobs.remove(job)
            job.stream.put(job.number, event)


def _whole(taken: Iterable[tuple[_Job, int]]) -> tuple[list[Part], bool]:
    """Return whole texts for a pass, and that they end in it."""
    return [(job.texts[index], 0) for job, index in taken], True


def _piece(job: _Job, n_tokens: int) -> tuple[list[Part], bool]:
    """Return the next tokens of a text for a pass, and whether it ends with them."""
    text, start = job.texts[job.index], job.n_read
    job.n_read = min(start + n_tokens, len(text))
    return [(text[start : job.n_read], start)], job.n_read == len(text)
