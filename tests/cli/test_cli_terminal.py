"""On a terminal: progress that is erased, the footer by default, and no control sequences of models."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from stand_in import stand_in
from terminal import Terminal, at_terminal, read_rest, read_until
from tiny_gguf import CHATML, write_model

from edgespec.cli.terminal import line_editor
from edgespec.cli.terminal.output import Output

ARGS = ["run", "hello", "-m", "tiny.gguf", "-t", "1", "-n", "8", "--seed", "1"]


def on_terminal(*args: str, home: Path, **variables: str) -> str:
    """Return stderr as a terminal shows it."""
    with at_terminal(home, [*ARGS, *args], streams=["stderr"], **variables) as (program, master):
        seen = read_rest(master)
        assert program.wait(60) == 0
    return seen.replace("\r\n", "\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    write_model(folder / "tiny.gguf", "llama", chat_template=CHATML)
    return folder


def test_loading_is_shown_and_taken_away_and_the_footer_comes_unasked(home: Path) -> None:
    seen = on_terminal(home=home)
    first, *shown, blank, rest = seen.split("\r")
    assert not first
    assert shown[0] == "loading tiny.gguf   0%" and shown[1].startswith("loading tiny.gguf")
    assert blank == " " * max(map(len, shown))
    assert "loading" not in rest
    assert seen.count("\n") == 2 and "note: stopped after 8 tokens (-n)" in seen
    assert " · 8 tokens" in seen
    assert "\x1b[2m" in seen


@pytest.mark.parametrize(
    ("args", "environ", "shown"),
    [
        ([], {}, "\x1b[1;4mA \x1b[0m\x1b[1;4;1mtitle\x1b[0m\r\n"),
        ([], {"NO_COLOR": "1"}, "# A title\r\n"),
        ([], {"TERM": "dumb"}, "# A title\r\n"),
        (["--no-markdown"], {}, "# A **title**\r\n"),
        (["--raw"], {}, "# A **title**\r\n"),
    ],
)
def test_run_draws_the_markdown_of_an_answer(
    args: list[str], environ: dict[str, str], shown: str, tmp_path: Path
) -> None:
    prompt = "# A **title**\n\n" + "word " * 30 + "\n\n$x^2$\x1b[31m"
    with (
        stand_in(text="") as other,
        at_terminal(tmp_path, ["run", "-q", "--server", other.url, *args, prompt], streams=["stdout"], **environ) as at,
    ):
        seen = read_rest(at[1])
    assert seen.startswith(shown)
    assert max(map(len, seen.split("\r\n"))) <= 80 or args
    assert ("x²" in seen) == (not args)
    assert "\ufffd[31m" in seen and "\x1b[31m" not in seen


def test_a_pipe_gets_the_markdown_as_it_is(tmp_path: Path) -> None:
    prompt = "# A **title**\n\n" + "word " * 30 + "\n\n$x^2$\x1b[31m"
    with (
        stand_in(text="") as other,
        at_terminal(tmp_path, ["run", "-q", "--server", other.url, prompt], streams=["stderr"]) as (program, _),
    ):
        assert program.stdout is not None
        assert program.stdout.read().decode() == prompt + "\n"


def test_no_color_takes_the_colour_away(home: Path) -> None:
    assert "\x1b" not in on_terminal(home=home, NO_COLOR="1")


def test_a_terminal_that_can_do_nothing_gets_no_colour_no_progress_and_no_footer(home: Path) -> None:
    assert on_terminal(home=home, TERM="dumb").strip() == "note: stopped after 8 tokens (-n)"


def test_quiet_shows_nothing_on_a_terminal_either(home: Path) -> None:
    assert on_terminal("-q", home=home) == ""


def test_lines_of_a_paste_are_one_text_where_the_editor_returns_them_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = ["before", "\x1b[200~one", "two\u200c", "three\x1b[201~ and \x1b[200~four\x1b[201~", "after"]
    monkeypatch.setattr(line_editor, "readline", None)
    monkeypatch.setattr("builtins.input", lambda prompt: lines.pop(0))
    editor = line_editor.LineEditor(lambda line: [], remembers=False)
    assert [editor.read(">>> ") for _ in range(3)] == ["before", "one\ntwo\u200c\nthree and four", "after"]


def test_control_characters_do_not_reach_a_terminal_but_a_pipe_gets_every_byte() -> None:
    text = "a\x1b[2J\tb\x07\n\x9bc\r"
    terminal, pipe = Terminal(), io.TextIOWrapper(io.BytesIO())
    for stream in (terminal, pipe):
        with patch.object(sys, "stdout", stream):
            output = Output(quiet=True)
            output.answer(text)
            output.end_answer()
    assert terminal.bytes.getvalue().decode() == "a\ufffd[2J\tb\ufffd\n\ufffdc\ufffd\n"
    assert isinstance(pipe.buffer, io.BytesIO)
    assert pipe.buffer.getvalue().decode() == text + "\n"


def test_a_terminal_gets_what_its_encoding_can_show_and_a_pipe_utf8() -> None:
    terminal, pipe = Terminal("latin-1"), io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    for stream in (terminal, pipe):
        with patch.object(sys, "stdout", stream):
            Output(quiet=True).line("é 😀")
    assert terminal.bytes.getvalue() == b"\xe9 ?\n"
    assert isinstance(pipe.buffer, io.BytesIO)
    assert pipe.buffer.getvalue().decode() == "é 😀\n"


def test_an_answer_ends_with_one_newline_however_its_pieces_come() -> None:
    pipe = io.TextIOWrapper(io.BytesIO())
    with patch.object(sys, "stdout", pipe):
        output = Output(quiet=True)
        for piece in ("\n", "a\n", "\n", "", "b", "\n\n", "\n"):
            output.answer(piece)
        output.end_answer()
    assert isinstance(pipe.buffer, io.BytesIO)
    assert pipe.buffer.getvalue() == b"\na\n\nb\n"


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------

# Makes the terminal the controlling one, as a shell does: Ctrl-C is a key then, which the terminal echoes.
AS_A_SHELL = [
    sys.executable,
    "-c",
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "os.execv(sys.executable, [sys.executable, '-m', 'edgespec', *sys.argv[1:]])",
]


def echoes_control(master: int) -> bool:
    import termios

    return bool(termios.tcgetattr(master)[3] & termios.ECHOCTL)


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("n_times", [1, 2])
def test_ctrl_c_is_not_echoed_into_an_answer(home: Path, n_times: int) -> None:
    endless = [*ARGS, "-c", "1000000", "--ignore-eos", "-n", "-1"]
    with at_terminal(home, endless, command=AS_A_SHELL) as (program, master):
        assert echoes_control(master)
        read_until(master, "note: the model was trained for")
        read_until(master, "\n")
        os.read(master, 100)  # of the answer
        assert not echoes_control(master)
        os.write(master, b"\x03" * n_times)
        seen = read_rest(master)
        assert program.wait(60) == 130
        assert "^C" not in seen and seen.endswith("\r\n")
        assert echoes_control(master)


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_a_server_leaves_the_prompt_of_the_shell_its_own_line(home: Path) -> None:
    args = ["serve", "-m", "tiny.gguf", "-t", "1", "--port", "0", "--only"]
    with at_terminal(home, args, command=AS_A_SHELL) as (program, master):
        seen = read_until(master, "}'\r\n")
        os.write(master, b"\x03")
        seen += read_rest(master).replace("\x03", "")  # which a terminal does not show
        assert program.wait(60) in (0, 130)
        assert "^C" not in seen and seen.endswith("\r\n")
