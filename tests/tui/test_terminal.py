"""The theme that suits the terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, cast
from unittest.mock import Mock

import pytest

from edgespec.tui.terminal import ask_terminal, draws_pictures, handle_signals, theme_for

if TYPE_CHECKING:
    from textual.drivers.linux_driver import LinuxDriver

WHITE, BLACK = b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?62;c", b"\x1b]11;rgb:1e/1e/2e\x07\x1b[?6c"


@pytest.mark.parametrize(
    ("colours", "environ", "answer", "theme"),
    [
        ("truecolor", {}, WHITE, "textual-light"),
        ("truecolor", {}, BLACK, "textual-dark"),
        ("256", {}, b"", "textual-dark"),
        ("256", {"COLORFGBG": "0;15"}, b"", "textual-light"),
        ("256", {"COLORFGBG": "0;default;15"}, BLACK, "textual-dark"),
        ("standard", {"COLORFGBG": "15;0"}, b"\x1b[?1;2c", "ansi-dark"),
        ("windows", {}, WHITE, "ansi-light"),
        (None, {}, b"\x1b]11;rgb:zz", "textual-dark"),
    ],
)
def test_a_theme_suits_the_background_and_the_number_of_colours(
    colours: str | None, environ: dict[str, str], answer: bytes, theme: str
) -> None:
    assert theme_for(colours, environ, answer) == theme


@pytest.mark.parametrize(
    ("colours", "answer", "draws"),
    [
        ("truecolor", b"\x1bP>|kitty(0.28.1)\x1b\\\x1b[?62;c", True),
        ("truecolor", b"\x1bP>|kitty(0.42.0)\x1b\\", True),
        ("truecolor", b"\x1bP>|kitty(0.26.5)\x1b\\", False),
        ("truecolor", b"\x1bP>|ghostty 1.2.0\x1b\\", True),
        ("256", b"\x1bP>|kitty(0.42.0)\x1b\\", False),
        ("truecolor", b"\x1bP>|tmux 3.4\x1b\\", False),
        ("truecolor", BLACK, False),
    ],
)
def test_only_terminals_with_placeholders_draw_pictures(colours: str, answer: bytes, draws: bool) -> None:
    assert draws_pictures(colours, answer) == draws


@pytest.mark.parametrize(("term", "asks"), [("xterm-kitty", True), ("xterm-256color", False), ("tmux-256color", False)])
def test_a_terminal_is_asked_for_its_version_only_if_it_may_draw_pictures(
    term: str, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pty = pytest.importorskip("pty", reason="needs a pseudo-terminal")
    monkeypatch.setenv("TERM", term)
    screen, terminal = pty.openpty()
    with os.fdopen(terminal, "r+b", buffering=0) as both:
        monkeypatch.setattr(sys, "stdin", both)
        monkeypatch.setattr(sys, "stderr", both)
        ask_terminal()
        assert (b"\x1b[>q" in os.read(screen, 64)) == asks
    os.close(screen)


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("says", "heard"), [(WHITE, WHITE), (b"", b"")])
def test_a_terminal_that_does_not_answer_is_not_waited_for(
    says: bytes, heard: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pty

    screen, terminal = pty.openpty()
    asked = []

    def answer() -> None:
        asked.append(os.read(screen, 64))
        os.write(screen, says)

    talking = threading.Thread(target=answer)
    talking.start()
    with os.fdopen(terminal, "r+b", buffering=0) as both:
        monkeypatch.setattr(sys, "stdin", both)
        monkeypatch.setattr(sys, "stderr", both)
        assert ask_terminal() == heard
    talking.join()
    os.close(screen)
    assert asked[0].startswith(b"\x1b]11;?")


@pytest.mark.skipif(not hasattr(signal, "SIGCONT"), reason="needs signals of POSIX")
@pytest.mark.parametrize("leaves", [False, True])
def test_a_program_that_leaves_does_not_draw_again_when_its_terminal_goes(leaves: bool) -> None:
    """The system continues the programs of a terminal that goes. Threads that were started then would never end."""
    driver = Mock(_auto_restart=True, _must_signal_resume=False)
    driver._app._exit = leaves

    async def continued() -> None:
        handle_signals(cast("LinuxDriver", driver), lambda: None)
        os.kill(os.getpid(), signal.SIGCONT)
        await asyncio.sleep(0.05)

    asyncio.run(continued())
    assert driver._sigcont_application.called is driver.suspend_application_mode.called is not leaves
