"""The parent's end of a worker: the child process, what it was asked, and what it answers."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import secrets
import signal
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, GenerationError
from edgespec.events import Progress, TokenEvent
from edgespec.runtime.stream import Loop, Stream, closed_error
from edgespec.runtime.worker.child import ADD, CALL, CANCEL, CLOSE, DEAF_TO, LOADED, PING, PONG, kill_all, run_child
from edgespec.runtime.worker.death import NoReplyError, WorkerDiedError, explained, hung
from edgespec.runtime.worker.sender import Sender
from edgespec.runtime.worker.watch import MISSED, Watch
from edgespec.settings import LoadSettings

POLL_S = 0.03  # how long a cancel may go unnoticed
GRACE_S = 3.0  # for a child to save what it learnt

log = logging.getLogger(__name__)
# What the child logs must not reach the terminal just because nobody here has set up logging.
logging.getLogger("edgespec").addHandler(logging.NullHandler())


@dataclass(slots=True)
class _Asked:
    """A request that the child has, whether it knows of its cancel, and whether its answer has broken off."""

    stream: Stream
    number: int
    cancel: CancelFlag
    is_told: bool = False
    is_broken: bool = False


class _Call:
    """A question to the child; `result` is its kind and value. Nobody waits for a reply after `until_s`."""

    def __init__(self, pipes: Pipes, until_s: float = float("inf")) -> None:
        self._pipes, self._until_s = pipes, until_s
        self.result: tuple[str, Any] | None = None

    @property
    def has_news(self) -> bool:
        return self.result is not None or self._pipes.is_closed or monotonic() > self._until_s

    def value(self) -> Any:
        """Raises what the child raised."""
        if self.result is None:
            raise closed_error() if self._pipes.is_closed else NoReplyError()
        kind, value = self.result
        if kind == "done":
            return value
        raise value if isinstance(value, Exception) else _error(value)


class Pipes(Loop):
    """Commands to the child, and its replies; each of them has the id of a request or a call. A turn is to hear one
    reply, or that there is none for so long. `notes` are added to."""

    def __init__(self, settings: LoadSettings, progress: Progress, notes: list[str]) -> None:
        super().__init__()
        self._progress, self._notes = progress, notes
        self.death: WorkerDiedError | None = None
        self._ids = count(LOADED + 1)
        self._asked: dict[int, _Asked] = {}
        self._calls = {LOADED: _Call(self)}
        self._start(settings)

    def loaded(self, cancel: CancelFlag) -> Any:
        """What the child says when it has loaded; None when `cancel` is set before. Raises what loading raises."""
        call = self._calls[LOADED]
        while not call.has_news:
            if cancel.is_set():
                return None
            self.wait(call)
        self._watch.missed = MISSED
        return call.value()

    def check(self) -> None:
        """Raises UsageError when closed, WorkerDiedError."""
        super().check()
        if self.death is not None:
            raise self.death.with_traceback(None)

    def call(self, name: str, args: tuple[Any, ...], settings: dict[str, Any], within_s: float) -> Any:
        """What the child's method of that name returns or raises. Raises NoReplyError if that takes too long."""
        self.check()
        message, id = pickle.dumps((name, args, settings)), next(self._ids)
        call = self._calls[id] = _Call(self, monotonic() + within_s)
        try:
            self._sender.put((CALL, id, message))
            while not call.has_news:
                self.wait(call)
            return call.value()
        finally:
            self._calls.pop(id, None)

    def add(self, stream: Stream, number: int, what: Any, cancel: CancelFlag, *, tells: bool) -> None:
        message, id = pickle.dumps(what), next(self._ids)
        self.stats = Stats()
        self._asked[id] = _Asked(stream, number, cancel)
        self._sender.put((ADD, id, message, tells))

    def turn(self) -> None:
        for id, asked in [*self._asked.items()]:
            if asked.cancel.is_set() and not asked.is_told:
                asked.is_told = True
                self._sender.put((CANCEL, id))
        if self.death is None and not self.is_closed:
            self._hear()
        if self.death is not None:
            self._fail([*self._asked], self.death)
            for call in self._calls.values():
                call.result = call.result or ("error", self.death)

    def settle(self) -> None:
        for id, asked in [*self._asked.items()]:
            if asked.stream.is_closed:
                del self._asked[id]
                self._sender.put((CANCEL, id))

    def close(self) -> None:
        """Let the child save what it learnt and end, or end it; safe to call twice."""
        if self.is_closed:
            return
        self.is_closed = True
        for stream in [*self.streams]:
            stream.close()
        with self.alone(GRACE_S) as is_alone:
            if is_alone and self.death is None:
                self._sender.put((CLOSE, 0))
                self._finish()
            self._end()

    def kill(self) -> None:
        """End the child as it stands."""
        self.is_closed = True
        self._end()

    # --- messages -----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Hear the child until it ends, or for long enough. One that was stopped in a message never ends it."""
        end = threading.Timer(GRACE_S, _kill, [self.process])
        end.start()
        until_s = perf_counter() + GRACE_S
        with suppress(EOFError, OSError):
            while self._replies.poll(max(0.0, until_s - perf_counter())):
                self._replies.recv()
        end.cancel()

    def _hear(self) -> None:
        self._watch.listen()
        has_heard = False
        try:
            if self._watch.has_given_up:  # and the system may be unable to end the process
                raise EOFError
            if not self._replies.poll(POLL_S):
                return
            kind, value, notes = self._replies.recv()
            has_heard = True
        except (EOFError, OSError):
            self._died()
            return
        finally:
            self._watch.stop_listening(heard=has_heard)
        self._notes.extend(notes)
        if kind == PONG:
            return
        if kind == "events":
            self._events(value)
        elif kind == "failed":
            ids, error = value
            self._fail(ids, _error(error))
        elif kind == "progress":
            self._progress(*value)
        elif kind == "log":
            name, level, text = value
            logging.getLogger(name).log(level, "%s", text)
        elif value[0] in self._calls:
            self._calls[value[0]].result = kind, value[1]

    def _events(self, rows: list[tuple[int, tuple[Any, ...]]]) -> None:
        for id, row in rows:
            asked = self._asked.get(id)
            if asked is None:  # its reader has left
                continue
            event = _error(row) if isinstance(row[0], type) else TokenEvent(*row)
            if isinstance(event, EdgespecError) and asked.is_broken:
                self._fail([id], event)
                continue
            if isinstance(event, EdgespecError) or event.is_last:
                if isinstance(event, EdgespecError) or event.finish_reason != "error":  # behind which comes the reason
                    del self._asked[id]
                else:
                    asked.is_broken = True
                self.stats = getattr(event, "stats", None) or self.stats
            asked.stream.put(asked.number, event)

    def _fail(self, ids: list[int], error: EdgespecError) -> None:
        for id in ids:
            asked = self._asked.pop(id, None)
            if asked is not None:
                asked.stream.fail(asked.number, error)

    # --- the child ----------------------------------------------------------------------------------------------------

    def _start(self, settings: LoadSettings) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.log_file = Path(tempfile.gettempdir()) / f"edgespec-{secrets.token_hex(8)}.log"
        commands, self._commands = spawn.Pipe(duplex=False)
        self._replies, replies = spawn.Pipe(duplex=False)
        level = logging.getLogger("edgespec").getEffectiveLevel()
        self.process = spawn.Process(
            target=run_child,
            args=(commands, replies, settings, self.log_file, level),
            name="edgespec",
            daemon=True,
        )
        try:
            with _sheltered():
                self.process.start()
        except OSError as error:
            raise GenerationError("cannot start a process for the model", why=str(error)) from error
        finally:
            commands.close()
            replies.close()
        self._sender = Sender(self._commands)
        self._watch = Watch(partial(self._sender.put, (PING, 0)), partial(_kill, self.process))
        for thread in (self._sender, self._watch):
            weakref.finalize(self, thread.close).atexit = False

    def _died(self) -> None:
        """Know what to tell of a child whose pipe is closed."""
        if self.death is not None or self.is_closed:
            return
        self.process.join(GRACE_S)
        code = self.process.exitcode
        try:
            said = self.log_file.read_bytes()[-8192:].decode("utf-8", "replace").strip()
        except OSError:
            said = ""
        log.debug("the worker ended with code %s, its last output:\n%s", code, said)
        self.death = hung() if self._watch.has_given_up else explained(code, said.splitlines())

    def _end(self) -> None:
        """End the child, which goes by itself when nobody can ask it any more, and let go of everything."""
        self._watch.close()
        self._sender.close()
        self.process.join(0.1)
        _kill(self.process)
        self.process.join(GRACE_S)  # the system may be unable to end it: one that waits for a disk that is gone
        self._sender.join(GRACE_S)
        self._replies.close()
        self.log_file.unlink(missing_ok=True)


def _kill(process: BaseProcess) -> None:
    kill_all(process.pid)
    process.kill()


def _error(row: tuple[Any, ...]) -> EdgespecError:
    """What the child's `error_row` was made of."""
    error, what, why, hint = row
    made: EdgespecError = error(what, why=why, hint=hint)
    return made


@contextmanager
def _sheltered() -> Iterator[None]:
    """Keep from a new Python, until it runs code of ours, Ctrl-C and the modules in the current folder.

    A blocked signal stays blocked in a process that this thread starts. Windows has nothing like that.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    blocked = set[signal.Signals]()
    if os.name == "posix":
        from multiprocessing import resource_tracker

        blocked = DEAF_TO - signal.pthread_sigmask(signal.SIG_BLOCK, DEAF_TO)
        # It would die of SIGHUP, and asks stderr for a file descriptor, which Textual's has not.
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
