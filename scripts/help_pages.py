"""Write docs/commands.md: the help of every command, as the program prints it.

    .venv/bin/python scripts/help_pages.py

tests/scripts/test_help_pages.py fails while the page differs from the program.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from edgespec.cli import commands

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
WIDTH = 90
BEGINNING = """# Commands

`edgespec COMMAND --help` prints these texts. This page is made from the program (`scripts/help_pages.py`).
"""


def page() -> str:
    """Return the whole page as Markdown."""
    with commands.edgespec.make_context("edgespec", [], resilient_parsing=True) as context:
        sections = [f"\n## {path}\n\n```text\n{text}\n```\n" for path, text in helps(commands.edgespec, context)]
    return BEGINNING + "".join(sections)


def helps(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the path and the help of a command, and then of its subcommands in the order in which it lists them."""
    context.terminal_width = context.max_content_width = WIDTH
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from helps(found, click.Context(found, info_name=name, parent=context))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
