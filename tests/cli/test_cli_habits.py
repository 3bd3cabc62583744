"""Hints for users who type the names of other programs, such as ollama and llama.cpp."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from cli_program import edgespec_alone, edgespec_here

from edgespec.cli.commands import SUBCOMMANDS
from edgespec.cli.options.group import command_hint
from edgespec.cli.setup.models import looks_like_model


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("models", "did you mean 'edgespec ls'?"),
        ("list", "did you mean 'edgespec ls'?"),
        ("delete x", "did you mean 'edgespec rm'?"),
        ("info x", "did you mean 'edgespec show'?"),
        ("download x", "did you mean 'edgespec pull'?"),
        ("history ls", "did you mean 'edgespec history list'?"),
        ("history remove x", "did you mean 'edgespec history rm'?"),
        ("store rm", "did you mean 'edgespec store clear'?"),
        ("corpus delete x", "did you mean 'edgespec corpus rm'?"),
        ("generate hello", "did you mean 'edgespec run'?"),
        ("puul demo", "did you mean 'edgespec pull'?"),
        ("server", "'edgespec serve' is the server"),
        ("frobnicate", "'edgespec --help' lists the commands"),
        ("history lits", "did you mean 'edgespec history list'?"),
        ("store frobnicate", "the commands are clear, ls"),
        ("help frobnicate", "'edgespec --help' lists the commands"),
        ("help history shwo", "did you mean 'edgespec history show'?"),
        ("-m demo hello", 'options follow a command: edgespec run -m MODEL "PROMPT"'),
        ("run -hf X", "give a model of the hub as -m hf:OWNER/NAME:QUANT"),
        ("chat --hf-repo X", "give a model of the hub as -m hf:OWNER/NAME:QUANT"),
        ("pull -hf X", "give a model of the hub as hf:OWNER/NAME:QUANT"),
        ("run -p hello", 'the prompt needs no option: edgespec run "PROMPT"'),
        ("run -cnv hello", "--raw completes the prompt verbatim"),
        ("run -sys brief hello", "did you mean --system TEXT?"),
        ("run -model demo hello", "did you mean --model MODEL?"),
        ("run --n-predict 4 hello", "did you mean --max-tokens N?"),
        ("run --temperature 0 hello", "did you mean --temp T?"),
        ("run --num_ctx 512 hello", "did you mean --ctx-size N?"),
        ("run --temperture 0 hello", "did you mean --temp T?"),
        ("run demo hello", 'the model is chosen with -m, and the prompt is quoted: edgespec run -m MODEL "PROMPT"'),
        ("run --foo hello", "try 'edgespec run --help'"),
        ("ls a b", "try 'edgespec ls --help'"),
    ],
)
def test_what_is_called_otherwise_here_is_named(typed: str, hint: str, tmp_path: Path) -> None:
    done = edgespec_here(*shlex.split(typed), home=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"  {hint}" in done.stderr.decode()


def test_commands_that_are_meant_are_there() -> None:
    for name in ("models", "generate", "search"):
        assert command_hint(name, SUBCOMMANDS).split("'")[1].split()[1] in SUBCOMMANDS


@pytest.mark.parametrize("names", ["", "run", "history", "history rm"])
def test_help_is_a_command_too(names: str, tmp_path: Path) -> None:
    path = names.split()
    shown = edgespec_here("help", *path, home=tmp_path)
    assert (shown.returncode, shown.stdout) == (0, edgespec_here(*path, "--help", home=tmp_path).stdout)
    if path[:1] == ["history"]:
        assert edgespec_here("history", "help", *path[1:], home=tmp_path).stdout == shown.stdout


@pytest.mark.parametrize("args", [["run", "-h", "-n", "4"], ["run", "-qh"]])
def test_short_switches_are_what_they_were(args: list[str], tmp_path: Path) -> None:
    done = edgespec_here(*args, home=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.startswith(b"Usage: edgespec run")


def test_a_value_may_look_like_an_option(tmp_path: Path) -> None:
    done = edgespec_here("run", "hello", "-n", "0", "--stop", "-hf", "-q", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("prompt", ["qwen3:0.6b", "llama3.2", "demo", "./x.gguf", "unsloth/Qwen3-0.6B-GGUF:Q8_0"])
def test_a_prompt_that_is_called_like_a_model_is_known(prompt: str) -> None:
    assert looks_like_model(prompt)


@pytest.mark.parametrize("prompt", ["hello", "and/or", "Tell me of qwen3:0.6b", "why?", "translate:", ""])
def test_other_prompts_are_prompts(prompt: str) -> None:
    assert not looks_like_model(prompt)


def test_a_model_in_the_place_of_the_prompt_is_reported(tmp_path: Path) -> None:
    note = b"note: 'qwen3:0.6b' was taken as the prompt; to choose the model, use -m\n"
    assert note in edgespec_here("run", "qwen3:0.6b", "-n", "0", home=tmp_path).stderr
    assert note in edgespec_alone("chat", "--plain", "qwen3:0.6b", "-n", "1", home=tmp_path).stderr
    assert note not in edgespec_here("run", "-m", "demo", "qwen3:0.6b", "-n", "0", home=tmp_path).stderr
