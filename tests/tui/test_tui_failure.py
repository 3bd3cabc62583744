"""A chat that ends in spite of everything: what is said, what is written, and that the draft is kept."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from cli_program import COMMAND
from terminal import at_terminal, read_rest, read_until
from tiny_gguf import CHATML, write_model

from edgespec.history import Store

CHAT = ["chat", "-m", "tiny.gguf", "-t", "1", "-n", "4", "--tui"]
FAILING = """
import sys
from edgespec.cli import main
from edgespec.tui.app import ChatApp

def fail(self, *_):
    conversation = "a secret of the conversation"
    raise ValueError(conversation)

ChatApp.action_help_quit = fail
sys.argv[0] = "edgespec"
sys.exit(main())
"""


FAILING_AT_THE_END = """
import os
import sys
from edgespec.cli import main
from edgespec.tui.app import ChatApp

def keep(self):
    raise ValueError("of the draft")

def quit(self):
    self._exit = True
    raise ValueError("while the program ends")

if sys.argv[1] == "sigquit":
    ChatApp.keep_unsent = keep
else:
    ChatApp.action_help_quit = quit
sys.argv[:2] = ["edgespec"]
sys.exit(main())
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_model(tmp_path / "tiny.gguf", "llama", chat_template=CHATML)
    return tmp_path


def unsent(home: Path) -> str:
    with Store(home / "data" / "chats.db") as store:
        return store.preference("unsent") or ""


def test_a_chat_that_fails_says_where_and_how_to_continue_and_keeps_the_draft(home: Path) -> None:
    with at_terminal(home, CHAT, [sys.executable, "-c", FAILING]) as (program, master):
        read_until(master, "tiny")
        os.write(master, b"my draft")
        read_until(master, "draft")
        os.write(master, b"\x03")
        shown = read_rest(master)
        assert program.wait(60) == 1
    told = " ".join(shown.rpartition("\x1b[?1006l")[2].split())
    assert "secret" not in shown
    assert "edgespec: the chat ended with an unexpected ValueError: the details are in " in told
    assert "'edgespec chat' continues with your draft" in told
    [log] = (home / "state" / "logs").glob("*.log")
    assert "in fail" in log.read_text() and log.stat().st_mode & 0o077 == 0
    assert unsent(home) == "my draft"


def test_a_draft_outlives_a_chat_that_is_killed(home: Path) -> None:
    with at_terminal(home, CHAT) as (program, master):
        read_until(master, "tiny")
        os.write(master, b"my draft")
        while not any(drafts_dir_of(home).glob("*.json")):
            time.sleep(0.02)
        program.send_signal(signal.SIGKILL)
        program.wait(60)
    with at_terminal(home, CHAT) as (program, master):
        read_until(master, "my draft")
        os.write(master, b"\x11")
        read_rest(master)
        assert program.wait(60) == 0
    assert not any(drafts_dir_of(home).iterdir())
    assert unsent(home) == "my draft"  # it was in the field again


def test_a_draft_outlives_a_quit_while_the_store_cannot_be_written(home: Path) -> None:
    with Store(home / "data" / "chats.db"):
        index = home / "data" / "chats.db-shm"
    index.symlink_to("nowhere/at/all")  # SQLite cannot create this file, as on a full or read-only disk
    with at_terminal(home, CHAT) as (program, master):
        read_until(master, "tiny")
        os.write(master, b"my draft")
        read_until(master, "draft")
        os.write(master, b"\x11")
        read_rest(master)
        assert program.wait(60) == 0
    index.unlink()
    with at_terminal(home, CHAT) as (program, master):
        read_until(master, "my draft")
        os.write(master, b"\x11")
        read_rest(master)
        assert program.wait(60) == 0
    assert not any(drafts_dir_of(home).iterdir())
    assert unsent(home) == "my draft"


def test_an_error_while_the_program_ends_does_not_leave_the_screen_up(home: Path) -> None:
    with at_terminal(home, CHAT, [sys.executable, "-c", FAILING_AT_THE_END, "key"]) as (program, master):
        read_until(master, "tiny")
        os.write(master, b"\x03")
        assert "\x1b[?1049l" in read_rest(master)
        program.wait(60)


def test_sigquit_restores_the_terminal_even_if_the_draft_cannot_be_kept(home: Path) -> None:
    with at_terminal(home, CHAT, [sys.executable, "-c", FAILING_AT_THE_END, "sigquit"]) as (program, master):
        read_until(master, "tiny")
        os.write(master, b"my draft")
        read_until(master, "draft")
        program.send_signal(signal.SIGQUIT)
        assert "\x1b[?1049l" in read_rest(master)
        assert program.wait(60) == -signal.SIGQUIT


def drafts_dir_of(home: Path) -> Path:
    return home / "state" / "drafts"


def test_the_screen_is_drawn_again_after_a_stop_from_outside(home: Path) -> None:
    with at_terminal(home, CHAT) as (program, master):
        read_until(master, "Writing")
        program.send_signal(signal.SIGSTOP)
        program.send_signal(signal.SIGCONT)
        if "Writing" not in read_until(master, "\x1b[?1049h").partition("\x1b[?1049h")[2]:
            read_until(master, "Writing")
        os.write(master, b"typed once")
        read_until(master, "once")
        os.write(master, b"\x11")
        read_rest(master)
        assert program.wait(60) == 0
    assert unsent(home) == "typed once"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs a shell with job control")
def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_draws_the_screen_again(home: Path) -> None:
    shell = [sys.executable, "-c", "import pty; pty.spawn(['bash', '--norc', '-i'])"]
    with at_terminal(home, [], shell) as (_, master):
        read_until(master, "bash-")  # its prompt: what is typed before that is lost
        os.write(master, f"stty cols 80 rows 24; {shlex.join([*COMMAND, *CHAT])}\n".encode())
        read_until(master, "Writing")
        os.write(master, b"\x1a")
        assert "\x1b[?1049l" in read_until(master, "Stopped")
        os.write(master, b"fg\n")
        if "Writing" not in read_until(master, "\x1b[?1049h").partition("\x1b[?1049h")[2]:
            read_until(master, "Writing")
        os.write(master, b"still here")
        read_until(master, "here")
        os.write(master, b"\x11")
        read_until(master, "\x1b[?1049l")
    # The terminal goes while the chat leaves: the system continues the chat, which must not start its screen again.
    until_s = time.monotonic() + 30
    while (left := programs_in(home)) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert left == []


def programs_in(folder: Path) -> list[int]:
    """Return the processes that run in a folder."""
    return [each.pid for each in psutil.process_iter(["cwd"]) if each.info["cwd"] == str(folder)]


def test_ctrl_z_does_not_stop_a_program_that_no_shell_would_continue(home: Path) -> None:
    with at_terminal(home, CHAT) as (program, master):
        read_until(master, "Writing")
        os.write(master, b"\x1a")
        read_until(master, "no shell")
        os.write(master, b"\x11")
        read_rest(master)
        assert program.wait(60) == 0


def test_sigquit_gives_the_terminal_back_and_keeps_the_draft(home: Path) -> None:
    with at_terminal(home, CHAT) as (program, master):
        read_until(master, "tiny")
        os.write(master, b"my draft")
        read_until(master, "draft")
        program.send_signal(signal.SIGQUIT)
        shown = read_rest(master)
        assert program.wait(60) == -signal.SIGQUIT
    assert "\x1b[?1003l" in shown and "\x1b[?1049l" in shown
    assert unsent(home) == "my draft"
