"""Which colours suit the terminal: dark or light ones, and those of the terminal itself where it has only 16."""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic

from rich.console import Console

PATIENCE_S = 0.2  # for the terminal's answer; over a slow line the dark theme is taken
QUESTION = b"\x1b]11;?\x1b\\\x1b[c"  # the background, and then something that every terminal answers
BACKGROUND = re.compile(rb"\]11;rgba?:([0-9a-fA-F]+)/([0-9a-fA-F]+)/([0-9a-fA-F]+)")
DONE = re.compile(rb"\x1b\[\?[\d;]*c")
LIGHT = 0.5  # luminance from which on a background counts as light


def suitable_theme() -> str:
    """The name of a theme for this terminal, which is asked."""
    return theme_for(Console(stderr=True).color_system, os.environ, ask_terminal())


def theme_for(color_system: str | None, environ: Mapping[str, str], answer: bytes = b"") -> str:
    """The name of a theme, for Rich's name of a colour system and what the terminal has answered about itself."""
    is_light = _is_light(answer)
    if is_light is None:
        is_light = environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
    family = "ansi" if color_system in ("standard", "windows") else "textual"
    return f"{family}-{'light' if is_light else 'dark'}"


def ask_terminal() -> bytes:
    """What the terminal says about its background; nothing if it does not say, or if somebody is typing already."""
    if os.name != "posix" or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return b""
    import termios
    import tty

    answer, asked, told = b"", sys.stdin.fileno(), sys.stderr.fileno()
    with suppress(OSError, termios.error):
        before = termios.tcgetattr(asked)
        try:
            tty.setcbreak(asked)
            if select.select([asked], [], [], 0)[0]:
                return b""
            os.write(told, QUESTION)
            until_s = monotonic() + PATIENCE_S
            while not DONE.search(answer) and select.select([asked], [], [], max(0.0, until_s - monotonic()))[0]:
                answer += os.read(asked, 256)
        finally:
            termios.tcsetattr(asked, termios.TCSADRAIN, before)
    return answer


def _is_light(answer: bytes) -> bool | None:
    found = BACKGROUND.search(answer)
    if found is None:
        return None
    red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in found.groups())
    luminance: float = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return luminance > LIGHT
