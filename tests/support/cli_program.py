"""Runs the program `edgespec` as a shell does, without the settings of the user who runs the tests."""

from __future__ import annotations

import atexit
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import copytree, rmtree
from tempfile import TemporaryFile, mkdtemp
from unittest.mock import patch

import click

from edgespec.cancel import CancelFlag
from edgespec.cli import run_program
from edgespec.cli.commands import edgespec as root
from edgespec.cli.terminal.interrupt import Interrupts
from edgespec.events import Progress
from edgespec.llm.notes import Notes
from edgespec.runtime.runtime import Runtime
from edgespec.settings import LoadSettings

COMMAND = [sys.executable, "-m", "edgespec"]
DEMO_ANSWERS = b"note: no model given; using demo (EDGESPEC_DEFAULT_MODEL; choose a model with -m)\n"


@dataclass(frozen=True, slots=True)
class Finished:
    """The exit code and the output of the program."""

    returncode: int
    stdout: bytes
    stderr: bytes


@cache
def known() -> Path:
    """Return a folder with what is remembered about the bundled models, which is measured once for all tests: trial
    loads, rounding, and the costs of passes."""
    folder = mkdtemp()
    atexit.register(rmtree, folder, ignore_errors=True)
    with patch.dict(os.environ, {"EDGESPEC_HOME": folder}):
        for threads in (0, 1):
            Runtime(LoadSettings("demo", threads=threads, store=False)).close()
    return Path(folder, "cache")


def environment(home: Path, **variables: str) -> dict[str, str]:
    """Return this process's environment with `home` as EDGESPEC_HOME and no settings but `variables`, and save there
    what is known about the bundled models, unless the program has been there."""
    with suppress(OSError):  # tests may have put something in the way
        copytree(known(), home / "cache")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EDGESPEC_")}
    own = {"EDGESPEC_HOME": str(home), "EDGESPEC_DEFAULT_MODEL": "demo", "PYTHONIOENCODING": "utf-8"}
    return inherited | own | variables


def edgespec(*args: str | bytes, home: Path, stdin: bytes = b"", **variables: str) -> Finished:
    """Run the program in another process, in the folder `home`."""
    done = subprocess.run(
        [*COMMAND, *args],
        input=stdin,
        capture_output=True,
        cwd=home,
        env=environment(home, **variables),
        timeout=100,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def edgespec_changed(code: str, *args: str, home: Path) -> Finished:
    """Run the program in another process, after `code`, which may use os and signal."""
    program = f"import os, signal, sys\nfrom edgespec.cli import main\n{code}\nsys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [COMMAND[0], "-c", program, *args],
        capture_output=True,
        cwd=home,
        env=environment(home),
        timeout=100,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def ctrl_c_in(module: str, name: str, call: int = 0) -> str:
    """Code for `edgespec_changed` that presses Ctrl-C in a call of a function, 0 being the first."""
    owner, _, function = f"{module}.{name}".rpartition(".")
    return (
        f"import {module}\n"
        f"real, calls = {owner}.{function}, iter(range(10000))\n"
        "def pressed(*args):\n"
        f"    if next(calls) == {call}: os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(*args)\n"
        f"{owner}.{function} = pressed\n"
    )


@contextmanager
def started(command: Sequence[str], home: Path, stdin: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    """Start the program as a shell does in the foreground: it receives SIGINT, also if the tests run in the
    background."""
    with subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=home,
        env=environment(home),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as program:  # fmt: skip
        try:
            yield program
        finally:
            program.kill()


def edgespec_here(*args: str | bytes, home: Path, stdin: bytes = b"", **variables: str) -> Finished:
    """Run the program in this process, with streams like those of another process. It starts faster."""
    variables = environment(home, **variables)
    encoding = variables["PYTHONIOENCODING"]
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    texts = [os.fsdecode(arg) for arg in args]
    with (
        chdir(home),
        TemporaryFile() as file,
        io.TextIOWrapper(file, encoding=encoding) as source,
        patch.dict(os.environ, variables, clear=True),
        patch.multiple(sys, stdin=source, stdout=streams[0], stderr=streams[1]),
    ):
        file.write(stdin)
        file.seek(0)
        code = run_program(texts, Interrupts())
    stdout, stderr = (stream.buffer for stream in streams)
    assert isinstance(stdout, io.BytesIO)
    assert isinstance(stderr, io.BytesIO)
    return Finished(code, stdout.getvalue(), stderr.getvalue())


@contextmanager
def a_model_in_this_process() -> Iterator[None]:
    """Within this block the model of a worker is in this process too: no other process is started."""

    def load(settings: LoadSettings, progress: Progress, cancel: CancelFlag, notes: Notes | None = None) -> Runtime:
        runtime = Runtime(settings, progress)
        if notes is not None:
            for note in runtime.notes:
                notes.add(note)
            runtime.notes = notes
        return runtime

    with patch("edgespec.runtime.worker.Worker", load), patch("edgespec.cli.setup.job_models.Worker", load):
        yield


def edgespec_alone(*args: str | bytes, home: Path, stdin: bytes = b"", **variables: str) -> Finished:
    """Run the program in this process, with a worker's model in this process too."""
    with a_model_in_this_process():
        return edgespec_here(*args, home=home, stdin=stdin, **variables)


def commands(group: click.Group = root, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield all commands by name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        yield " ".join((*path, name)), command
