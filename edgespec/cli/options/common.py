"""The class of all options, and the options that many commands share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from click.types import OptionHelpExtra

Decorated = TypeVar("Decorated", bound=Callable[..., object])

_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


class Option(click.Option):
    """An option of one section of the help, which can be used as a decorator.

    Its long name is its key in configuration files and, with the prefix `EDGESPEC_`, its environment variable, unless
    `config` is false. `--help` leaves out options that are `advanced`.
    """

    def __init__(
        self, *names: str, section: str = "Output", config: bool = True, advanced: bool = False, **attrs: Any
    ) -> None:
        default = attrs.get("default")
        attrs.setdefault("show_default", default is not False and default not in (None, (), ""))
        attrs.setdefault("metavar", getattr(attrs.get("type"), "metavar", None))
        super().__init__(names, **attrs)
        self.section, self.config, self.advanced = section, config, advanced
        self.key = max(self.opts, key=len).lstrip("-")
        if config and self.envvar is None:
            self.envvar = "EDGESPEC_" + self.key.upper().replace("-", "_")

    def __call__(self, command: Decorated) -> Decorated:
        """Add this option to a function that becomes a command, as the decorator `click.option` does."""
        command.__dict__.setdefault("__click_params__", []).append(self)
        return command

    def get_error_hint(self, ctx: click.Context | None) -> str:
        hint = super().get_error_hint(ctx)
        if ctx and self.name and ctx.get_parameter_source(self.name) is click.ParameterSource.ENVIRONMENT:
            return f"{hint} (from the environment variable {self.envvar})"
        return hint

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)  # the message about a value out of range names the range
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default  # without click's parentheses
        return extra

    def check(self, ctx: click.Context, value: object, file: Path) -> object:
        """Validate a value from TOML. Raises ValueError."""
        values = value if self.multiple and isinstance(value, list) else [value]
        for item in values:
            if type(item) not in self._toml_types():
                raise ValueError(f"{item!r} must be {_KINDS.get(self._toml_types()[-1], 'a text')}")
        if hasattr(self.type, "relative_to"):
            values = [self.type.relative_to(file.parent, item) for item in values]
        try:
            self.type_cast_value(ctx, values if self.multiple else values[0])
        except click.BadParameter as error:
            raise ValueError(error.message) from error
        return values if self.multiple else values[0]

    def typed(self, text: str) -> object:
        """Return a text from a command line as the value that a file would have; a text that has none stays a text."""
        for kind in (click.BOOL,) if self.is_flag else self._toml_types():
            with suppress(ValueError, click.BadParameter):
                return kind(text)
        return text

    def _toml_types(self) -> tuple[type, ...]:
        if self.is_flag:
            return (bool,)
        if isinstance(self.type, click.IntRange):
            return (int,)
        if isinstance(self.type, click.FloatRange):
            return (int, float)
        return getattr(self.type, "toml_types", (str,))


def option(section: str, *names: str, **attrs: Any) -> Option:
    """Return an option that configuration files cannot set."""
    return Option(*names, section=section, config=False, **attrs)


def flag(*names: str, help: str, config: bool = False) -> Option:
    return Option(*names, config=config, is_flag=True, help=help)


def advanced(shared: Option) -> Option:
    """Return a copy of an option that the command's `--help` leaves out."""
    hidden = copy(shared)
    hidden.advanced = True
    return hidden


def advanced_except(names: Collection[str], *options: Option) -> list[Option]:
    """Return options, of which `--help` lists only those that it did and that have these names."""
    return [each if each.name in names else advanced(each) for each in options]


JSON = flag("--json", "as_json", help="Print one JSON object instead of text.")
JSON_LINES = flag("--json", "as_json", help="Print one JSON object per line instead of text.")
QUIET = flag("-q", "--quiet", help="No notes or progress on stderr.")
VERBOSE = flag("-v", "--verbose", help="Log details to stderr, with tracebacks of errors.")
YES = flag("-y", "--yes", help="Do not ask for confirmation.")
