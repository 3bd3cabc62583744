"""Commands whose options are grouped in sections and take defaults from the environment and from configuration
files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.options.files import Check, Setting, config_files, read_settings, working_folder
from edgespec.cli.options.habits import ELSEWHERE

if TYPE_CHECKING:
    from click.types import OptionHelpExtra

SECTIONS = ("Prompt", "Server", "Model", "Training", "Speculation", "Sampling", "Answer", "Output")


class Option(click.Option):
    """An option of one section. Its long name is its key in configuration files, and with `EDGESPEC_` its variable,
    unless another `envvar` is given.

    `config` is false for options of the command line only. `exclusive` rejects both names of a switch together;
    otherwise the last one wins.
    """

    def __init__(
        self, *args: Any, section: str = "Output", config: bool = True, exclusive: bool = False, **attrs: Any
    ) -> None:
        super().__init__(*args, **attrs)
        self.section = section
        self.exclusive = exclusive
        self.key = max(self.opts, key=len).lstrip("-")
        self.config = config
        if config and self.envvar is None:
            self.envvar = "EDGESPEC_" + self.key.upper().replace("-", "_")

    def get_error_hint(self, ctx: click.Context | None) -> str:
        hint = super().get_error_hint(ctx)
        if ctx and self.name and ctx.get_parameter_source(self.name) is click.ParameterSource.ENVIRONMENT:
            return f"{hint} (from the environment variable {self.envvar})"
        return hint

    def get_help_extra(self, ctx: click.Context) -> OptionHelpExtra:
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)  # a message about a value out of range names it
        if isinstance(self.show_default, str):
            extra["default"] = self.show_default  # without click's parentheses
        return extra

    def check(self, ctx: click.Context, value: Any, file: Path) -> Any:
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

    def _toml_types(self) -> tuple[type, ...]:
        if self.is_flag:
            return (bool,)
        if isinstance(self.type, click.IntRange):
            return (int,)
        if isinstance(self.type, click.FloatRange):
            return (int, float)
        return getattr(self.type, "toml_types", (str,))


_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}

ARGS = "edgespec.args"
"""The context's key for the typed arguments."""


def typed(ctx: click.Context) -> str:
    """The command as it was typed, without the folders of this machine."""
    names = []
    for arg in ctx.meta[ARGS]:
        option, equals, value = arg.rpartition("=")
        path = Path(value)
        names.append(option + equals + (path.name if path.is_absolute() else value))
    return shlex.join(["edgespec", str(ctx.info_name), *names])


class Command(click.Command):
    """A command that reads the configuration files before its arguments. Their keys are the options of `run`; a command
    uses those that it has too."""

    def __init__(self, *args: Any, **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.context_settings.setdefault("help_option_names", ["-h", "--help"])
        self.context_settings.setdefault("max_content_width", 110)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from edgespec.cli.commands.run import run

        ctx.meta[ARGS] = list(args)
        if not ctx.resilient_parsing:
            self._check_words(ctx, args)
        given = set(args[: args.index("--")] if "--" in args else args)
        for param in self.params:
            if isinstance(param, Option) and param.exclusive and given >= {*param.opts, *param.secondary_opts}:
                raise click.UsageError(f"{param.opts[0]} and {param.secondary_opts[0]} exclude each other", ctx)
        asks_for_help = any(arg in ctx.help_option_names for arg in args)
        if not ctx.resilient_parsing and not asks_for_help:
            names = {param.name for param in self.params if isinstance(param, Option) and param.config}
            settings = configured(ctx, run)
            ctx.default_map = {name: setting.value for name, setting in settings.items() if name in names}
        return super().parse_args(ctx, args)

    def _check_words(self, ctx: click.Context, args: list[str]) -> None:
        """Several letters after one dash are the name of an option, as in -ngl, or switches: click would take -hf for
        -h, and -sys for -s with the value "ys". Raises NoSuchOption."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        names = [name for param in options for name in (*param.opts, *param.secondary_opts)]
        switches = {name[1:] for param in options if param.is_flag for name in param.opts}
        with_value = {name for param in options if not param.is_flag for name in param.opts}
        for before, arg in zip(["", *args], args, strict=False):
            if arg == "--":
                return
            is_word = re.fullmatch("-[A-Za-z][A-Za-z-]+", arg) and before not in with_value
            if is_word and arg not in names and not set(arg[1:]) <= switches:
                raise click.NoSuchOption(arg, possibilities=names, ctx=ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in SECTIONS}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                sections[getattr(param, "section", "Output")].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records, col_max=34)


def configured(ctx: click.Context, command: click.Command) -> Mapping[str, Setting]:
    """The settings of the configuration files, by parameter name. Raises UsageError."""
    options = {param.key: param for param in command.params if isinstance(param, Option) and param.config}
    checks: dict[str, Check] = {key: _checker(ctx, option) for key, option in options.items()}
    aliases = {str(option.name): key for key, option in options.items()}
    settings = read_settings(config_files(working_folder()), checks, ELSEWHERE | aliases)
    return {str(options[key].name): setting for key, setting in settings.items()}


def _checker(ctx: click.Context, option: Option) -> Check:
    return lambda value, file: option.check(ctx, value, file)
