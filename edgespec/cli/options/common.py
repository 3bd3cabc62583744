"""Options that mean the same in many commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from edgespec.cli.options.command import Option

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _flag(*names: str, help: str) -> Callable[[Decorated], Decorated]:
    return click.option(*names, cls=Option, section="Output", config=False, is_flag=True, help=help)


JSON = _flag("--json", "as_json", help="Print one JSON object instead of text.")
JSON_LINES = _flag("--json", "as_json", help="Print one JSON object per line instead of text.")
QUIET = _flag("-q", "--quiet", help="No notes or progress on stderr.")
VERBOSE = _flag("-v", "--verbose", help="Log details to stderr, with tracebacks of errors.")
YES = _flag("-y", "--yes", help="Do not ask for confirmation.")
