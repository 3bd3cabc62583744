"""The process with the model: what it does for its parent, and how it ends when nobody asks for it any more.

The main thread runs the models: between forward passes it takes in what was asked, and sleeps while there is nothing to
do. Another one hears the parent, so that a cancel reaches a decode in the middle of native code, and a child whose
parent is gone ends at once. A third one reads long prompts, which takes seconds, and answers questions about texts.
Others compile new constraints.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields
from functools import partial
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, GenerationError, UsageError
from edgespec.events import TokenEvent
from edgespec.files.unfinished import remove_unfinished
from edgespec.runtime.stream import Stream
from edgespec.settings import LoadSettings, Request

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from edgespec.runtime.runtime import Runtime

BATCH_S = 0.015  # tokens that come faster than this share a message
COMPILING = 32  # threads: many more than can wait for the slow compiler (`compiler.MOST_WAITING`)
LONG = 2**15  # characters of a prompt that other answers are not to wait for
ADD, CALL, CANCEL, CLOSE, PING = "add", "call", "cancel", "close", "ping"
PONG = "pong"
READY = "ready"  # a request of ADD that the engine can begin with; None: it was cancelled before
OF_TEXTS = "prompts."  # calls that need no engine
LOADED = 0  # the id of the first reply
WHILE_IDLE = ("draft_with", "forget")  # calls that would change answers in the making
DEAF_TO = {getattr(signal, name) for name in ("SIGINT", "SIGHUP", "SIGBREAK") if hasattr(signal, name)}

log = logging.getLogger("edgespec.runtime.worker")
_row = attrgetter(*(field.name for field in fields(TokenEvent)))  # pickling tuples takes a tenth of the time


def run_child(commands: Connection, replies: Connection, settings: LoadSettings, log_file: Path, level: int) -> None:
    """Serve the Worker at the other end of the pipes until it says to close.

    Commands are ADD, with a request, CALL, with a method's name and arguments, CANCEL and CLOSE, each with an id,
    and PING, which the thread that hears the parent answers at once.
    Replies are of a kind, with a value and the notes that are new: "events" of requests, "failed" for those that a
    failure has ended, "done" or "error" for a call; "progress", "log" and PONG.
    """
    _settle_in(log_file)
    child = _Child(commands, replies, log_file)
    logger = logging.getLogger("edgespec")
    logger.handlers, logger.propagate = [_Forwarding(child)], False  # whatever the main module sets up, here too
    logger.setLevel(level)
    child.run(settings)


def kill_all(pid: int | None) -> None:
    """End what a child has started and, but on Windows, itself, as far as that is still there."""
    if os.name == "posix":
        with suppress(OSError):  # it has no group yet, or nobody is in it any more
            if pid is not None:
                os.killpg(pid, signal.SIGKILL)
        return
    import psutil

    with suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            process.kill()


def _settle_in(log_file: Path) -> None:
    """Away from the terminal: deaf to its signals, in a process group of its own, without a word on its screen."""
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    words = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
    for source, target in ((nothing, 0), (words, 1), (words, 2)):
        os.dup2(source, target)
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # the last words are to be the reason
    if os.name == "posix":
        import resource

        signal.pthread_sigmask(signal.SIG_UNBLOCK, DEAF_TO)
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # gigabytes, with the conversation in them


class _Child:
    """A runtime, and what is asked of it, in turn."""

    def __init__(self, commands: Connection, replies: Connection, log_file: Path) -> None:
        self._commands, self._replies, self._log_file = commands, replies, log_file
        self._sending = threading.Lock()
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="reading")
        self._rendering = ThreadPoolExecutor(1, thread_name_prefix="rendering")
        self._compiling = ThreadPoolExecutor(COMPILING, thread_name_prefix="compiling")
        self._flags: dict[int, CancelFlag] = {}  # of requests that are open, or still in the inbox
        self._open: set[int] = set()
        self._rows: list[tuple[int, tuple[Any, ...]]] = []
        self._sent_s = float("-inf")
        self._notes: list[str] = []
        self._n_told = 0

    def run(self, settings: LoadSettings) -> None:
        """Load, then do what is asked until the parent says to close."""
        threading.Thread(target=self._listen, name="parent", daemon=True).start()
        from edgespec.runtime.runtime import Runtime

        try:
            runtime = Runtime(settings, lambda what, done: self.send("progress", (what, done)))
        except Exception as error:
            self._fail(LOADED, error)
            return
        with runtime:
            self._notes = runtime.notes
            runtime.kept_states.gives_way = lambda: not self._inbox.empty()
            self.send("done", (LOADED, (runtime.has_chat_template, runtime.settings, runtime.describe())))
            stream = Stream(runtime.loop, apart=True)
            while (command := self._next(wait=stream.is_over)) is None or command[0] != CLOSE:
                if command is not None:
                    self._obey(runtime, stream, *command)
                    continue
                try:
                    self._tell(stream.take())
                except Exception as error:  # nobody knows what of: it ends all answers
                    stream.close()
                    stream = Stream(runtime.loop, apart=True)
                    self._tell_failure(error)
            for threads in (self._reading, self._rendering, self._compiling):
                threads.shutdown(cancel_futures=True)

    def send(self, kind: str, value: Any) -> None:
        """One message to the parent, with the notes that are new."""
        with self._sending:
            n_told, self._n_told = self._n_told, len(self._notes)
            self._replies.send((kind, value, self._notes[n_told:]))

    def _next(self, *, wait: bool) -> Any:
        """What the parent says next; None where it says nothing, and there is something else to do."""
        try:
            return self._inbox.get(block=wait)
        except queue.Empty:
            return None

    def _listen(self) -> None:
        while True:
            try:
                command = self._commands.recv()
                if command[0] == PING:
                    self._pong()
                    continue
            except (EOFError, OSError):
                self._leave()
            kind, id, *_ = command
            if kind == ADD:
                self._flags[id] = CancelFlag()
            elif kind in (CANCEL, CLOSE):
                for flag in [self._flags.get(id)] if kind == CANCEL else [*self._flags.values()]:
                    if flag is not None:
                        flag.set()
            if kind != CANCEL:
                self._inbox.put(command)

    def _pong(self) -> None:
        """Give a sign of life, unless another thread is just sending one."""
        if self._sending.acquire(blocking=False):
            try:
                self._replies.send((PONG, None, ()))
            finally:
                self._sending.release()

    def _leave(self) -> NoReturn:
        """End as it stands: there is nobody to hear of anything."""
        remove_unfinished()
        with suppress(OSError):  # Windows removes no file that is open
            self._log_file.unlink()
        kill_all(os.getpid())
        os._exit(1)

    def _obey(self, runtime: Runtime, stream: Stream, kind: str, id: int, what: Any, tells: bool = False) -> None:
        """Do what was asked, or let another thread do what the engine must not wait for."""
        os.ftruncate(2, 0)  # words about what went before are not the last ones
        try:
            if kind == READY and what is None:
                stream.put(id, TokenEvent(-1, "", finish_reason="cancelled", stats=Stats()))
            elif kind == READY:
                self._open.add(id)
                stream.add(id, what, self._flags[id], tells=tells)
            elif kind == ADD:
                self._elsewhere(runtime, pickle.loads(what), self._prepare, runtime, id, tells)
            else:
                name, args, settings = pickle.loads(what)
                if name.startswith(OF_TEXTS):
                    self._reading.submit(self._answer, id, lambda: attrgetter(name)(runtime)(*args, **settings))
                elif name == "check_settings":
                    self._elsewhere(
                        runtime, args[0], lambda request: self._answer(id, partial(runtime.check_settings, request))
                    )
                else:
                    self._answer(id, lambda: self._called(runtime, stream, name, args, settings))
        except Exception as error:
            stream.put(id, _unexpected(error))

    def _elsewhere(self, runtime: Runtime, request: Request, work: Callable[..., None], *args: Any) -> None:
        """Do some work with a request; in another thread if it takes long, or waits for another process."""
        if runtime.grammars.must_compile(request):
            self._compiling.submit(work, *args, request)
        elif runtime.prompts.effort(request) > LONG:
            self._reading.submit(work, *args, request)
        elif request.messages:
            self._rendering.submit(work, *args, request)
        else:
            work(*args, request)

    def _prepare(self, runtime: Runtime, id: int, tells: bool, request: Request) -> None:
        """Make a request ready for the engine, unless it is cancelled."""
        cancel = self._flags[id]
        prepared = None if cancel.is_set() else runtime.prepared(request, cancel)
        self._inbox.put((READY, id, None if cancel.is_set() else prepared, tells))

    def _answer(self, id: int, call: Callable[[], Any]) -> None:
        try:
            self.send("done", (id, call()))
        except Exception as error:
            self._fail(id, error)

    def _called(
        self, runtime: Runtime, stream: Stream, name: str, args: tuple[Any, ...], settings: dict[str, Any]
    ) -> Any:
        if name in WHILE_IDLE:
            while stream.open and all(self._flags[number].is_set() for number in stream.open):
                self._tell(stream.take())  # nobody waits for these any more
        if name in WHILE_IDLE and stream.open:
            raise UsageError("this model is already generating", hint="finish or close the other answers first")
        done = attrgetter(name)(runtime)(*args, **settings)
        return (runtime.settings, runtime.describe()) if name == "draft_with" else done

    def _tell(self, events: Iterable[tuple[int, TokenEvent | EdgespecError]]) -> None:
        """Send events with the id of their request, several at a time where they come fast."""
        is_urgent = False
        for id, event in events:
            self._rows.append((id, error_row(event) if isinstance(event, EdgespecError) else _row(event)))
            if isinstance(event, EdgespecError) or event.is_last:
                is_urgent = True
                if isinstance(event, EdgespecError) or event.finish_reason != "error":  # behind which comes the reason
                    self._forget(id)
            elif event.round == 0:
                is_urgent = True
        if self._rows and (is_urgent or perf_counter() - self._sent_s > BATCH_S):
            self.send("events", self._rows)
            self._rows, self._sent_s = [], perf_counter()

    def _tell_failure(self, error: Exception) -> None:
        if self._rows:
            self.send("events", self._rows)
            self._rows = []
        ids = [*self._open]
        self.send("failed", (ids, error_row(error if isinstance(error, EdgespecError) else _unexpected(error))))
        for id in ids:
            self._forget(id)

    def _forget(self, id: int) -> None:
        self._open.discard(id)
        self._flags.pop(id, None)

    def _fail(self, id: int, error: Exception) -> None:
        """Send the error of a call as something that surely survives the way: not every exception can be pickled."""
        if isinstance(error, EdgespecError):
            self.send("error", (id, error_row(error)))
            return
        log.debug("%s", traceback.format_exc())
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            self.send("error", (id, error_row(_unexpected(error))))
        else:
            self.send("error", (id, error))


def _unexpected(error: Exception) -> GenerationError:
    return GenerationError(f"unexpected {type(error).__name__}", why=str(error))


def error_row(error: EdgespecError) -> tuple[Any, ...]:
    """An error as something that surely survives the way."""
    return type(error), error.what, error.why, error.hint


class _Forwarding(logging.Handler):
    """Sends records to the parent; errors are last words too, in case nothing follows them."""

    def __init__(self, child: _Child) -> None:
        super().__init__()
        self._child = child

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.ERROR:
            print(text, file=sys.stderr, flush=True)
        with suppress(OSError):
            self._child.send("log", (record.name, record.levelno, text))
