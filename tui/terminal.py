"""The terminal: a theme that suits its colours, and signals that would leave it as the screen has set it."""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from time import monotonic
from typing import TYPE_CHECKING

import psutil
from rich.console import Console
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS

if TYPE_CHECKING:
    from textual.drivers.linux_driver import LinuxDriver

PATIENCE_S = 0.2  # for the answer of the terminal; a slow connection gets the dark theme
PICTURES = ("xterm-kitty", "xterm-ghostty")  # terminals that may draw pictures, by TERM
VERSION_QUERY = b"\x1b[>q"
VERSION = re.compile(rb"\x1bP>\|(?P<name>kitty|ghostty)\W*(?P<version>\d+\.\d+)")  # the answer to it
LEAST_KITTY = 0, 28  # knows placeholders of pictures
QUERY = b"\x1b]11;?\x1b\\\x1b[c"  # OSC 11 asks for the background; every terminal answers the second query
BACKGROUND = re.compile(rb"\]11;rgba?:([0-9a-fA-F]+)/([0-9a-fA-F]+)/([0-9a-fA-F]+)")
END = re.compile(rb"\x1b\[\?[\d;]*c")  # the answer to the second query
LIGHT = 0.5  # backgrounds of a higher luminance are light


def asked_terminal() -> tuple[str, bool]:
    """Return the name of a theme for this terminal and whether it draws pictures, after asking it."""
    colours, answer = Console(stderr=True).color_system, ask_terminal()
    return theme_for(colours, os.environ, answer), draws_pictures(colours, answer)


def draws_pictures(color_system: str | None, answer: bytes) -> bool:
    """Return whether a terminal draws pictures where placeholders are. Their colours must reach it unchanged."""
    match = VERSION.search(answer)
    if color_system != "truecolor" or match is None:
        return False
    version = tuple(map(int, match["version"].split(b".")))
    return match["name"] == b"ghostty" or version >= LEAST_KITTY


def theme_for(color_system: str | None, environ: Mapping[str, str], answer: bytes) -> str:
    """Return the name of a theme for one of Rich's colour systems, and the answer of the terminal."""
    is_light = environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
    if match := BACKGROUND.search(answer):
        red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in match.groups())
        is_light = 0.2126 * red + 0.7152 * green + 0.0722 * blue > LIGHT
    family = "ansi" if color_system in ("standard", "windows") else "textual"
    return f"{family}-{'light' if is_light else 'dark'}"


def ask_terminal() -> bytes:
    """Return the answer of the terminal to `QUERY`; nothing if it has none, or if the user is typing already."""
    if os.name != "posix" or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return b""
    import termios
    import tty

    answer, asked = b"", sys.stdin.fileno()
    with suppress(OSError, termios.error):
        before = termios.tcgetattr(asked)
        try:
            tty.setcbreak(asked)
            if select.select([asked], [], [], 0)[0]:
                return b""
            version = VERSION_QUERY if os.environ.get("TERM") in PICTURES else b""
            os.write(sys.stderr.fileno(), version + QUERY)
            until_s = monotonic() + PATIENCE_S
            while not END.search(answer) and select.select([asked], [], [], max(0.0, until_s - monotonic()))[0]:
                answer += os.read(asked, 256)
        finally:
            termios.tcsetattr(asked, termios.TCSADRAIN, before)
    return answer


class OtherKeys(Enum):
    """Keys that Textual 8.2.8 does not know in this way."""

    ALT_ENTER = "alt+enter"


def know_alt_enter() -> None:
    """Let Textual tell Alt+Enter from Enter: most terminals send ESC and CR for it."""
    for sequence in ("\x1b\r", "\x1b\n"):
        ANSI_SEQUENCES_KEYS[sequence] = (OtherKeys.ALT_ENTER,)  # type: ignore[index]


def can_be_continued() -> bool:
    """Return whether a shell with job control started this program: nothing else would continue it if it stopped."""
    if os.name != "posix":
        return False
    with suppress(OSError, psutil.Error):
        starter = psutil.Process(os.getpgrp()).ppid()
        return os.getsid(starter) == os.getsid(0) and os.getpgid(starter) != os.getpgrp()
    return False


def handle_signals(driver: LinuxDriver, keep: Callable[[], object]) -> None:
    """Draw the screen again after the process was stopped, and restore the terminal on SIGQUIT after calling `keep`."""

    def resume() -> None:
        """Draw the screen again. Textual 8.2.8 knows only of stops by its own key: after another one it would start its
        threads twice, and leave the screen blank."""
        if driver._app._exit:  # nothing would end the threads again: a terminal that goes continues its programs, too
            return
        if driver._auto_restart and not driver._must_signal_resume:
            driver.suspend_application_mode()
            driver._must_signal_resume = True
        driver._sigcont_application()

    def quit() -> None:
        try:
            keep()
        finally:
            driver.suspend_application_mode()
            loop.remove_signal_handler(signal.SIGQUIT)
            os.kill(os.getpid(), signal.SIGQUIT)

    loop = asyncio.get_running_loop()
    # Between two callbacks: in the middle of one, they could wait for ever for a lock that is held there.
    loop.add_signal_handler(signal.SIGCONT, resume)
    loop.add_signal_handler(signal.SIGQUIT, quit)
