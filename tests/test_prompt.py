"""Where a prompt comes from: the command line, files, and what is piped in, in this order."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from unittest.mock import patch

import pytest
from cli_program import COMMAND, environment

from edgespec.cli import prompt
from edgespec.cli.prompt import LEFT_OUT, WAITING, read_prompt
from edgespec.errors import UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def reads(argument: str | None, *files: str, stdin: bytes | None = b"") -> str:
    """The prompt of these arguments; `stdin` None is a terminal."""
    with TemporaryFile() as file, io.TextIOWrapper(file, encoding="utf-8") as piped:
        file.write(stdin or b"")
        file.seek(0)
        with patch.object(sys, "stdin", Terminal() if stdin is None else piped):
            return read_prompt(argument, files, lambda note: pytest.fail(note))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"first\n")
    (tmp_path / "b.txt").write_bytes("\ufeffsecond\r\n".encode())


@pytest.mark.parametrize("stdin", [None, b"", b"\n", b" \r\n"])
def test_a_terminal_and_an_empty_pipe_add_nothing(stdin: bytes | None) -> None:
    assert reads("Hello ", stdin=stdin) == "Hello "
    assert reads("\n", stdin=stdin) == "\n"


def test_files_and_the_pipe_follow_the_prompt_in_order(files: None) -> None:
    assert reads("Compare:", "b.txt", "a.txt", stdin=b"third\n") == "Compare:\n\nsecond\n\nfirst\n\nthird"
    assert reads(None, "a.txt", stdin=b"third") == "first\n\nthird"
    assert reads(None, "a.txt", "b.txt", stdin=None) == "first\n\nsecond"


def test_a_dash_says_where_the_pipe_stands(files: None) -> None:
    assert reads("Translate:", "-", "a.txt", stdin=b"piped\n") == "Translate:\n\npiped\n\nfirst"
    assert reads("-", "a.txt", stdin=b"piped\n") == "piped\n\nfirst"


def test_a_pipe_alone_is_the_prompt_however_blank() -> None:
    assert reads(None, stdin=b"\n\n") == "\n"
    with pytest.raises(UsageError, match="there is no prompt"):
        reads(None, stdin=None)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.TextIOWrapper]:
    """What writes to stdin, which is a pipe; little time is given to it."""
    reader, writer = os.pipe()
    monkeypatch.setattr(prompt, "PATIENCE_S", 0.1)
    with os.fdopen(reader, encoding="utf-8") as stdin, os.fdopen(writer, "w", encoding="utf-8") as sender:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield sender
        sender.close()  # lets the thread that reads go


def test_a_prompt_does_not_wait_for_a_pipe_through_which_nothing_comes(pipe: io.TextIOWrapper) -> None:
    notes: list[str] = []
    assert read_prompt("Hello", [], notes.append) == "Hello"
    assert notes == [LEFT_OUT]


def test_what_has_begun_to_come_is_read_to_its_end(pipe: io.TextIOWrapper) -> None:
    pipe.write("Once ")
    pipe.flush()
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        pipe.write("upon a time\n")
        pipe.close()

    assert read_prompt("Go on:", [], note) == "Go on:\n\nOnce upon a time"
    assert notes == [WAITING]


def test_a_stdin_that_cannot_be_read_is_an_error_only_without_a_prompt(tmp_path: Path) -> None:
    """`nohup` leaves a program one that can only be written to."""
    with (tmp_path / "stdin").open("wb") as unreadable:
        for prompt_of, said in ((["x"], b"'none.gguf' was not found"), ([], b"stdin cannot be read")):
            done = subprocess.run(
                [*COMMAND, "run", *prompt_of, "-m", "none.gguf"],
                stdin=unreadable, capture_output=True, cwd=tmp_path, env=environment(tmp_path), check=False,
            )  # fmt: skip
            assert said in done.stderr


def test_a_pipe_that_does_not_end_is_waited_for_and_said_to_be(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "run", "-m", "none.gguf"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=tmp_path, env=environment(tmp_path),
    ) as program:  # fmt: skip
        assert program.stdin is not None
        assert program.stderr is not None
        assert program.stderr.readline().decode().rstrip() == f"note: {WAITING}"
        program.stdin.write(b"Hello")
        program.stdin.close()
        assert b"model file 'none.gguf' was not found" in program.stderr.read()
