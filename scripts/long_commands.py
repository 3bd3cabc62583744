"""Long commands, one at a time, with their progress on stderr and their output in a file."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_STEP = r"\[\d+/\d+\]"  # of ninja


class CommandError(Exception):
    """A failed step, with the reason and what to do."""


@contextlib.contextmanager
def locked(path: Path, doing: str) -> Iterator[bool]:
    """Hold the lock on `path`, after waiting for its holder. Yield whether the last holder was killed while working.

    The operating system releases the lock when its holder and the holder's children have ended.
    """
    with path.open("a+b", buffering=0) as file:
        waiting_since = time.monotonic()
        progress = Progress(f"waiting: process {read(path)} is {doing}")
        while not _try_lock(file.fileno()):
            progress.show(waiting_since, "")
            time.sleep(0.2)
        progress.end()
        torn = bool(read(path))
        _write_holder(file.fileno(), str(os.getpid()))
        try:
            yield torn
        except (CommandError, ValueError):
            _write_holder(file.fileno(), "")  # a normal failure: the files are consistent
            raise
        _write_holder(file.fileno(), "")


def run_logged(title: str, command: Sequence[str], log: Path, cwd: Path, environ: Mapping[str, str], hint: str) -> None:
    """Run a command with its output appended to `log`, and show the time and the last line of the output.

    Raises CommandError with the cause and `hint`. The command ends when this process is interrupted. If this process is
    killed, the command continues, and holds the lock of `locked` until it ends.
    """
    started = time.monotonic()
    progress, detail = Progress(title), ""
    with log.open("ab") as sink:
        sink.write(f"\n$ {' '.join(command)}\n".encode())
        sink.flush()
        begin = sink.tell()
        child = subprocess.Popen(
            command,
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            close_fds=os.name == "nt",  # see _try_lock
        )
    try:
        while child.poll() is None:
            detail = latest(log, begin, detail)
            progress.show(started, detail)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.2)
    finally:
        progress.end()
        if child.poll() is None:
            child.terminate()
        child.wait()
    if child.returncode:
        text = log.read_bytes()[begin:].decode("utf-8", "replace")
        cause = "\n".join("    " + line for line in _cause(text))
        raise CommandError(f"{title} failed:\n{cause}\n(all of it: {log})\n{hint}")


class Progress:
    """A line on stderr that changes; without a terminal, a line at the start and then every 30 seconds."""

    def __init__(self, title: str) -> None:
        self.title = title
        plain = os.environ.get("CI", "") not in ("", "0", "false") or os.environ.get("TERM") == "dumb"
        self.live = sys.stderr.isatty() and not plain
        self.width = 0
        self.next_line_s = 0.0

    def show(self, since: float, detail: str) -> None:
        elapsed_s = time.monotonic() - since
        line = f"edgespec: {self.title}  {minutes(elapsed_s)}  {detail}".rstrip()
        if self.live:
            line = line[: shutil.get_terminal_size().columns - 1]
            sys.stderr.write("\r" + line.ljust(self.width))
            sys.stderr.flush()
            self.width = len(line)
        elif elapsed_s >= self.next_line_s:
            print(line, file=sys.stderr, flush=True)
            self.next_line_s = elapsed_s + 30

    def end(self) -> None:
        if self.width:
            sys.stderr.write("\r" + " " * self.width + "\r")
            sys.stderr.flush()


def say(text: str) -> None:
    print(f"edgespec: {text}", file=sys.stderr, flush=True)


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def read(path: Path) -> str:
    """Return the text of a small file without the last newline, or "" if it does not exist."""
    try:
        return path.read_text(encoding="utf-8").rstrip("\n")
    except OSError:
        return ""


def _try_lock(fd: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(fd, 1 << 20, os.SEEK_SET)  # after the text, so that others can read it
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            os.set_inheritable(fd, True)  # a pip that outlives a killed setup keeps the lock
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _write_holder(fd: int, text: str) -> None:
    os.lseek(fd, 0, os.SEEK_SET)
    os.ftruncate(fd, 0)
    os.write(fd, text.encode())


def _cause(output: str) -> list[str]:
    """Return the first lines that report an error, or the last lines: the tools end with pages about themselves."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = (i for i, line in enumerate(lines) if re.search(r"CMake Error|\berror:", line, re.IGNORECASE))
    first = next(errors, max(0, len(lines) - 15))
    return lines[first : first + 15]


def latest(log: Path, begin: int, before: str) -> str:
    """Return the file that ninja compiled last, or until it starts the last line of the output."""
    with log.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(begin, end - 20_000))
        lines = file.read().decode("utf-8", "replace").split("\n")
    # Ninja prints its progress and the whole command; what compilers print in between, such as warnings, is not shown.
    compiling = [found for line in lines if (found := re.match(rf"\s*({_STEP}) .*/(\S+\.\w+)$", line.rstrip()))]
    if compiling:
        return " ".join(compiling[-1].groups())
    if re.match(_STEP, before):
        return before
    return next((" ".join(line.split()) for line in reversed(lines) if line.strip()), "")
