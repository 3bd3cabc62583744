"""The whole program: help, start-up, subcommands, exit codes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from cli_program import COMMAND, edgespec, edgespec_changed, edgespec_here, environment

from edgespec import __version__
from edgespec.cli.commands import SUBCOMMANDS
from edgespec.cli.commands import edgespec as group
from edgespec.cli.commands.run import run
from edgespec.cli.options.common import Option
from edgespec.llama import kernels, library

HEAVY = ("llama_cpp", "numpy", "textual", "huggingface_hub", "jinja2", "platformdirs", "asyncio")


def python(code: str, *args: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, encoding="utf-8", env=environment(home), check=False
    )


def test_help_lists_every_subcommand(tmp_path: Path) -> None:
    done = edgespec_here("--help", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    for name, (_, summary) in SUBCOMMANDS.items():
        assert f"  {name}" in done.stdout.decode()
        assert summary in done.stdout.decode()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_help_that_cannot_be_written_is_one_line_and_an_error(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "run", "--help"], stdout=full, stderr=subprocess.PIPE, env=environment(tmp_path), check=False
        )
    assert done.returncode == 1
    assert done.stderr == b"edgespec: the output cannot be written: No space left on device\n"


def test_help_imports_click_and_little_else(tmp_path: Path) -> None:
    code = "import sys; from edgespec.cli import main; main(['--help']); print('LOADED', *sys.modules)"
    loaded = python(code, home=tmp_path).stdout.partition("LOADED")[2].split()
    assert "click" in loaded
    assert not {name.partition(".")[0] for name in loaded} & set(HEAVY)
    assert not [name for name in loaded if name.startswith("edgespec.cli.") and name.endswith(tuple(SUBCOMMANDS))]


def test_help_of_run_does_not_load_the_native_libraries(tmp_path: Path) -> None:
    code = "import sys; from edgespec.cli import main; main(['run', '--help']); print('LOADED', *sys.modules)"
    assert not {"llama_cpp", "llguidance"} & {*python(code, home=tmp_path).stdout.partition("LOADED")[2].split()}


@pytest.mark.parametrize("args", [["-h"], ["run", "-h"], ["config", "-h"], ["completion", "-h"]])
def test_every_command_has_a_short_help_flag(args: list[str], tmp_path: Path) -> None:
    done = edgespec_here(*args, home=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"Usage: edgespec")


@pytest.mark.parametrize("args", [["-V"], ["--version"]])
def test_the_version_is_shown(args: list[str], tmp_path: Path) -> None:
    program, build = edgespec_here(*args, home=tmp_path).stdout.decode().splitlines()
    assert program == f"edgespec {__version__}"
    assert build == kernels.described_build()


def test_the_version_is_shown_also_if_llama_cannot_be_loaded(tmp_path: Path) -> None:
    done = edgespec("--version", home=tmp_path, EDGESPEC_CPU_VARIANT="z80")
    if library.CPU_LIBRARY:
        assert b"llama.cpp cannot be loaded: " in done.stdout
    (tmp_path / "llama_cpp.py").write_text("raise RuntimeError('Failed to load shared library')")
    done = edgespec("--version", home=tmp_path, PYTHONPATH=str(tmp_path))
    lines = [f"edgespec {__version__}", "llama.cpp cannot be loaded: Failed to load shared library"]
    assert (done.returncode, done.stdout.decode().splitlines()) == (0, lines)


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_can_be_loaded(name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert isinstance(command, click.Command)
    assert command.name == name


def test_without_arguments_the_help_is_shown_as_an_error(tmp_path: Path) -> None:
    done = edgespec_here(home=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"Usage: edgespec")


def test_an_unknown_command_is_a_usage_error(tmp_path: Path) -> None:
    done = edgespec_here("rum", home=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"'rum'" in done.stderr


def test_no_option_hides_another_and_no_variable_one_of_the_programs_own() -> None:
    options = [param for param in run.params if isinstance(param, click.Option)]
    spellings = [name for option in options for name in (*option.opts, *option.secondary_opts)]
    assert len(spellings) == len(set(spellings))
    variables = {option.envvar for option in options if isinstance(option, Option)}
    own = ("HOME", "BACKEND", "COMPILER", "RPC", "LLAMA_WHEEL", "PYTHON", "DEFAULT_MODEL", "MODELS")
    assert not variables & {f"EDGESPEC_{name}" for name in own}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_the_program(shell: str, tmp_path: Path) -> None:
    done = edgespec_here("completion", shell, home=tmp_path)
    assert done.returncode == 0
    assert f"_EDGESPEC_COMPLETE={shell}_complete" in done.stdout.decode()


def test_completion_knows_commands_and_options(tmp_path: Path) -> None:
    commands = edgespec_here(home=tmp_path, _EDGESPEC_COMPLETE="bash_complete", COMP_WORDS="edgespec ", COMP_CWORD="1")
    assert [line.partition(",")[2] for line in commands.stdout.decode().splitlines()] == list(SUBCOMMANDS)
    options = edgespec_here(
        home=tmp_path, _EDGESPEC_COMPLETE="bash_complete", COMP_WORDS="edgespec run --spec-", COMP_CWORD="2"
    )
    assert options.stdout.decode().split() == [f"plain,--spec-{name}" for name in ("type", "draft-n-max", "tree")]


def test_config_shows_the_files_and_what_they_set(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    user = tmp_path / "config" / "config.toml"
    user.write_text("temp = 0.5\nseed = 1")
    project = tmp_path / "edgespec.toml"
    project.write_text("seed = 2")
    done = edgespec_here("config", home=tmp_path)
    assert done.stdout.decode().splitlines() == [
        f"user file     {user}",
        f"project file  {project}",
        f"personas      {tmp_path / 'config' / 'personas'} (brief, coder, editor, translator)",
        "temp = 0.5  # user",
        "seed = 2  # project",
    ]


def test_an_unforeseen_error_is_one_line_and_with_v_a_traceback(tmp_path: Path) -> None:
    code = (
        "import sys, edgespec.cli.commands.run as r\n"
        "def fail(*args, **more): raise KeyError('gone')\n"
        "r.read_prompt = fail\n"
        "from edgespec.cli import main\n"
        "sys.exit(main(['run', 'hello', *sys.argv[1:]]))"
    )
    plain = python(code, "-q", home=tmp_path)
    assert plain.returncode == 1
    assert plain.stderr.splitlines() == ["edgespec: unexpected error: KeyError: 'gone'", "  run with -v for details"]
    verbose = python(code, "-v", home=tmp_path)
    assert verbose.returncode == 1
    assert "Traceback" in verbose.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("edgespec.errors.GenerationError('x')", 1),
        ("edgespec.errors.UsageError('x')", 2),
        ("edgespec.errors.ModelNotFoundError('x')", 3),
        ("edgespec.errors.PairError('x')", 4),
        ("edgespec.errors.OutOfMemoryError('x')", 5),
        ("MemoryError()", 5),
        ("KeyboardInterrupt()", 130),
        ("click.Abort()", 130),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: str, code: int, tmp_path: Path) -> None:
    program = (
        "import sys, click, edgespec.errors, edgespec.cli.commands.run as r\n"
        f"def fail(*args, **more): raise {error}\n"
        "r.read_prompt = fail\n"
        "from edgespec.cli import main\n"
        "sys.exit(main(['run', 'hello']))"
    )
    done = python(program, home=tmp_path)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("args", [["--help"], ["ls"], ["run", "Hello"], ["history", "list"]])
def test_without_stdout_nothing_is_done_and_that_is_said(args: list[str], tmp_path: Path) -> None:
    done = edgespec_changed("sys.stdout = None", *args, home=tmp_path)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().startswith("edgespec: there is no stdout to write to\n")


@pytest.mark.skipif(os.name != "posix", reason="a shell's redirection")
@pytest.mark.parametrize("redirection", [">&-", "1</dev/null"])
def test_a_stdout_that_takes_nothing_is_an_error(redirection: str, tmp_path: Path) -> None:
    command = f"{shlex.join(COMMAND)} ls --json --catalog {redirection}"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, env=environment(tmp_path), check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(b"edgespec: ")
