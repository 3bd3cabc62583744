"""The process with the model: what it does for its parent, and how it ends when nobody asks for it any more.

The main thread runs the models. Another one hears the parent, so that a cancel reaches a decode in the middle of native
code, and a child whose parent is gone ends at once.
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
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError, GenerationError
from edgespec.events import TokenEvent
from edgespec.files.unfinished import remove_unfinished
from edgespec.settings import LoadSettings, Request

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from edgespec.runtime.runtime import Runtime

BATCH_S = 0.015  # tokens that come faster than this share a message
CANCEL, CLOSE, REQUEST = "cancel", "close", "request"
DEAF_TO = {getattr(signal, name) for name in ("SIGINT", "SIGHUP", "SIGBREAK") if hasattr(signal, name)}

log = logging.getLogger("edgespec.runtime.worker")
_row = attrgetter(*(field.name for field in fields(TokenEvent)))  # pickling tuples takes a tenth of the time


def run_child(commands: Connection, replies: Connection, settings: LoadSettings, log_file: Path, level: int) -> None:
    """Serve the Worker at the other end of the pipes until it says to close.

    Commands are CANCEL, CLOSE, or a method's name with its arguments. Replies are of a kind ("progress", "log",
    "events", and at last "done" or "error"), with a value and the notes that are new.
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
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._cancel = CancelFlag()
        self._checked: tuple[Request, Generator[TokenEvent, None, None]] | None = None
        self._notes: list[str] = []
        self._n_told = 0

    def run(self, settings: LoadSettings) -> None:
        """Load, then do what is asked until the parent says to close."""
        threading.Thread(target=self._listen, name="parent", daemon=True).start()
        from edgespec.runtime.runtime import Runtime

        try:
            runtime = Runtime(settings, lambda what, done: self.send("progress", (what, done)))
        except Exception as error:
            self._fail(error)
            return
        with runtime:
            self._notes = runtime.notes
            self.send("done", (runtime.has_chat_template, runtime.settings, runtime.describe()))
            while (task := self._tasks.get()) != CLOSE:
                os.ftruncate(2, 0)  # words about what went before are not the last ones
                try:
                    self.send("done", self._do(runtime, *task))
                except Exception as error:
                    self._fail(error)

    def send(self, kind: str, value: Any) -> None:
        """One message to the parent, with the notes that are new."""
        with self._sending:
            n_told, self._n_told = self._n_told, len(self._notes)
            self._replies.send((kind, value, self._notes[n_told:]))

    def _listen(self) -> None:
        while True:
            try:
                command = self._commands.recv()
            except (EOFError, OSError):
                self._leave()
            except Exception as error:  # what cannot be unpickled here
                self._fail(error)
                continue
            if command == CANCEL:
                self._cancel.set()
                self._requests.put(None)  # for who waits there
                continue
            if command[0] == REQUEST:
                self._requests.put(command[1])
                continue
            if command[0] in ("answer", "stream"):
                self._cancel.clear()  # in the order of commands: what comes behind this one is meant for it
                self._requests = queue.SimpleQueue()
            self._tasks.put(command)

    def _leave(self) -> NoReturn:
        """End as it stands: there is nobody to hear of anything."""
        remove_unfinished()
        with suppress(OSError):  # Windows removes no file that is open
            self._log_file.unlink()
        kill_all(os.getpid())
        os._exit(1)

    def _do(self, runtime: Runtime, name: str, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        if name == "check":
            self._checked = args[0], runtime.answer(args[0], self._cancel)
            return None
        if name == "answer":
            return self._send_events(runtime, ((0, event) for event in self._answer(runtime, args[0])))
        if name == "stream":
            return self._send_events(runtime, runtime.stream(self._arriving(runtime), self._cancel))
        done = getattr(runtime, name)(*args, **settings)
        return (runtime.settings, runtime.describe()) if name == "draft_with" else done

    def _answer(self, runtime: Runtime, request: Request) -> Generator[TokenEvent, None, None]:
        checked, self._checked = self._checked, None
        return checked[1] if checked and checked[0] == request else runtime.answer(request, self._cancel)

    def _arriving(self, runtime: Runtime) -> Iterator[Request | None]:
        """The requests of a stream as they come; None where there is none yet, but enough to do."""
        requests = self._requests
        while True:
            try:
                request = requests.get(block=not runtime.engine.scheduler.active)
            except queue.Empty:
                yield None
                continue
            if request is None:
                return
            yield request

    def _send_events(self, runtime: Runtime, stream: Iterable[tuple[int, TokenEvent | EdgespecError]]) -> None:
        """Send events with the index of their request, several at a time where they come fast."""
        rows: list[tuple[int, tuple[Any, ...]]] = []
        n_events, sent_s = 0, float("-inf")
        try:
            for index, event in stream:
                rows.append((index, error_row(event) if isinstance(event, EdgespecError) else _row(event)))
                n_events += 1
                # What is left of a round comes without delay; then there is a pass, which may take its time.
                is_round = n_events >= runtime.stats.generated_tokens
                is_last = isinstance(event, EdgespecError) or event.finish_reason is not None
                if is_last or (is_round and perf_counter() - sent_s > BATCH_S):
                    self.send("events", rows)
                    rows, sent_s = [], perf_counter()
        finally:
            if rows:
                self.send("events", rows)

    def _fail(self, error: Exception) -> None:
        """Send an error as something that surely survives the way: not every exception can be pickled."""
        if isinstance(error, EdgespecError):
            self.send("error", error_row(error))
            return
        log.debug("%s", traceback.format_exc())
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            self.send("error", (GenerationError, f"unexpected {type(error).__name__}", str(error), ""))
        else:
            self.send("error", error)


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
