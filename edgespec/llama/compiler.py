"""Compiles constraints in processes that may die of them.

llguidance recurses over a grammar and has no limit of time: a hostile one would crash or block the process with the
model, and all of its answers. So each constraint is compiled in another process first, with limits of stack, processor
time and memory.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.errors import GenerationError, UsageError
from edgespec.llama.constraint import TOO_DEEP
from edgespec.settings import CONSTRAINTS, Constraint

QUICK_S, SLOW_S = 0.25, 2.0  # processor time: nearly all constraints take milliseconds
PATIENCE = 8  # by how much the time on the clock may be longer, on a busy machine
START_S = 60.0
MOST_WAITING = 4  # for the slow compiler
POLL_S = 0.05  # how long a cancel may go unnoticed
# -P: a file numpy.py in the current folder must not pass for numpy.
CHILD = (sys.executable, "-P", "-m", "edgespec.llama.compiler_process")

_NO_PROCESS = "cannot start a process to compile constraints"
_TIME = "compiling it takes longer than {seconds:g} s"
_MEMORY = "compiling it takes too much memory"
_LIMITS_HINT = "this is a limit of edgespec: use fewer, simpler or less nested rules"


SpecialTokens = Callable[[], Mapping[str, int]]
"""Returns the ids of a vocabulary's special tokens, which grammars in Lark can name."""


class NotWaitedForError(UsageError):
    """The request was cancelled while its constraint was compiled."""


class _TooSlowError(UsageError):
    """The limit of time."""


class Compiler(Closable):
    """Compiles constraints one at a time, each within `cpu_s` of processor time, in a process that starts when it is
    first needed and after it died. Without `special` tokens a grammar may name any token."""

    def __init__(self, cpu_s: float, most_waiting: int | None = None, special: SpecialTokens | None = None) -> None:
        self._cpu_s, self._most_waiting, self._special = cpu_s, most_waiting, special
        self._lock = threading.Lock()
        self._n_waiting = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._replies = queue.SimpleQueue[Any]()
        self._is_ready = False
        self._n_compiled = 0  # by this process

    def compiled(self, kind: Constraint, text: str, name: str = "", cancel: CancelFlag | None = None) -> str:
        """The constraint as llguidance's own grammar; `name` is the option. Raises UsageError, which says what is wrong
        or which limit is exceeded, and GenerationError if there is no process or too many wait for this one."""
        what = f"cannot use {name or f'this {CONSTRAINTS[kind]}'}"
        with self._turn(cancel):
            reply = self._asked(what, kind, text, name, cancel)
            if "failed" in reply and self._n_compiled:  # perhaps because of what earlier ones have left
                self._end()
                reply = self._asked(what, kind, text, name, cancel)
            self._n_compiled += 1
            if "failed" in reply:
                self._end()
        if "grammar" in reply:
            return str(reply["grammar"])
        if "refused" in reply:
            refused, why, hint = reply["refused"]
            raise UsageError(refused, why=why, hint=hint)
        raise UsageError(what, why={"memory": _MEMORY, "depth": TOO_DEEP}[reply["failed"]], hint=_LIMITS_HINT)

    def start(self) -> None:
        """Start the process if there is none, so that the next constraint need not wait for it."""
        if self._lock.acquire(blocking=False):
            try:
                with suppress(GenerationError):
                    self._start()
            finally:
                self._lock.release()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    @contextmanager
    def _turn(self, cancel: CancelFlag | None) -> Iterator[None]:
        """Wait until the process is free."""
        if self._most_waiting is not None and self._n_waiting >= self._most_waiting:
            raise GenerationError("too many constraints wait to be compiled", hint="try again later")
        self._n_waiting += 1  # not exact, if several threads come at once: it need not be
        try:
            acquire(self._lock, cancel)
        finally:
            self._n_waiting -= 1
        try:
            yield
        finally:
            self._lock.release()

    def _asked(self, what: str, kind: Constraint, text: str, name: str, cancel: CancelFlag | None) -> dict[str, Any]:
        """Return the reply of the process, or the kind of failure that ended it. Raises _TooSlowError."""
        process = self._started(cancel)
        assert process.stdin is not None
        special = self._special() if self._special is not None and kind == "grammar" else None
        question = {"kind": kind, "text": text, "name": name, "cpu_s": self._cpu_s, "special": special}
        with suppress(OSError):  # it died just now, as the missing reply will show
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
        reply, is_late = None, False
        try:
            reply = self._reply(self._cpu_s * PATIENCE, cancel)
        except TimeoutError:
            is_late = True
        except BaseException:  # the request was cancelled: a later question must not get this reply
            self._end()
            raise
        if reply is not None:
            return reply
        code = self._end()
        if is_late or code == _CPU_TIME_OVER:
            raise _TooSlowError(what, why=_TIME.format(seconds=self._cpu_s), hint=_LIMITS_HINT)
        return {"failed": "memory" if code in _NO_MEMORY else "depth"}

    def _reply(self, within_s: float, cancel: CancelFlag | None) -> dict[str, Any] | None:
        """The next reply, None if the process has died. Raises TimeoutError, and NotWaitedForError."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            try:
                reply: dict[str, Any] | None = self._replies.get(timeout=POLL_S)
            except queue.Empty:
                _check(cancel)
            else:
                return reply
        raise TimeoutError

    def _started(self, cancel: CancelFlag | None, tries: int = 2) -> subprocess.Popen[bytes]:
        """The process, when it is ready. Raises GenerationError."""
        process = self._start()
        if not self._is_ready:
            try:
                ready = self._reply(START_S, cancel)
            except TimeoutError:
                ready, tries = None, 1
            if ready is None:
                code = self._end()
                if tries > 1:  # it was killed while it started
                    return self._started(cancel, tries - 1)
                raise GenerationError(_NO_PROCESS, why=f"it ended with code {code}")
            self._is_ready = True
        return process

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            try:
                process = subprocess.Popen(
                    CHILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                )
            except OSError as error:
                raise GenerationError(_NO_PROCESS, why=str(error)) from error
            self._at_last = weakref.finalize(self, process.kill)  # for those who do not close
            self._process, self._replies, self._is_ready, self._n_compiled = process, queue.SimpleQueue(), False, 0
            threading.Thread(target=_hear, args=(process, self._replies), name="compiler", daemon=True).start()
        return self._process

    def _end(self) -> int:
        """End the process, if there is one; its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        self._at_last.detach()
        process.kill()  # no effect on one that has died
        code = process.wait()
        if process.stdin is not None:
            with suppress(OSError):  # what it has not read
                process.stdin.close()
        return code


class Compilers(Closable):
    """A quick compiler for nearly all constraints, and a slow one for the rest, so that those that take long never hold
    up the others."""

    def __init__(self, special: SpecialTokens | None = None) -> None:
        self._quick = Compiler(QUICK_S, special=special)
        self._slow = Compiler(SLOW_S, MOST_WAITING, special)

    def compiled(self, kind: Constraint, text: str, name: str = "", cancel: CancelFlag | None = None) -> str:
        """As `Compiler.compiled`."""
        try:
            return self._quick.compiled(kind, text, name, cancel)
        except _TooSlowError:
            self._quick.start()
            return self._slow.compiled(kind, text, name, cancel)

    def close(self) -> None:
        """End both processes."""
        self._quick.close()
        self._slow.close()


def acquire(lock: threading.Lock, cancel: CancelFlag | None) -> None:
    """Wait for a lock. Raises NotWaitedForError when `cancel` is set meanwhile."""
    while not lock.acquire(timeout=POLL_S):
        _check(cancel)


def _hear(process: subprocess.Popen[bytes], replies: queue.SimpleQueue[Any]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            replies.put(json.loads(line))
    replies.put(None)


def _check(cancel: CancelFlag | None) -> None:
    if cancel is not None and cancel.is_set():
        raise NotWaitedForError("nobody waits for this answer")


# Exit codes. Rust aborts where it gets no memory; Linux kills where there is none.
_CPU_TIME_OVER = -getattr(signal, "SIGPROF", 0)
_NO_MEMORY = {-signal.SIGABRT, -getattr(signal, "SIGKILL", 0), 0xC0000409}
