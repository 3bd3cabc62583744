"""The help of every command fits its terminal, and breaks no option in two."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from edgespec.cli.commands import edgespec


def commands(command: click.Command = edgespec, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the names of all commands and their subcommands."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, (*path, name))


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_help_can_be_read(path: tuple[str, ...], columns: int) -> None:
    done = CliRunner().invoke(edgespec, [*path, "--help"], env={"COLUMNS": str(columns)}, prog_name="edgespec")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    # Commands to copy follow a colon and two spaces, and are not broken.
    assert [line for line in lines if len(line) > columns and ":  " not in line] == []
    assert [line for line in lines if re.search(r"\w-$", line)] == []
    assert [line for line in lines if re.search(r"^  \w+ .*\.\.\.$|<=x|default: \(", line)] == []
    assert "\N{NON-BREAKING HYPHEN}" not in done.stdout


def test_rare_options_are_shown_on_request() -> None:
    usual, everything = (CliRunner().invoke(edgespec, ["run", name]).stdout for name in ("--help", "--help-all"))
    assert "--max-tokens" in usual and "--spec-tree" not in usual
    assert "--max-tokens" in everything and "--spec-tree" in everything
