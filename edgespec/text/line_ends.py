"""Line ends of received text: terminals paste carriage returns, and files of Windows have both characters."""

from __future__ import annotations


def with_unix_line_ends(text: str) -> str:
    """Return the text with a newline in place of each CR LF and of each single CR."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
