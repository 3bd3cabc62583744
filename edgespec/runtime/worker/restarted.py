"""A worker process that is started again when it dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from itertools import count
from time import monotonic, sleep

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError, GenerationError, LostError, for_users
from edgespec.events import TokenEvent
from edgespec.llm.fleet import Put, started
from edgespec.llm.info import ModelInfo
from edgespec.llm.notes import Notes
from edgespec.llm.stream import Stream
from edgespec.runtime.worker import Worker
from edgespec.runtime.worker.death import lost_workers
from edgespec.settings import LoadSettings, Request

PATIENCE_S, RETRY_S = 60.0, 1.0  # to reach RPC workers again


class RestartedWorker:
    """A worker as a member of a fleet. `open` returns a worker with these notes, and raises the errors of `Worker`.
    Setting `cancel` ends waiting for RPC workers.

    A thread reads the events of its answers.
    """

    name, restarts = "the model", True
    texts_depend_on: Mapping[str, object] = {}

    def __init__(self, open: Callable[[Notes], Worker], cancel: CancelFlag, notes: Notes) -> None:
        self._open, self._cancel, self._notes = open, cancel, notes
        self._numbers, self._is_closed = count(), False
        self._adopt(open(notes))

    def _adopt(self, worker: Worker) -> None:
        self.worker, self._stream = worker, Stream(worker.loop, apart=True)
        self._puts: dict[int, Put] = {}
        self._begun = threading.Semaphore(0)  # counts the requests that the thread has not seen
        threading.Thread(target=self._read, args=(self._stream, self._puts, self._begun), daemon=True).start()

    @property
    def settings(self) -> LoadSettings:
        return self.worker.settings

    @property
    def info(self) -> ModelInfo:
        return self.worker.info

    @property
    def own_settings(self) -> Mapping[str, object]:
        return self.worker.own_settings

    def check_settings(self, request: Request) -> None:
        self.worker.check_settings(request)

    def begin(self, request: Request, put: Put) -> Future[None]:
        begun, flag, number = Future[None](), CancelFlag(), next(self._numbers)
        begun.add_done_callback(lambda _: flag.set())
        self._puts[number] = put
        self._stream.add(number, self.worker.prepared(request, flag), flag)
        self._begun.release()
        return begun

    def _read(self, stream: Stream, puts: dict[int, Put], begun: threading.Semaphore) -> None:
        while not stream.is_closed:
            begun.acquire()
            while not stream.is_over:
                try:
                    for number, event in stream.take():
                        if isinstance(event, TokenEvent) and event.finish_reason == "error":
                            continue  # the next event is the reason
                        is_last = isinstance(event, EdgespecError) or event.is_last
                        if put := puts.pop(number, None) if is_last else puts.get(number):
                            put(event)
                except Exception as error:  # it is not known which answer caused it: it ends all
                    for number in [*puts]:
                        puts.pop(number)(for_users(error))
                    break

    def recover(self, error: LostError) -> Future[None]:
        """Start another worker."""
        self._notes.append(f"{error.line}; restarting it")
        return started(lambda: self._adopt(self._restarted()))

    def _restarted(self) -> Worker:
        self._end()
        until_s = monotonic() + PATIENCE_S
        while True:
            try:
                worker = self._open(self._notes)
                if self._is_closed:
                    worker.close()
                    raise GenerationError("the model was closed while it was restarted")
                return worker
            except GenerationError as failed:
                if not lost_workers(self.settings, failed) or self._cancel.is_set() or monotonic() > until_s:
                    raise
                sleep(RETRY_S)

    def close(self) -> None:
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        self._stream.close()
        self._begun.release()
        self.worker.close()
