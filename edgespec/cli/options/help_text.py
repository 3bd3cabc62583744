"""The help of all commands: no line is broken at a hyphen, so `--max-tokens` and `ID-inf` stay whole."""

from __future__ import annotations

from collections.abc import Iterable

import click

UNBROKEN = "\N{NON-BREAKING HYPHEN}"


class HelpFormatter(click.HelpFormatter):
    """Replaces hyphens with unbreakable ones until the lines are wrapped."""

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", UNBROKEN))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl([(name, text.replace("-", UNBROKEN)) for name, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        return super().getvalue().replace(UNBROKEN, "-")


def install() -> None:
    """Use it for every command's help."""
    click.Context.formatter_class = HelpFormatter
