"""Commands whose options are grouped in sections and take defaults from the environment and from configuration files.

The options of a command are the fields of a subclass of `Options`: `value_of` declares one of them, and `settings_of`
those that set the fields of settings, such as LoadSettings. The function of the command gets a `Call` with the values.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click
from click.core import ParameterSource

from edgespec.cancel import CancelFlag
from edgespec.cli.options.common import Option
from edgespec.cli.options.group import ELSEWHERE
from edgespec.cli.options.shared import CONFIGURABLE, settings_from
from edgespec.cli.terminal.interrupt import Interrupts
from edgespec.cli.terminal.output import Output
from edgespec.errors import UsageError
from edgespec.files.config_file import read_settings, user_file
from edgespec.files.optional_files import is_there

if TYPE_CHECKING:
    from edgespec.events import Progress

PROJECT_FILE = "edgespec.toml"
SECTIONS = ("Prompt", "Tools", "Server", "Model", "Training", "Speculation", "Sampling", "Answer", "Output")
ARGS, SHOW_ALL = "edgespec.args", "edgespec.show_all"  # keys of the context: the typed arguments, --help-all


def typed(ctx: click.Context) -> str:
    """Return the command as it was typed, without the folders of this machine."""
    names = []
    for arg in ctx.meta[ARGS]:
        option, equals, value = arg.rpartition("=")
        path = Path(value)
        names.append(option + equals + (path.name if path.is_absolute() else value))
    return shlex.join(["edgespec", str(ctx.info_name), *names])


@dataclass(frozen=True, kw_only=True)
class Options:
    """The values of the options and arguments of a command; each command has a subclass."""


Settings = TypeVar("Settings")
Values = TypeVar("Values", bound=Options)
Values_co = TypeVar("Values_co", bound=Options, covariant=True)


def value_of(param: click.Parameter) -> Any:
    """Declare a field of a command's options: the option or argument of the same name sets it."""
    return field(metadata={"params": [param]})


def settings_of(settings: type[Settings], options: Sequence[Option]) -> Settings:
    """Declare a field of a command's options: settings, made of the values of all options that have the names of their
    declared fields. `options` become options of the command; `--verify`, for example, is listed with those of loading,
    and sets a field of answers."""
    declared: Settings = field(metadata={"params": options, "settings": settings})
    return declared


class Call(Generic[Values_co]):
    """A running command.

    Attributes:
        options: The values of its options and arguments.
        cancel: The flag that the first signal sets within `cancelling`.
    """

    options: Values_co

    def __init__(self, ctx: click.Context, options: type[Values_co]) -> None:
        self.ctx, self.cancel, self._kind = ctx, CancelFlag(), options
        self.output = Output(quiet=ctx.params.get("quiet", False), verbose=ctx.params.get("verbose", False))
        self.interrupts = ctx.find_object(Interrupts) or Interrupts()
        self.options = self.options_with({})

    def options_with(self, values: Mapping[str, object]) -> Values_co:
        """Return the options with some other values, by the names of the options. Raises UsageError."""
        params = {**self.ctx.params, **values}
        made = {
            each.name: settings_from(each.metadata["settings"], params, self.ctx)
            if "settings" in each.metadata
            else params[each.name]
            for each in fields(self._kind)
        }
        return self._kind(**made)

    def change(self, values: Mapping[str, object], source: ParameterSource | None = None) -> None:
        """Replace values in `options`, by the names of the options. Raises UsageError."""
        self.ctx.params.update(values)
        if source is not None:
            for name in values:
                self.ctx.set_parameter_source(name, source)
        self.options = self.options_with({})

    def is_typed(self, name: str) -> bool:
        """Return whether an option was given on the command line."""
        return self.ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE

    def typed_names(self) -> set[str]:
        """Return the names of the options and arguments that were given on the command line."""
        return set(filter(self.is_typed, self.ctx.params))

    def typed_options(self) -> list[Option]:
        """Return the options that were given on the command line."""
        params = self.ctx.command.params
        return [param for param in params if isinstance(param, Option) and self.is_typed(str(param.name))]

    def is_unset(self, name: str) -> bool:
        """Return whether an option has its default."""
        return self.ctx.get_parameter_source(name) is ParameterSource.DEFAULT

    @contextmanager
    def cancelling(self) -> Iterator[CancelFlag]:
        """Within this block the first signal sets `cancel`, which is returned, instead of ending the process."""
        with self.interrupts.calling(self.cancel.set):
            yield self.cancel

    def progress_of(self, model: str) -> Progress:
        """Return a function that shows how far the loading of a model is."""
        from edgespec.events import PROGRESS

        names = {what: text.format(model) for what, text in PROGRESS.items()}
        return lambda what, done: self.output.progress(names.get(what, what), done)


class Command(click.Command):
    """A command that reads the configuration files before its arguments, and whose function gets a `Call`. The keys of
    the files are the options of `run`; a command uses the keys of the options that it has too."""

    def __init__(self, *args: Any, options: type[Options], more: Sequence[Option], **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.options = options
        self.params += [*(param for each in fields(options) for param in each.metadata["params"]), *more]
        self.context_settings.setdefault("help_option_names", ["-h", "--help"])
        self.context_settings.setdefault("max_content_width", 110)
        if any(isinstance(param, Option) and param.advanced for param in self.params):
            self.params.append(HELP_ALL)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[ARGS] = list(args)
        if not ctx.resilient_parsing:
            self._check_words(ctx, args)
        given = set(args[: args.index("--")] if "--" in args else args)
        asks_for_help = given & {*ctx.help_option_names, *HELP_ALL.opts}
        if not ctx.resilient_parsing and not asks_for_help:
            options = {str(param.name): param for param in self.params if isinstance(param, Option) and param.config}
            values = {name: value for name, (value, _) in configured(ctx).items() if name in options}
            # A single value also sets an option that can be repeated here, but not in `run`.
            ctx.default_map = {
                name: [value] if options[name].multiple and isinstance(value, str) else value
                for name, value in values.items()
            }
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        assert self.callback is not None
        return ctx.invoke(self.callback, Call(ctx, self.options))

    def _check_words(self, ctx: click.Context, args: list[str]) -> None:
        """Refuse unknown names of several letters after one dash: click would take -hf for -h, and -sys for -s with the
        value "ys". Raises NoSuchOption."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        names = [name for param in options for name in (*param.opts, *param.secondary_opts)]
        switches = {name[1:] for param in options if param.is_flag for name in param.opts}
        with_value = {name for param in options if not param.is_flag for name in param.opts}
        for before, arg in zip(["", *args], args, strict=False):
            if arg == "--":
                return
            is_word = re.fullmatch("-[A-Za-z][A-Za-z-]+", arg) and before not in with_value
            if is_word and arg not in names and not set(arg[1:]) <= switches:
                raise click.NoSuchOption(arg, ctx=ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {name: [] for name in SECTIONS}
        for param in self.get_params(ctx):
            if getattr(param, "advanced", False) and SHOW_ALL not in ctx.meta:
                continue
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                sections[getattr(param, "section", "Output")].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records, col_max=34)


def command(
    options: type[Values],
    *more: Option,
    name: str | None = None,
    group: click.Group | None = None,
    short_help: str = "",
) -> Callable[[Callable[[Call[Values]], None]], click.Command]:
    """Return a decorator that makes a function a command with these options, of a group if there is one.

    The values of `more` are not in the call's options: they act by themselves, as `--offline`, or on the call's output.
    """

    def decorate(function: Callable[[Call[Values]], None]) -> click.Command:
        make = click.command if group is None else group.command
        return make(name, cls=Command, options=options, more=more, short_help=short_help)(function)

    return decorate


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[SHOW_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


HELP_ALL = Option(
    "--help-all", config=False, is_flag=True, is_eager=True, expose_value=False, callback=_show_all,
    help="Show all options: also those that few users need.",
)  # fmt: skip


# --- configuration files ----------------------------------------------------------------------------------------------


def project_file() -> Path | None:
    """Return the nearest `edgespec.toml` in the working folder or a folder above it."""
    try:
        folder = Path.cwd()
    except OSError:  # it has been deleted
        return None
    candidates = (above / PROJECT_FILE for above in (folder, *folder.parents))
    return next((file for file in candidates if is_there(file)), None)


def config_files() -> list[Path]:
    """Return the files that apply in the working folder; the project's overrides the user's."""
    return [file for file in (user_file(), project_file()) if file is not None and is_there(file)]


def configured(ctx: click.Context) -> dict[str, tuple[object, Path]]:
    """Return the settings of the configuration files, each with its file, by parameter name. Raises UsageError, which
    names the file and the key."""
    settings: dict[str, tuple[object, Path]] = {}
    for file in config_files():
        for key, value in read_settings(file).items():
            option = setting_option(key, f"{file}: ")
            try:
                settings[str(option.name)] = option.check(ctx, value, file), file
            except ValueError as error:
                raise UsageError(f"{file}: invalid value for '{key}'", why=str(error)) from error
    return settings


def setting_option(key: str, where: str = "") -> Option:
    """Return the option of `run` that a key of a file sets. Raises UsageError, which begins with `where`."""
    options = {each.key: each for each in CONFIGURABLE}
    if key not in options:
        raise UsageError(f"{where}unknown setting '{key}'", hint=_hint(key, options.values()))
    return options[key]


def _hint(key: str, options: Collection[Option]) -> str:
    names = ELSEWHERE | {str(each.name).replace("_", "-"): each.key for each in options}
    names |= {each.key: each.key for each in options}
    near = difflib.get_close_matches(key.lower().replace("_", "-"), names, n=1)
    if near:
        return f"did you mean '{names[near[0]]}'?"
    return "'edgespec run --help-all' lists the options: keys are their long names"
