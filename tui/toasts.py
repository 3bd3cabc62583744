"""Texts that are shown for some seconds above the screen, wherever the user has scrolled to."""

from __future__ import annotations

from textual.app import App

from edgespec.chat.answerer import Level
from edgespec.text.printable import printable

SHOWN_S, LONG = 6.0, 100  # a text of more characters is shown twice as long
MOST_LINES = 10


def toast(app: App[None], text: str, level: Level = "info") -> None:
    """Show a text; of a very long one the beginning."""
    lines = printable(text).split("\n")
    text = "\n".join([*lines[:MOST_LINES], *(["…"] if len(lines) > MOST_LINES else [])])
    shown_s = SHOWN_S * (2 if len(text) > LONG else 1)
    app.notify(text, severity="information" if level == "info" else level, timeout=shown_s, markup=False)
