"""The worker process: it runs the model for its parent, and ends with it.

The main thread runs the model. Between forward passes it takes in commands, and it sleeps while there is nothing to
do. Another thread listens to the parent, so that a cancel stops a pass in the middle of native code, and the process
ends as soon as its parent has ended. Other threads do what answers must not wait for: they read long prompts (seconds),
render chat templates (in another process, which may hang), and compile new constraints (seconds).
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, UsageError, for_users
from edgespec.events import TokenEvent
from edgespec.files.unfinished import remove_unfinished
from edgespec.llm.notes import Notes
from edgespec.llm.stream import Event, Stream
from edgespec.settings import Inputs, LoadSettings, Request

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from edgespec.llm.info import ModelInfo
    from edgespec.runtime.embedding_runtime import EmbeddingRuntime
    from edgespec.runtime.runtime import Runtime, Work

    Loaded = Runtime | EmbeddingRuntime

BATCH_S = 0.015  # tokens that follow faster than this share a message
COMPILING = 32  # threads: many more than can wait for the slow compiler (`compiler.MOST_WAITING`)
ADD, CALL, CANCEL, CLOSE, PING = "add", "call", "cancel", "close", "ping"
END_REASONING = "end reasoning"
PONG = "pong"
READY = "ready"  # a request of ADD that the engine can begin with; None: it was cancelled before
OF_TEXTS = "prompts."  # calls that need no engine
LOADED = 0  # the id of the first reply
WHILE_IDLE = ("draft_with", "forget")  # calls that would change running answers
DEAF_TO = {getattr(signal, name) for name in ("SIGINT", "SIGHUP", "SIGBREAK") if hasattr(signal, name)}

log = logging.getLogger("edgespec.runtime.worker")


def run_child(commands: Connection, replies: Connection, settings: LoadSettings, log_file: Path, level: int) -> None:
    """Serve the Worker at the other end of the pipes until it sends CLOSE.

    Commands are ADD with a request, CALL with the name and the arguments of a method, CANCEL and CLOSE, each with an
    id, and PING, which the listening thread answers at once. Replies have a kind, a value and new notes. Their kinds
    are "events" of requests, "reply" with the id of a call and its value or exception, "progress", "log" and PONG.
    """
    _settle_in(log_file)
    child = _Child(commands, replies, log_file)
    logger = logging.getLogger("edgespec")
    logger.handlers, logger.propagate = [_Forwarding(child)], False  # in place of any that the main module set up
    logger.setLevel(level)
    child.run(settings)


def kill_all(pid: int | None) -> None:
    """End the processes that a child has started, and the child itself except on Windows."""
    if os.name == "posix":
        with suppress(OSError):  # it has no process group yet, or the group is empty
            if pid is not None:
                os.killpg(pid, signal.SIGKILL)
        return
    import psutil

    with suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            process.kill()


def _settle_in(log_file: Path) -> None:
    """Leave the terminal: ignore its signals, use another process group, and write to a file instead of the screen."""
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    words = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
    for source, target in ((nothing, 0), (words, 1), (words, 2)):
        os.dup2(source, target)
    if os.name == "posix":
        import resource

        signal.pthread_sigmask(signal.SIG_UNBLOCK, DEAF_TO)
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # gigabytes, with the conversation in them


class _Child:
    """A Runtime, and the commands of the parent."""

    def __init__(self, commands: Connection, replies: Connection, log_file: Path) -> None:
        self._commands, self._replies, self._log_file = commands, replies, log_file
        self._sending = threading.Lock()
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads: dict[Work | None, ThreadPoolExecutor] = {
            name: ThreadPoolExecutor(COMPILING if name == "compiling" else 1, thread_name_prefix=name)
            for name in ("reading", "rendering", "compiling")
        }
        self._flags: dict[int, CancelFlag] = {}  # of requests that are open or in the inbox
        self._events: list[Event] = []
        self._sent_s = float("-inf")
        self._notes = Notes()

    def run(self, settings: LoadSettings) -> None:
        """Load the model, then obey commands until CLOSE."""
        threading.Thread(target=self._listen, name="parent", daemon=True).start()
        from edgespec.runtime.embedding_runtime import open_runtime

        try:
            runtime = open_runtime(
                settings, lambda what, done: self.send("progress", (what, done)), lambda: not self._inbox.empty()
            )
        except Exception as error:
            self._reply(LOADED, error)
            return
        with runtime:
            self._notes = runtime.notes
            self._reply(LOADED, (runtime.settings, runtime.info))
            stream = Stream(runtime.loop, apart=True)
            while (command := self._next(wait=stream.is_over)) is None or command[0] != CLOSE:
                if command is not None:
                    self._obey(runtime, stream, *command)
                    continue
                try:
                    self._tell(stream.take())
                except Exception as error:  # it is not known which answer caused it: it ends all
                    broken, last = [*stream.open], TokenEvent(-1, "", finish_reason="error", stats=Stats())
                    self._tell(stream.arrived())
                    stream.close()
                    stream = Stream(runtime.loop, apart=True)
                    self._tell((id, event) for id in broken for event in (last, for_users(error)))
            for threads in self._threads.values():
                threads.shutdown(cancel_futures=True)

    def send(self, kind: str, value: object) -> None:
        """Send a message to the parent, with the new notes."""
        with self._sending:
            self._replies.send((kind, value, self._notes.take()))

    def _next(self, *, wait: bool) -> Any:
        """Return the next command; None if there is none yet and answers are open."""
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
            # Set flags here, since the main thread may be in a long pass, which a flag stops in native code.
            cancelled = [id] if kind == CANCEL else [*self._flags] if kind == CLOSE else []
            for flag in filter(None, map(self._flags.get, cancelled)):
                flag.set()
            for flag in filter(None, [self._flags.get(id)] if kind == END_REASONING else []):
                flag.end_reasoning()
            if kind not in (CANCEL, END_REASONING):
                self._inbox.put(command)

    def _pong(self) -> None:
        """Answer a ping, unless another thread is sending a message right now."""
        if self._sending.acquire(blocking=False):
            try:
                self._replies.send((PONG, None, ()))
            finally:
                self._sending.release()

    def _leave(self) -> NoReturn:
        """End at once, since the parent has ended."""
        remove_unfinished()
        with suppress(OSError):  # Windows removes no file that is open
            self._log_file.unlink()
        kill_all(os.getpid())
        os._exit(1)

    def _obey(self, runtime: Loaded, stream: Stream, kind: str, id: int, what: Any) -> None:
        """Do what was asked, or let another thread do what the engine must not wait for."""
        os.ftruncate(2, 0)  # messages about earlier work must not pass for the reason of a crash
        try:
            if kind == READY and what is None:
                stream.put(id, TokenEvent(-1, "", finish_reason="cancelled", stats=Stats()))
            elif kind == READY:
                stream.add(id, what, self._flags[id])
            elif kind == ADD:
                self._elsewhere(runtime, pickle.loads(what), partial(self._prepare, runtime, id))
            else:
                name, args, settings = pickle.loads(what)
                call = partial(runtime.call, name, *args, **settings)
                if name.startswith(OF_TEXTS):
                    self._threads["reading"].submit(self._answer, id, call)
                elif name == "check_settings":
                    self._elsewhere(runtime, args[0], lambda request: self._answer(id, call))
                elif name in WHILE_IDLE:
                    self._answer(id, lambda: self._changed(runtime, stream, call))
                else:
                    self._answer(id, call)
        except Exception as error:
            if kind == CALL:
                self._reply(id, error)
            else:
                stream.put(id, for_users(error))

    def _elsewhere(self, runtime: Loaded, request: Request | Inputs, work: Callable[[Request | Inputs], None]) -> None:
        """Do some work with a request; in another thread if it takes long, or waits for another process."""
        threads = self._threads.get(runtime.waits_for(request))
        if threads is None:
            work(request)
        else:
            threads.submit(work, request)

    def _prepare(self, runtime: Loaded, id: int, request: Request | Inputs) -> None:
        """Make a request ready for the engine, unless it is cancelled."""
        cancel = self._flags[id]
        prepared = None if cancel.is_set() else runtime.prepared(request, cancel)
        self._inbox.put((READY, id, None if cancel.is_set() else prepared))

    def _changed(self, runtime: Loaded, stream: Stream, change: Callable[[], object]) -> tuple[LoadSettings, ModelInfo]:
        """Change the model, and return what describes it. Raises UsageError while an answer is generated."""
        while stream.open and all(self._flags[number].is_set() for number in stream.open):
            self._tell(stream.take())  # these were cancelled
        if stream.open:
            raise UsageError("this model is already generating", hint="finish or close the other answers first")
        change()
        return runtime.settings, runtime.info

    def _answer(self, id: int, call: Callable[[], object]) -> None:
        try:
            value = call()
        except Exception as error:
            value = error
        self._reply(id, value)

    def _reply(self, id: int, value: object) -> None:
        """Send the value of a call, or its error; not every exception can be pickled."""
        if isinstance(value, Exception) and not isinstance(value, EdgespecError):
            log.debug("a call failed", exc_info=value)
            try:
                pickle.loads(pickle.dumps(value))
            except Exception:
                value = for_users(value)
        try:
            self.send("reply", (id, value))
        except (
            pickle.PicklingError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:  # or its caller would wait forever
            self.send("reply", (id, for_users(error)))

    def _tell(self, events: Iterable[Event]) -> None:
        """Send events with the ids of their requests, several in a message if they follow fast."""
        is_urgent = False
        for id, event in events:
            self._events.append((id, event))
            if isinstance(event, EdgespecError) or event.is_last:
                is_urgent = True
                self._flags.pop(id, None)
            elif event.round == 0:
                is_urgent = True
        if self._events and (is_urgent or perf_counter() - self._sent_s > BATCH_S):
            self.send("events", self._events)
            self._events, self._sent_s = [], perf_counter()


class _Forwarding(logging.Handler):
    """Sends log records to the parent, and writes errors to the file too, in case the process crashes next."""

    def __init__(self, child: _Child) -> None:
        super().__init__()
        self._child = child

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.ERROR:
            print(text, file=sys.stderr, flush=True)
        with suppress(OSError):
            self._child.send("log", (record.name, record.levelno, text))
