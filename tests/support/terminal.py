"""The program on a pseudo-terminal, as somebody who sits at one meets it.

with at_terminal(home, ["chat", "--plain"]) as (program, master):
    read_until(master, ">>> ")
    os.write(master, b"hello\\n")
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_program import COMMAND, environment

STREAMS = ("stdin", "stdout", "stderr")


class Terminal(io.TextIOWrapper):
    """A stream that claims to be a terminal and stores its output."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding=encoding)

    def isatty(self) -> bool:
        return True


@contextmanager
def at_terminal(
    home: Path,
    args: Sequence[str],
    command: Sequence[str] = COMMAND,
    *,
    streams: Collection[str] = STREAMS,
    **variables: str,
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the program with these streams on a new terminal, whose other end is yielded; kill it after the block.

    Of the other streams stdin is empty, and the rest are pipes.
    """
    pty = pytest.importorskip("pty", reason="needs a pseudo-terminal")
    import fcntl
    import termios

    master, slave = pty.openpty()
    own = environment(home, **variables)
    columns, lines = int(own.pop("COLUMNS")), int(own.pop("LINES"))  # a terminal has a size, no variables for it
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))
    other = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    stdin, stdout, stderr = (slave if name in streams else other[name] for name in STREAMS)
    with subprocess.Popen(
        [*command, *args], stdin=stdin, stdout=stdout, stderr=stderr, cwd=home, start_new_session=True, env=own
    ) as program:
        os.close(slave)
        try:
            yield program, master
        finally:
            program.kill()
            program.wait(30)
            os.close(master)


def read_until(master: int, text: str) -> str:
    """Return the text on the terminal, up to `text` at least."""
    seen = b""
    while text.encode() not in seen:
        try:
            data = os.read(master, 4096)
        except OSError as error:  # how Linux says that the other end is closed
            raise AssertionError(seen.decode("utf-8", "replace")) from error
        if not data:
            raise AssertionError(seen.decode("utf-8", "replace"))
        seen += data
    return seen.decode("utf-8", "replace")


def read_rest(master: int) -> str:
    """Return the text on the terminal until the program ends."""
    seen = b""
    try:
        while data := os.read(master, 4096):
            seen += data
    except OSError:  # how Linux says that the other end is closed
        pass
    return seen.decode("utf-8", "replace")
