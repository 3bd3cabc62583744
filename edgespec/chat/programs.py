"""Programs of the user's system that a chat calls: the text editor, and those of the clipboard."""

from __future__ import annotations

import base64
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import click

from edgespec.errors import UsageError

# macOS and Windows, then Wayland, then X.
CLIPBOARDS = (["pbcopy"], ["clip.exe"], ["wl-copy"], ["xclip", "-selection", "clipboard"], ["xsel", "-ib"])
PATIENCE_S = 2.0


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


def copy_natively(text: str) -> bool:
    """Copy a text to the system's clipboard. Returns False if that fails."""
    for command in CLIPBOARDS:
        if shutil.which(command[0]) is None:
            continue
        data = text.encode("utf-16-le" if command[0] == "clip.exe" else "utf-8")
        try:
            done = subprocess.run(
                command, input=data, timeout=PATIENCE_S, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return True
    return False


def osc52(text: str) -> str:
    """Return the escape sequence that makes a terminal copy a text."""
    return f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\x07"
