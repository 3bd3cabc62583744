"""The theme that suits the terminal."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from edgespec.tui.terminal import ask_terminal, theme_for

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
