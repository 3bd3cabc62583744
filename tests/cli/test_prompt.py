"""A prompt consists of the command line, files and piped input, in this order."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from cli_program import COMMAND, environment

from edgespec.chat.attachments import read_named
from edgespec.cli.terminal.prompt import WAITING, read_prompt
from edgespec.errors import UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def reads(argument: str | None, *files: str, stdin: bytes | None = b"") -> str:
    """Return the prompt of these arguments; `stdin` None is a terminal."""
    source = Terminal() if stdin is None else io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    with patch.object(sys, "stdin", source):
        return read_prompt(argument, files, pytest.fail, lambda names: read_named(names)[0])


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


def test_a_folder_and_a_pattern_stand_for_their_files_with_names(files: None, tmp_path: Path) -> None:
    assert reads("Compare:", "*.txt", stdin=None) == "Compare:\n\na.txt:\n```\nfirst\n```\n\nb.txt:\n```\nsecond\n```"
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "c.txt").write_text("third")
    assert reads("Explain:", "below", stdin=None) == "Explain:\n\nbelow/c.txt:\n```\nthird\n```"
    (tmp_path / "[d].txt").write_text("a file of that name")
    assert reads("Explain:", "[d].txt", stdin=None) == "Explain:\n\na file of that name"
    with pytest.raises(UsageError, match=r"no file matches \*\.md"):
        reads("Explain:", "*.md", stdin=None)


def test_a_dash_says_where_the_pipe_stands(files: None) -> None:
    assert reads("Translate:", "-", "a.txt", stdin=b"piped\n") == "Translate:\n\npiped\n\nfirst"
    assert reads("-", "a.txt", stdin=b"piped\n") == "piped\n\nfirst"


def test_a_pipe_alone_is_the_prompt_however_blank() -> None:
    assert reads(None, stdin=b"\n\n") == "\n"
    with pytest.raises(UsageError, match="there is no prompt"):
        reads(None, stdin=None)


@pytest.mark.long
def test_a_pipe_that_does_not_end_is_waited_for_and_said_to_be(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "run", "Hello", "-m", "none.gguf"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=tmp_path, env=environment(tmp_path),
    ) as program:  # fmt: skip
        assert program.stdin is not None
        assert program.stderr is not None
        assert program.stderr.readline().decode().rstrip() == f"note: {WAITING}"
        program.stdin.close()
        assert b"model file 'none.gguf' was not found" in program.stderr.read()


def test_a_prompt_goes_without_a_stdin_that_cannot_be_read() -> None:
    class Unreadable(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(9, "Bad file descriptor")  # as after nohup

    with patch.object(sys, "stdin", io.TextIOWrapper(Unreadable())):
        assert read_prompt("Hello", [], pytest.fail, pytest.fail) == "Hello"
        with pytest.raises(UsageError, match="stdin cannot be read"):
            read_prompt(None, [], pytest.fail, pytest.fail)
