"""The code blocks of answers, which commands copy and save."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgespec.text.markdown import parser


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A fenced or indented code block; the language is empty where it is not named."""

    code: str
    language: str

    @property
    def suffix(self) -> str:
        """The suffix of a file with this code."""
        from pygments.lexers import get_lexer_by_name
        from pygments.util import ClassNotFound

        try:
            patterns = get_lexer_by_name(self.language).filenames if self.language else ()
        except ClassNotFound:
            patterns = ()
        return next((found[1] for pattern in patterns if (found := re.fullmatch(r"\*(\.\w+)", pattern))), ".txt")


def code_blocks(text: str) -> list[CodeBlock]:
    """The code blocks of a Markdown text, in order."""
    return [
        CodeBlock(token.content.removesuffix("\n"), next(iter(token.info.split()), ""))
        for token in parser.parse(text)
        if token.type in ("fence", "code_block")
    ]
