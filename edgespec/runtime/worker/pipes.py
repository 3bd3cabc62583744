"""The parent's end of a worker: the child process, its pipes, and open requests and calls."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import queue
import secrets
import signal
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, GenerationError
from edgespec.events import Progress
from edgespec.llm.notes import Notes
from edgespec.llm.stream import Event, Loop, Stream
from edgespec.runtime.worker.child import (
    ADD,
    CALL,
    CANCEL,
    CLOSE,
    DEAF_TO,
    END_REASONING,
    LOADED,
    PING,
    PONG,
    kill_all,
    run_child,
)
from edgespec.runtime.worker.death import LoadingStoppedError, NoReplyError, WorkerDiedError, explained, hung
from edgespec.settings import LoadSettings

if TYPE_CHECKING:
    from edgespec.llm.info import ModelInfo

POLL_S = 0.03  # how long a cancel may go unnoticed
GRACE_S = 3.0  # for a child to save its measurements
PING_S = 4.0
SILENCE_S, SILENCE_LOADING_S = 24.0, 120.0  # a process that loads may read its libraries from a slow disk

log = logging.getLogger(__name__)
# Without a handler, log messages of the child would reach the terminal.
logging.getLogger("edgespec").addHandler(logging.NullHandler())


@dataclass(slots=True)
class _Asked:
    """A request at the child; `is_told`: the child knows that it is cancelled, and with `is_told_to_answer` that its
    reasoning shall end."""

    stream: Stream
    number: int
    cancel: CancelFlag
    is_told: bool = False
    is_told_to_answer: bool = False


class _Call:
    """A call of a method in the child, which may reply until `until_s`.

    Attributes:
        reply: the value or the exception, once it has arrived.
    """

    def __init__(self, pipes: Pipes, until_s: float = float("inf")) -> None:
        self._pipes, self._until_s = pipes, until_s
        self.reply: tuple[object] | None = None

    @property
    def has_news(self) -> bool:
        return self.reply is not None or self._pipes.is_closed or monotonic() > self._until_s

    def value(self) -> Any:
        """Return what the method returned, or raise its error."""
        if self.reply is None:
            raise self._pipes.closed_error() if self._pipes.is_closed else NoReplyError()
        if isinstance(self.reply[0], Exception):
            raise self.reply[0]
        return self.reply[0]


class Pipes(Loop):
    """Sends commands to the child and receives its replies, each with the id of a request or a call.

    A turn waits a short time for one reply. New notes of the child are added to `notes`.

    Attributes:
        silence_s: how long a child may send nothing, although it is pinged, before it is ended.
    """

    def __init__(self, settings: LoadSettings, progress: Progress, notes: Notes) -> None:
        super().__init__()
        self._settings, self._progress, self._notes = settings, progress, notes
        self.death: WorkerDiedError | None = None
        self.silence_s, self._n_silent, self._is_hung = SILENCE_LOADING_S, 0, False
        self._ids = count(LOADED + 1)
        self._asked: dict[int, _Asked] = {}
        self._calls = {LOADED: _Call(self)}
        self._start()

    def loaded(self, cancel: CancelFlag) -> tuple[LoadSettings, ModelInfo]:
        """Wait until the model is loaded, and return its settings and its `ModelInfo`. Raises its error, or
        LoadingStoppedError."""
        call = self._calls[LOADED]
        while not call.has_news:
            if cancel.is_set():
                raise LoadingStoppedError(f"loading {self._settings.model} was cancelled")
            self.wait(call)
        self.silence_s = SILENCE_S
        loaded: tuple[LoadSettings, ModelInfo] = call.value()
        return loaded

    def check(self) -> None:
        """Raise UsageError if the model is closed, WorkerDiedError if its process died."""
        super().check()
        if self.death is not None:
            raise self.death.with_traceback(None)

    def call(self, name: str, args: tuple[object, ...], settings: dict[str, object], within_s: float) -> Any:
        """Return what a method in the child returns, or raise its error; NoReplyError if it takes too long."""
        self.check()
        message, id = pickle.dumps((name, args, settings)), next(self._ids)
        call = self._calls[id] = _Call(self, monotonic() + within_s)
        try:
            self._send((CALL, id, message))
            while not call.has_news:
                self.wait(call)
            return call.value()
        finally:
            self._calls.pop(id, None)

    def add(self, stream: Stream, number: int, what: object, cancel: CancelFlag) -> None:
        message, id = pickle.dumps(what), next(self._ids)
        self.stats = Stats()
        self._asked[id] = _Asked(stream, number, cancel)
        self._send((ADD, id, message))

    def turn(self) -> None:
        for id, asked in [*self._asked.items()]:
            if asked.cancel.is_set() and not asked.is_told:
                asked.is_told = True
                self._send((CANCEL, id))
            if asked.cancel.ends_reasoning and not asked.is_told_to_answer:
                asked.is_told_to_answer = True
                self._send((END_REASONING, id))
        if self.death is None and not self.is_closed:
            self._hear()
        if self.death is not None:
            while self._asked:
                _, asked = self._asked.popitem()
                asked.stream.fail(asked.number, self.death)
            for call in self._calls.values():
                call.reply = call.reply or (self.death,)

    def settle(self) -> None:
        for id, asked in [*self._asked.items()]:
            if asked.stream.is_closed:
                del self._asked[id]
                self._send((CANCEL, id))

    def close(self) -> None:
        """End all answers and the child, which saves its measurements first; safe to call twice."""
        if self.is_closed:
            return
        self.shut()
        with self.alone(GRACE_S) as is_alone:
            if is_alone and self.death is None:
                self._send((CLOSE, 0))
                self._finish()
            self._end(is_alone=is_alone)

    def kill(self) -> None:
        """End the child at once. No other thread may use it."""
        self.is_closed = True
        self._end(is_alone=True)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Read messages until the child ends, or kill it. A child that was stopped in a message never completes it."""
        end = threading.Timer(GRACE_S, _kill, [self.process])
        end.start()
        until_s = perf_counter() + GRACE_S
        with suppress(EOFError, OSError):
            while self._replies.poll(max(0.0, until_s - perf_counter())):
                self._replies.recv()
        end.cancel()

    def _hear(self) -> None:
        try:
            if not self._replies.poll(POLL_S):
                self._count_silence()
                return
            kind, value, notes = self._replies.recv()
        except (EOFError, OSError):
            self._died()
            return
        self._n_silent = 0
        for note in notes:
            self._notes.add(note)
        if kind == PONG:
            return
        if kind == "events":
            self._events(value)
        elif kind == "progress":
            self._progress(*value)
        elif kind == "log":
            name, level, text = value
            logging.getLogger(name).log(level, "%s", text)
        elif value[0] in self._calls:
            self._calls[value[0]].reply = value[1:]

    def _count_silence(self) -> None:
        """Ping a child that sends nothing, and end it if it does not answer for too long.

        The thread of the child that answers pings needs the interpreter, but not the engine: a long forward pass does
        not silence it. The time is counted in polls rather than read from a clock, so that a machine that was
        suspended, or a parent that was stopped, counts one at most.
        """
        self._n_silent += 1
        if self._n_silent * POLL_S > self.silence_s:
            self._is_hung = True
            _kill(self.process)
            self._died()
        elif self._n_silent % int(PING_S / POLL_S) == 0:
            self._send((PING, 0))

    def _events(self, events: list[Event]) -> None:
        for id, event in events:
            asked = self._asked.get(id)
            if asked is None:  # its reader has closed the stream
                continue
            if isinstance(event, EdgespecError):
                del self._asked[id]
                was_over = asked.number not in asked.stream.open  # the event before is its end: the engine failed
                (asked.stream.fail if was_over else asked.stream.put)(asked.number, event)
                continue
            if event.is_last:
                self.stats = event.stats or self.stats
                if event.finish_reason != "error":  # the error follows
                    del self._asked[id]
            asked.stream.put(asked.number, event)

    # --- the child ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.log_file = Path(tempfile.gettempdir()) / f"edgespec-{secrets.token_hex(8)}.log"
        unsent: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._send = unsent.put  # also called by the garbage collector, which a SimpleQueue allows in any other call
        level = logging.getLogger("edgespec").getEffectiveLevel()
        try:
            commands, sending = spawn.Pipe(duplex=False)
            self._replies, replies = spawn.Pipe(duplex=False)
            with commands, replies:
                self.process = spawn.Process(
                    target=run_child,
                    args=(commands, replies, self._settings, self.log_file, level),
                    name="edgespec",
                    daemon=True,
                )
                self._sender = threading.Thread(target=_send, args=(sending, unsent), name="commands", daemon=True)
                self._sender.start()
                with _sheltered():
                    self.process.start()
        except (OSError, RuntimeError) as error:  # RuntimeError: there are too many threads
            self._send(None)
            raise GenerationError("cannot start a process for the model", why=str(error)) from error
        weakref.finalize(self, unsent.put, None).atexit = False

    def _died(self) -> None:
        """Find out why the child has closed its pipe."""
        if self.death is not None or self.is_closed:
            return
        self.process.join(GRACE_S)
        code = self.process.exitcode
        try:
            said = self.log_file.read_bytes()[-8192:].decode("utf-8", "replace").strip()
        except OSError:
            said = ""
        log.debug("the worker ended with code %s, its last output:\n%s", code, said)
        self.death = hung() if self._is_hung else explained(code, said.splitlines())

    def _end(self, *, is_alone: bool) -> None:
        """Close the pipes, which ends the child, or kill it; remove its log file. Other threads may use the process
        unless this one `is_alone`."""
        self._send(None)
        self.process.join(0.1)
        _kill(self.process)
        self.process.join(GRACE_S)  # the system cannot end a process that waits for a lost disk
        self._sender.join(GRACE_S)
        self._replies.close()
        if is_alone and self.process.exitcode is not None:
            self.process.close()  # now, and not when the garbage collector finds it
        with suppress(OSError):  # the folder may be lost
            self.log_file.unlink()


def _send(connection: Connection, unsent: queue.SimpleQueue[object]) -> None:
    """Send messages to the child in order, and close the connection at None.

    A pipe holds about 64 KB that are not read yet; so this thread waits for the child, and no caller does.
    """
    with connection:
        while (message := unsent.get()) is not None:
            try:
                connection.send(message)
            except OSError:  # the process has ended, which the reader of the other pipe notices
                return


def _kill(process: BaseProcess) -> None:
    kill_all(process.pid)
    process.kill()


@contextmanager
def _sheltered() -> Iterator[None]:
    """Protect a new Python process from Ctrl-C and from modules in the current folder until it runs our code.

    A blocked signal stays blocked in a process that this thread starts. Windows has no such thing.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    blocked = set[signal.Signals]()
    if os.name == "posix":
        from multiprocessing import resource_tracker

        blocked = DEAF_TO - signal.pthread_sigmask(signal.SIG_BLOCK, DEAF_TO)
        # It would die of SIGHUP, and needs the file descriptor of stderr, which Textual's has not.
        with redirect_stderr(sys.__stderr__):
            resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, DEAF_TO)  # its start unblocks SIGINT
    try:
        yield
    finally:
        if blocked:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before
