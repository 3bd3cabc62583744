"""Writing a message in the user's text editor."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import click

from edgespec.errors import UsageError


def edited(text: str) -> str | None:
    """Let the user change a text in the editor that `VISUAL` or `EDITOR` names, else in a usual one of the system.

    Returns None if the user saved nothing. Raises UsageError if there is no such editor, or if it fails.
    """
    try:
        with _ignoring_interrupts():
            changed = click.edit(text, extension=".md")
    except (click.ClickException, ValueError) as error:  # ValueError: quotes in EDITOR, or a file that is not UTF-8
        why = error.message if isinstance(error, click.ClickException) else str(error)
        hint = "VISUAL or EDITOR sets the editor; one that exits at once needs an option such as 'code --wait'"
        raise UsageError("the editor failed, so the message is unchanged", why=why, hint=hint) from error
    return None if changed is None else changed.rstrip("\n")


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Leave Ctrl-C to the editor: the terminal sends it to this process, too."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
