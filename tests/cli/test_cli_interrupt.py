"""Ctrl-C: the first press ends the answer with its statistics, the second one the program, without a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_program import COMMAND, started
from tiny_gguf import CHATML, write_model

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")

ENDLESS = ["run", "hello", "-m", "tiny.gguf", "-t", "1", "-c", "1000000", "--ignore-eos", "--seed", "1"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    write_model(folder / "tiny.gguf", "llama", chat_template=CHATML)
    return folder


def press_after(program: subprocess.Popen[bytes], line: bytes) -> None:
    assert program.stdout is not None
    assert program.stdout.readline() == line
    program.send_signal(signal.SIGINT)


def read_some(program: subprocess.Popen[bytes]) -> None:
    """Wait until the answer has begun."""
    assert program.stdout is not None
    assert program.stdout.read(20)


@pytest.mark.long(but=1)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_answer_with_its_statistics(home: Path, number: int, code: int) -> None:
    with started([*COMMAND, *ENDLESS], home) as program:
        read_some(program)
        program.send_signal(number)
        rest, said = program.communicate(timeout=60)
    assert program.returncode == code
    assert rest.endswith(b"\n")
    note, footer = said.decode().splitlines()
    assert note.startswith("note: the model was trained for")
    assert " tok/s · " in footer


def test_quiet_is_quiet_also_when_interrupted(home: Path) -> None:
    with started([*COMMAND, *ENDLESS, "-q"], home) as program:
        read_some(program)
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=60)
    assert (program.returncode, said) == (130, b"")


def test_an_explained_answer_has_no_further_statistics_when_interrupted(home: Path) -> None:
    with started([*COMMAND, *ENDLESS, "--explain"], home) as program:
        read_some(program)
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=60)
    assert program.returncode == 130
    assert said.count(b" tok/s; ") == 1 and b" tok/s \xc2\xb7 " not in said


def test_json_is_whole_also_when_interrupted(home: Path) -> None:
    with started([*COMMAND, *ENDLESS, "--json", "-v"], home) as program:
        assert program.stderr is not None
        for line in program.stderr:
            if b"note: " in line:  # shown when the answer begins
                break
        program.send_signal(signal.SIGINT)
        answer, _ = program.communicate(timeout=60)
    assert program.returncode == 130
    assert json.loads(answer)["finish_reason"] == "cancelled"


def test_before_the_answer_a_signal_ends_the_program_at_once(home: Path) -> None:
    """Waiting for a prompt on stdin that never arrives."""
    code = (
        "import sys, edgespec.cli.terminal.prompt as p\n"
        "real = p._from_stdin\n"
        "def wait(note, **how): print('waiting', flush=True); return real(lambda text: None, **how)\n"
        "p._from_stdin = wait\n"
        "from edgespec.cli import main\n"
        "sys.exit(main(['run']))"
    )
    with started([sys.executable, "-c", code], home, subprocess.PIPE) as program:
        press_after(program, b"waiting\n")
        assert program.wait(60) == 130
        assert program.stderr is not None
        assert program.stderr.read() == b""


NATIVE = """
import hashlib, sys
from edgespec.cancel import CancelFlag
from edgespec.cli.terminal.interrupt import Interrupts
interrupts, flag = Interrupts(), CancelFlag()
interrupts.install()
def stay_in_native_code(): hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
if "load" in sys.argv:
    print("in", flush=True)
    stay_in_native_code()
with interrupts.calling(flag.set):
    print("in", flush=True)
    while not flag.is_set(): pass
    if "stuck" in sys.argv:
        print("set", flush=True)
        stay_in_native_code()
print("answer ended", interrupts.received, flush=True)
"""


def test_a_native_call_is_ended_too(home: Path) -> None:
    with started([sys.executable, "-c", NATIVE, "load"], home) as program:
        press_after(program, b"in\n")
        rest, said = program.communicate(timeout=30)
    assert (program.returncode, rest, said) == (130, b"", b"")


def test_the_flag_is_set_while_the_answer_is_made(home: Path) -> None:
    with started([sys.executable, "-c", NATIVE, "answer"], home) as program:
        press_after(program, b"in\n")
        rest, said = program.communicate(timeout=30)
    assert (program.returncode, rest, said) == (0, b"answer ended 2\n", b"")


def test_a_second_press_ends_an_answer_that_does_not_end(home: Path) -> None:
    with started([sys.executable, "-c", NATIVE, "stuck"], home) as program:
        press_after(program, b"in\n")
        press_after(program, b"set\n")
        rest, said = program.communicate(timeout=30)
    assert (program.returncode, rest, said) == (130, b"", b"")


STAGES = [
    "click",
    "edgespec.cli.terminal.output",
    "edgespec.cli.commands.run",
    "numpy",
    "llama_cpp",
    "edgespec.llama.model",
    "jinja2",
]


@pytest.mark.parametrize("module", STAGES)
def test_no_stage_of_the_start_shows_a_traceback(home: Path, module: str) -> None:
    """A signal just before `module` is imported."""
    code = (
        "import os, signal, sys\n"
        "class Sender:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: print('sent', flush=True); os.kill(os.getpid(), signal.SIGINT)\n"
        "from edgespec.cli import main\n"
        "sys.meta_path.insert(0, Sender())\n"
        f"sys.exit(main({ENDLESS!r} + ['-n', '5']))"
    )
    with started([sys.executable, "-c", code], home) as program:
        out, said = program.communicate(timeout=60)
    assert (program.returncode, out, said) == (130, b"sent\n", b"")


def test_what_was_being_written_is_gone(home: Path) -> None:
    code = (
        "import time; from pathlib import Path; from edgespec.cli.terminal.interrupt import Interrupts\n"
        "from edgespec.files.unfinished import becoming\n"
        "Interrupts().install()\n"
        "with becoming(Path('x.corpus')) as scratch:\n"
        "    scratch.write_text('half')\n"
        "    print('in', flush=True)\n"
        "    time.sleep(60)"
    )
    with started([sys.executable, "-c", code], home) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"in\n"
        assert list(home.glob("x.corpus*"))
        program.send_signal(signal.SIGINT)
        assert program.wait(30) == 130
    assert not list(home.glob("x.corpus*"))
