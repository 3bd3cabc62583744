"""Setup can be started twice and killed: the lock and the logged command of scripts/long_commands.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from long_commands import CommandError, latest, locked, run_logged

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def python(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start a process with the names of scripts/long_commands.py and with pipes."""
    program = f"import os, sys\nfrom pathlib import Path\nfrom long_commands import locked, run_logged\n{code}"
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS), "CI": "true"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def line(process: subprocess.Popen[str], stream: str = "stdout") -> str:
    return str(getattr(process, stream).readline()).strip()


HOLD = "with locked(Path(sys.argv[1]), 'working') as torn:\n    print('in', torn, flush=True)\n    sys.stdin.readline()"


def test_the_second_waits_for_the_first_and_says_for_whom(tmp_path: Path) -> None:
    with python(HOLD, tmp_path / "lock") as first:
        assert line(first) == "in False"
        with python(HOLD, tmp_path / "lock") as second:
            assert f"waiting: process {first.pid} is working" in line(second, "stderr")
            first.communicate("done\n")
            assert line(second) == "in False"
            second.communicate("done\n")


def test_the_lock_of_a_killed_process_is_free_and_known_to_be_torn(tmp_path: Path) -> None:
    with python(HOLD, tmp_path / "lock") as process:
        assert line(process) == "in False"
        process.kill()
    with locked(tmp_path / "lock", "working") as torn:
        assert torn
    with locked(tmp_path / "lock", "working") as torn:
        assert not torn


def test_a_failure_in_good_order_is_not_torn_but_an_interruption_is(tmp_path: Path) -> None:
    with pytest.raises(CommandError), locked(tmp_path / "lock", "working"):
        raise CommandError("no network")
    with pytest.raises(KeyboardInterrupt), locked(tmp_path / "lock", "working") as torn:
        assert not torn
        raise KeyboardInterrupt
    with locked(tmp_path / "lock", "working") as torn:
        assert torn


def test_the_progress_is_the_last_file_of_ninja_and_no_output_of_the_compiler(tmp_path: Path) -> None:
    log, shown = tmp_path / "log", [""]
    outputs = ["configuring\n", "[1/9] cc -o a/b.o -c a/b.cpp\n", "b.cpp: warning: odd\n" + "  ^~~\n" * 9000, "done\n"]
    for output in outputs:
        with log.open("a", encoding="utf-8") as file:
            file.write(output)
        shown.append(latest(log, 0, shown[-1]))
    assert shown[1:] == ["configuring", "[1/9] b.cpp", "[1/9] b.cpp", "[1/9] b.cpp"]


def test_a_failed_command_shows_the_first_error_the_log_and_the_hint(tmp_path: Path) -> None:
    code = "print('configuring'); print('x.cpp:1: error: no such header'); print('see also'); raise SystemExit(3)"
    with pytest.raises(CommandError) as failure:
        run_logged("compiling", [sys.executable, "-c", code], tmp_path / "log", tmp_path, os.environ, "install it")
    assert str(failure.value).splitlines() == [
        "compiling failed:",
        "    x.cpp:1: error: no such header",
        "    see also",
        f"(all of it: {tmp_path / 'log'})",
        "install it",
    ]
    assert "configuring" in (tmp_path / "log").read_text(encoding="utf-8")


OUTLIVES = """
import sys, time
from pathlib import Path
killed, ended = map(Path, sys.argv[1:])
while not killed.exists():
    time.sleep(0.01)
time.sleep(0.5)
ended.touch()
"""


@pytest.mark.skipif(os.name == "nt", reason="on Windows a child does not keep the lock, so nothing here would show it")
def test_the_command_of_a_killed_caller_keeps_the_lock_until_it_ends(tmp_path: Path) -> None:
    killed, ended = tmp_path / "killed", tmp_path / "ended"
    command = [sys.executable, "-c", OUTLIVES, str(killed), str(ended)]
    code = (
        "with locked(Path(sys.argv[1]), 'working'):\n"
        "    run_logged('waiting', sys.argv[3:], Path(sys.argv[2]), Path.cwd(), os.environ, '')"
    )
    with python(code, tmp_path / "lock", tmp_path / "log", *command) as caller:
        assert "waiting" in line(caller, "stderr")
        caller.kill()
    killed.touch()
    with locked(tmp_path / "lock", "working") as torn:
        assert torn and ended.exists()


def test_an_interruption_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("long_commands.latest", interrupt)
    command = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    with pytest.raises(KeyboardInterrupt):
        run_logged("waiting forever", command, tmp_path / "log", tmp_path, os.environ, "")
