"""The clipboard of the system, and that of the terminal, which also works over ssh."""

from __future__ import annotations

import base64
import shutil
import subprocess

# macOS and Windows, then Wayland, then X.
PROGRAMS = (["pbcopy"], ["clip.exe"], ["wl-copy"], ["xclip", "-selection", "clipboard"], ["xsel", "-ib"])
PATIENCE_S = 2.0


def copy_natively(text: str) -> bool:
    """Copy a text to the system's clipboard. Returns False if that fails."""
    for command in PROGRAMS:
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
