"""Child processes that do work which may crash, hang or take all of the memory.

The parent sends a question and gets a reply, each a line of JSON; before the reply the child may report its progress.
The parent watches the processor time and the memory of the child, and ends a child that exceeds a limit; the next
question starts a new one. `Child` is for the parent, `answer` for the child.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic
from typing import IO, Any, TypeVar

import psutil

from edgespec.cancel import CancelFlag
from edgespec.closable import Closable
from edgespec.errors import GenerationError, UsageError

Progress = TypeVar("Progress")  # JSON that a child reports before its reply

LOOK_S = 0.02  # seconds between two checks of a child
# Seconds after which a busy child ends by itself: its parent may have died, and can no longer end it. A child that
# reports progress fails at the next report instead.
ALONE_S = 90
# glibc reserves 128 MB of addresses for each further thread that allocates, which would count as memory in use.
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "PYTHONUTF8": "1"}
# Exit codes without memory: Rust aborts, Linux kills.
_NO_MEMORY = {-signal.SIGABRT, -getattr(signal, "SIGKILL", 0), 0xC0000409}


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one piece of work, or of the time between two reports of progress. Processor time is the usual
    limit, since a busy machine does not use it up; `clock_s` is for a child that gets no processor time at all."""

    cpu_s: float = inf
    clock_s: float = inf
    memory_bytes: float = inf


class Meter:
    """Measures the time and the memory that a process has used since the meter was made."""

    def __init__(self, pid: int) -> None:
        self._process: psutil.Process | None = None
        with suppress(psutil.Error):  # it has just ended
            self._process = psutil.Process(pid)
        self._started_s = monotonic()
        self._cpu_s, self._bytes = self._used()

    def exceeded(self, limits: Limits) -> str:
        """Return the first limit that the process has exceeded: "time", "memory", "clock" or ""."""
        cpu_s, n_bytes = self._used()
        if cpu_s - self._cpu_s > limits.cpu_s:
            return "time"
        if n_bytes - self._bytes > limits.memory_bytes:
            return "memory"
        return "clock" if monotonic() - self._started_s > limits.clock_s else ""

    def _used(self) -> tuple[float, int]:
        """Return seconds of processor time and bytes of memory; zero for a process that has just ended."""
        if self._process is None:
            return 0.0, 0
        try:
            times = self._process.cpu_times()
            return times.user + times.system, self._process.memory_info().rss
        except psutil.Error:
            return 0.0, 0


START_LIMITS = Limits(cpu_s=60, clock_s=60, memory_bytes=1 << 30)


class NotWaitedForError(UsageError):
    """The request was cancelled before its question was answered."""


def running(module: str) -> tuple[str, ...]:
    """Return the command that runs a module of this program."""
    return sys.executable, "-P", "-m", module  # -P: a file json.py in the current folder must not pass for Python's


class Child(Closable):
    """Runs `command`, which calls `answer`, in a process that is started when it is needed and after each failure. One
    thread at a time may ask it. `purpose` is for errors: what the process does."""

    def __init__(self, command: Sequence[str], purpose: str) -> None:
        self._command, self._purpose = command, purpose
        self.process: subprocess.Popen[bytes] | None = None
        self._ready: Future[bytes] | None = None  # until the process is ready
        self._n_answered = 0  # by this process

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process if there is none, without waiting until it is ready. Raises GenerationError."""
        if self.process is not None and self.process.poll() is None:
            return self.process
        self.close()
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | _ENVIRONMENT,
            )
        except OSError as error:
            raise GenerationError(f"cannot start a process to {self._purpose}", why=str(error)) from error
        self._at_last = weakref.finalize(self, process.kill)  # at exit, and for owners that do not close
        self.process, self._n_answered, self._said = process, 0, deque[bytes](maxlen=1)
        try:
            self._reader = _begun(_keep_last, process.stderr, self._said)
            self._ready = _exchange(process, b"")
        except BaseException:
            self.close()
            raise
        return process

    def ask(
        self,
        question: bytes,
        limits: Limits,
        cancel: CancelFlag | None = None,
        heard: Callable[[Progress], Limits] | None = None,
    ) -> dict[str, Any]:
        """Return the reply. If the process failed, `failed` in the reply is the exceeded limit ("time", "memory" or
        "clock") or "crash"; if it ended, `status` is its exit status and `said` the last line that it wrote to stderr.
        Raises NotWaitedForError once `cancel` is set, and GenerationError if there is no process.

        `heard` is called with each report of progress, and returns the limits from then on. A process that has answered
        before is replaced and asked again when it fails: the reason may be what earlier questions have left, or
        somebody killed the process.
        """
        try:
            for may_repeat in (True, False):
                process = self._started(cancel)
                self._said.clear()
                reply = self._reply(process, _exchange(process, question + b"\n"), limits, cancel, heard)
                failed, n_answered = reply.get("failed"), self._n_answered
                self._n_answered += 1
                if failed in ("time", "clock", "memory", "crash"):
                    self.close()
                if not may_repeat or failed not in ("memory", "crash") or n_answered == 0:
                    break
        except BaseException:  # the process may be busy, and would answer the next question with this reply
            self.close()
            raise
        return reply

    def close(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is None:
            return
        self._at_last.detach()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # of what it has not read
                if pipe is not None:
                    pipe.close()

    def _started(self, cancel: CancelFlag | None) -> subprocess.Popen[bytes]:
        """Return the process when it is ready. Raises GenerationError."""
        for _ in range(2):  # somebody may kill it while it starts
            process = self.start()
            if self._ready is None:
                return process
            reply = self._reply(process, self._ready, START_LIMITS, cancel)
            if "failed" not in reply:
                self._ready = None
                return process
            self.close()
        why = reply.get("said") or f"it failed ({reply['failed']})"
        raise GenerationError(f"cannot start a process to {self._purpose}", why=why)

    def _reply(
        self,
        process: subprocess.Popen[bytes],
        line: Future[bytes],
        limits: Limits,
        cancel: CancelFlag | None,
        heard: Callable[[Progress], Limits] | None = None,
    ) -> dict[str, Any]:
        meter = Meter(process.pid)
        while True:
            found: bytes | None = None
            with suppress(TimeoutError):
                found = line.result(LOOK_S)
            if found:
                reply: dict[str, Any] = json.loads(found)
                if heard is None or "progress" not in reply:
                    return reply
                limits, meter, line = heard(reply["progress"]), Meter(process.pid), _exchange(process, b"")
            elif found is not None:
                with suppress(subprocess.TimeoutExpired):
                    status = process.wait(LOOK_S)
                    failed = "memory" if status in _NO_MEMORY else "crash"
                    return {"failed": failed, "status": status, "said": self._last_words()}
            if exceeded := meter.exceeded(limits):
                return {"failed": exceeded}
            check(cancel)

    def _last_words(self) -> str:
        self._reader.join(1)  # a process that it started may have its stderr still
        return b"".join(self._said).decode("utf-8", "replace").strip()


def _keep_last(lines: IO[bytes], kept: deque[bytes]) -> None:
    with lines:
        kept.extend(lines)


def _exchange(process: subprocess.Popen[bytes], question: bytes) -> Future[bytes]:
    """Send a question, and return the line to come, which is empty if the process died. Both in a daemon thread: a
    process that hangs does not even read, and must not keep this one from ending."""
    line = Future[bytes]()

    def run() -> None:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(question)
            process.stdin.flush()
            line.set_result(process.stdout.readline())
        except (OSError, ValueError):  # ValueError: the pipe was closed
            line.set_result(b"")

    _begun(run)
    return line


def _begun(work: Callable[..., None], *args: object) -> threading.Thread:
    """Return a thread that has begun to work. Raises GenerationError."""
    thread = threading.Thread(target=work, args=args, name="child", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # there are too many
        raise GenerationError("cannot start a thread", why=str(error), hint="try again later") from error
    return thread


@contextmanager
def held(lock: threading.Lock, cancel: CancelFlag | None) -> Iterator[None]:
    """Hold a lock in this block. Raises NotWaitedForError if `cancel` is set before the lock is free."""
    while not lock.acquire(timeout=LOOK_S):
        check(cancel)
    try:
        yield
    finally:
        lock.release()


def check(cancel: CancelFlag | None) -> None:
    """Raise NotWaitedForError if `cancel` is set."""
    if cancel is not None and cancel.is_set():
        raise NotWaitedForError("the request was cancelled")


def limit_addresses(n_bytes: int) -> None:
    """Let allocations fail that would take this process beyond a size, where the system can do so."""
    with suppress(ImportError, ValueError, OSError):  # Windows, macOS, or a lower limit is set already
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))


def answer(
    reply: Callable[[Any, Callable[[Progress], None]], Mapping[str, object]],
    *,
    stack_bytes: int = 0,
    alone_s: float | None = ALONE_S,
) -> None:
    """Answer the questions of the parent until it is gone, in a thread with this much stack (0: as usual).

    `reply` gets the question, and a function that reports progress. That function raises OSError if the parent is gone.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    if os.name == "posix":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a result
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # nothing but replies may get there
    nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the end

    def send(message: Mapping[str, object]) -> None:
        print(json.dumps(message), file=replies, flush=True)

    def watch() -> None:
        if alone_s is not None:
            # A thread of C code ends the process, also while a long operation holds the interpreter's lock.
            faulthandler.dump_traceback_later(alone_s, exit=True, file=nowhere)

    def report(progress: Progress) -> None:
        send({"progress": progress})
        watch()  # from the beginning again

    def run() -> None:
        send({})  # ready
        for line in sys.stdin.buffer:
            watch()
            send(reply(json.loads(line), report))
            faulthandler.cancel_dump_traceback_later()

    threading.stack_size(stack_bytes)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
