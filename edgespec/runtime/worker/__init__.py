"""The runtime in a process of its own: whatever becomes of that process, the conversation survives it."""

from __future__ import annotations

import logging
import multiprocessing
import os
import secrets
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stderr, suppress
from multiprocessing.connection import wait
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError, GenerationError, UsageError
from edgespec.events import Progress, TokenEvent
from edgespec.runtime.worker.child import CANCEL, CLOSE, DEAF_TO, REQUEST, kill_all, run_child
from edgespec.runtime.worker.death import Remedy, WorkerDiedError, explained, remedies
from edgespec.settings import LoadSettings, Message, Request, drafting_changes

if TYPE_CHECKING:
    from edgespec.core.policy.measured import PolicyVerdict

__all__ = ["LoadingStoppedError", "Remedy", "Worker", "WorkerDiedError", "remedies"]

AHEAD = 2  # requests that are sent for each that can be answered at a time
POLL_S = 0.03  # how long a cancel may go unnoticed
GRACE_S = 3.0  # for a child to save what it learnt

log = logging.getLogger(__name__)
# What the child logs must not reach the terminal just because nobody here has set up logging.
logging.getLogger("edgespec").addHandler(logging.NullHandler())

Reply = tuple[str, Any]
_END = object()
_LAST = ("done", "error", "closed")  # replies that nothing follows


class LoadingStoppedError(EdgespecError):
    """The cancel flag was set before the model was loaded."""


class Worker(Closable):
    """A `Runtime` in a process of its own, with the same requests, events and errors.

    It loads before it returns, calls `progress` as a Runtime does, and stops when `cancel` is set: LoadingStoppedError.
    One thing at a time is asked of it: while an answer is made, what asks the child raises UsageError. Once the child
    has died everything raises WorkerDiedError. `describe`, `settings`, `notes` and `stats` (of the last answer) are
    what the parent remembers, and always there. A script that makes one needs `if __name__ == "__main__":`, since its
    module is imported by the child too.
    """

    def __init__(
        self, settings: LoadSettings, progress: Progress | None = None, cancel: CancelFlag | None = None
    ) -> None:
        self.settings = settings
        self.notes: list[str] = []
        self.stats = Stats()
        self._progress = progress or (lambda what, done: None)
        self._lock = threading.RLock()  # whoever holds it may use the pipes
        self._answering = self._closed = False
        self._death: WorkerDiedError | None = None
        self._start()
        try:
            while (reply := self._receive()) is None:
                if cancel is not None and cancel.is_set():
                    raise LoadingStoppedError(f"loading {settings.model} was cancelled")
            self.has_chat_template, self.settings, self._about = self._result(reply)
        except BaseException:
            self._closed = True
            self._end()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked for anything."""
        return not self._closed and self._death is None and not wait([self._process.sentinel], timeout=0)

    def close(self) -> None:
        """Let the child save what it learnt and end, or end it; safe to call twice. An answer in the making ends."""
        if self._closed:
            return
        self._closed = True  # a thread that waits for an answer sees it and lets go of the pipes
        if self._lock.acquire(timeout=GRACE_S):
            with suppress(EOFError, OSError):
                self._commands.send(CANCEL)
                self._commands.send(CLOSE)
                until_s = perf_counter() + GRACE_S
                while self._replies.poll(max(0.0, until_s - perf_counter())):
                    self._replies.recv()
            self._lock.release()
        self._end()

    # --- what a Runtime has ---------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """What is loaded, as plain data."""
        return dict(self._about)

    def draft_with(
        self,
        *,
        spec_type: str | None = None,
        pace: str | None = None,
        spec_draft_n_max: int | None = None,
        spec_tree: int | None = None,
        n_max: int | None = None,
        tree: int | None = None,
    ) -> None:
        """DraftCandidate in another way from the next answer on, as `Runtime.draft_with` does. Raises UsageError."""
        changes = drafting_changes(
            spec_type=spec_type,
            pace=pace,
            spec_draft_n_max=spec_draft_n_max,
            spec_tree=spec_tree,
            n_max=n_max,
            tree=tree,
        )
        self.settings, self._about = self._call("draft_with", **changes)

    def pace_verdicts(self, request: Request) -> list[PolicyVerdict]:
        """Why drafters guess or rest on requests like this one; empty where no pace measures it."""
        verdicts: list[PolicyVerdict] = self._call("pace_verdicts", request)
        return verdicts

    def check_settings(self, request: Request) -> None:
        """Whether this can be meant for this model, whatever the prompt. Raises UsageError."""
        self._call("check_settings", request)

    def count(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt that these messages make."""
        return int(self._call("count", list(messages)))

    def tokenize(self, request: Request) -> list[int]:
        """The prompt of a request as ids. Raises UsageError."""
        return list(self._call("tokenize", request))

    def token_text(self, token: int) -> str:
        """What one id stands for; a part of a character shows as U+FFFD."""
        return str(self._call("token_text", token))

    def forget(self) -> None:
        """Let the next answer find nothing in a cache that the last one has left."""
        self._call("forget")

    def answer(self, request: Request, cancel: CancelFlag | None = None) -> Generator[TokenEvent, None, None]:
        """The events of one answer, the last one with its finish reason; none such when the worker is closed meanwhile.

        Raises UsageError as a Runtime does, WorkerDiedError in the middle of the answer.
        """
        self._call("check", request)
        return self._answer(request, cancel or CancelFlag())

    def stream(
        self, requests: Iterable[Request | None], cancel: CancelFlag | None = None
    ) -> Generator[tuple[int, TokenEvent | EdgespecError], None, None]:
        """Many answers at once, with the index of their request; requests are taken a few ahead, until `cancel` is set.

        None in place of a request says that there is none yet, so that events need not wait for it. An error in place
        of an event says why a request is not answered; the others are. Raises WorkerDiedError.
        """
        ahead = AHEAD * int(self._about["sequences"])
        return self._exchange(("stream", (), {}), iter(requests), ahead, cancel or CancelFlag())

    # --- the parent's end of the pipes ----------------------------------------------------------------------------

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._log_file = Path(tempfile.gettempdir()) / f"edgespec-{secrets.token_hex(8)}.log"
        commands, self._commands = spawn.Pipe(duplex=False)
        self._replies, replies = spawn.Pipe(duplex=False)
        level = logging.getLogger("edgespec").getEffectiveLevel()
        self._process = spawn.Process(
            target=run_child,
            args=(commands, replies, self.settings, self._log_file, level),
            name="edgespec",
            daemon=True,
        )
        try:
            with _sheltered():
                self._process.start()
        except OSError as error:
            raise GenerationError("cannot start a process for the model", why=str(error)) from error
        finally:
            commands.close()
            replies.close()

    def _call(self, name: str, *args: Any, **settings: Any) -> Any:
        """What the child's method of that name returns or raises."""
        with self._turn():
            self._send((name, args, settings))
            try:
                while (reply := self._receive()) is None:
                    pass
            except BaseException:
                self._drain()
                raise
            return self._result(reply)

    def _answer(self, request: Request, cancel: CancelFlag) -> Generator[TokenEvent, None, None]:
        with closing(self._exchange(("answer", (request,), {}), iter(()), 0, cancel)) as events:
            for _, event in events:
                assert isinstance(event, TokenEvent)
                yield event

    def _exchange(
        self, command: Any, requests: Iterator[Request | None], ahead: int, cancel: CancelFlag
    ) -> Generator[tuple[int, TokenEvent | EdgespecError], None, None]:
        """Send a command, then so many requests ahead of their answers; hear what comes of them."""
        with self._turn():
            self._send(command)
            self._answering = True
            self.stats = Stats()
        told = over = is_last = False
        try:
            while not over:
                if cancel.is_set() and not told:
                    self._send(CANCEL)
                    told = is_last = True
                while ahead > 0 and not is_last:
                    request = next(requests, _END)
                    if request is None:
                        break
                    is_last = request is _END
                    self._send((REQUEST, None if is_last else request))
                    ahead -= 1
                if (reply := self._receive()) is None:
                    continue
                if reply[0] == "events":
                    for index, event in self._events(reply[1]):
                        ahead += isinstance(event, EdgespecError) or event.finish_reason is not None
                        yield index, event
                    continue
                over = True
                if reply[0] != "closed":
                    self._result(reply)
        finally:
            if not over:
                self._drain()
            self._answering = False

    def _drain(self) -> None:
        """Let the child break off what it is at, and pass over what still comes of that."""
        with suppress(WorkerDiedError):
            if self._death is None:
                self._send(CANCEL)
            while self._death is None:
                reply = self._read()
                if reply is not None and reply[0] == "events":
                    for _ in self._events(reply[1]):
                        pass
                elif reply is not None and reply[0] in _LAST:
                    return

    def _events(self, rows: list[tuple[int, tuple[Any, ...]]]) -> Iterator[tuple[int, TokenEvent | EdgespecError]]:
        for index, row in rows:
            if isinstance(row[0], type):
                yield index, _error(row)
                continue
            event = TokenEvent(*row)
            self.stats = event.stats or self.stats
            yield index, event

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """The pipes, for one question. Raises UsageError during an answer, which nobody should have to wait for."""
        self._check()
        while not self._lock.acquire(timeout=POLL_S):
            self._check()
        try:
            self._check()
            yield
        finally:
            self._lock.release()

    def _check(self) -> None:
        if self._closed:
            raise UsageError("this model is closed")
        if self._death is not None:
            raise self._death.with_traceback(None)
        if self._answering:
            raise UsageError("this model is already generating", hint="finish or close the other answer first")

    def _send(self, message: Any) -> None:
        with self._lock:
            if self._closed:
                return
            try:
                self._commands.send(message)
            except OSError:
                raise self._died() from None

    def _receive(self) -> Reply | None:
        """The next reply that is for the caller; None where there is none yet. Raises WorkerDiedError."""
        reply = self._read()
        if reply is None or reply[0] in ("events", *_LAST):
            return reply
        kind, value = reply
        if kind == "progress":
            self._progress(*value)
        else:
            name, level, text = value
            logging.getLogger(name).log(level, "%s", text)
        return None

    def _read(self) -> Reply | None:
        with self._lock:
            if self._closed:
                return "closed", None
            try:
                if not self._replies.poll(POLL_S):
                    return None
                kind, value, notes = self._replies.recv()
            except (EOFError, OSError):
                raise self._died() from None
            self.notes.extend(notes)
            return kind, value

    def _result(self, reply: Reply) -> Any:
        kind, value = reply
        if kind == "done":
            return value
        if kind == "closed":
            raise UsageError("this model is closed")
        if isinstance(value, Exception):
            raise value
        raise _error(value)

    def _died(self) -> WorkerDiedError:
        """What to tell of a child whose pipe is closed."""
        self._process.join(GRACE_S)
        code = self._process.exitcode
        try:
            said = self._log_file.read_bytes()[-8192:].decode("utf-8", "replace").strip()
        except OSError:
            said = ""
        log.debug("the worker ended with code %s, its last output:\n%s", code, said)
        self._death = explained(code, said.splitlines())
        return self._death

    def _end(self) -> None:
        """End the child, which goes by itself when nobody can ask it any more, and let go of everything."""
        self._commands.close()
        self._process.join(0.1)
        kill_all(self._process.pid)
        self._process.kill()
        self._process.join()
        self._replies.close()
        self._log_file.unlink(missing_ok=True)


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

        # First, since its start unblocks SIGINT. It asks stderr for a file descriptor, and Textual's has none.
        with redirect_stderr(sys.__stderr__):
            resource_tracker.ensure_running()
        blocked = DEAF_TO - signal.pthread_sigmask(signal.SIG_BLOCK, DEAF_TO)
    try:
        yield
    finally:
        if blocked:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before
