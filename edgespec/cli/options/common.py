"""Options with the same meaning in many commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from edgespec.cli.options.command import Option

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def option(section: str, *names: str, **attrs: Any) -> Callable[[Decorated], Decorated]:
    """An option that configuration files cannot set."""
    return click.option(*names, cls=Option, section=section, config=False, **attrs)


def flag(*names: str, help: str, config: bool = False) -> Callable[[Decorated], Decorated]:
    return click.option(*names, cls=Option, section="Output", config=config, is_flag=True, help=help)


def with_options(command: Decorated, options: Sequence[Callable[[Decorated], Decorated]]) -> Decorated:
    """The command with these options, in this order."""
    for option in reversed(options):
        command = option(command)
    return command


JSON = flag("--json", "as_json", help="Print one JSON object instead of text.")
JSON_LINES = flag("--json", "as_json", help="Print one JSON object per line instead of text.")
QUIET = flag("-q", "--quiet", help="No notes or progress on stderr.")
VERBOSE = flag("-v", "--verbose", help="Log details to stderr, with tracebacks of errors.")
MODEL_TOO = click.option(
    "-m", "--model", "model_too", metavar="MODEL", hidden=True, help="The same as the argument, as in 'run'."
)
YES = flag("-y", "--yes", help="Do not ask for confirmation.")
