"""Commands whose options are grouped in sections and take defaults from the environment and from configuration
files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from edgespec.cli.call import Call
from edgespec.cli.options.common import Option
from edgespec.cli.options.files import Setting, config_files, read_settings, working_folder
from edgespec.cli.options.generation import RUN
from edgespec.cli.options.habits import ELSEWHERE

SECTIONS = ("Prompt", "Server", "Model", "Training", "Speculation", "Sampling", "Answer", "Output")
ARGS, SHOW_ALL = "edgespec.args", "edgespec.show_all"  # keys of the context: the typed arguments, --help-all


def typed(ctx: click.Context) -> str:
    """Return the command as it was typed, without the folders of this machine."""
    names = []
    for arg in ctx.meta[ARGS]:
        option, equals, value = arg.rpartition("=")
        path = Path(value)
        names.append(option + equals + (path.name if path.is_absolute() else value))
    return shlex.join(["edgespec", str(ctx.info_name), *names])


class Command(click.Command):
    """A command that reads the configuration files before its arguments, and whose function gets a `Call`. The keys of
    the files are the options of `run`; a command uses the keys of the options that it has too."""

    def __init__(self, *args: Any, **attrs: Any) -> None:
        super().__init__(*args, **attrs)
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
            values = {name: setting.value for name, setting in configured(ctx).items() if name in options}
            # A single value also sets an option that can be repeated here, but not in `run`.
            ctx.default_map = {
                name: [value] if options[name].multiple and isinstance(value, str) else value
                for name, value in values.items()
            }
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        assert self.callback is not None
        return ctx.invoke(self.callback, Call(ctx))

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


def configured(ctx: click.Context) -> Mapping[str, Setting]:
    """Return the settings of the configuration files, by parameter name. Raises UsageError."""
    options = {each.key: each for each in RUN if each.config}
    checks = {key: partial(each.check, ctx) for key, each in options.items()}
    aliases = {str(each.name): key for key, each in options.items()}
    settings = read_settings(config_files(working_folder()), checks, ELSEWHERE | aliases)
    return {str(options[key].name): setting for key, setting in settings.items()}


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[SHOW_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


HELP_ALL = Option(
    "--help-all", config=False, is_flag=True, is_eager=True, expose_value=False, callback=_show_all,
    help="Show all options: also those that few users need.",
)  # fmt: skip
