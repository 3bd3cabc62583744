"""Markdown as answers are read: by the screen that draws it, and by commands that copy code from it."""

from __future__ import annotations

from markdown_it import MarkdownIt

parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def code_blocks(text: str) -> list[str]:
    """The code blocks of a Markdown text, fenced and indented ones, in order."""
    kinds = ("fence", "code_block")
    return [token.content.removesuffix("\n") for token in parser.parse(text) if token.type in kinds]
