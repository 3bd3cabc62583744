"""`edgespec config`: the settings in effect, the files that set them, and changes of the user's file."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from edgespec.cli.options.command import configured, project_file, setting_option
from edgespec.cli.options.common import Option
from edgespec.cli.options.group import Group
from edgespec.cli.options.shared import CONFIGURABLE
from edgespec.cli.options.types import Text
from edgespec.cli.terminal.output import Output
from edgespec.errors import UsageError
from edgespec.files.config_file import change_settings, read_settings, user_file
from edgespec.files.optional_files import is_there, why_unusable
from edgespec.text.printable import one_line
from edgespec.text.strict_json import json_line


class Key(Text):
    """The name of a setting."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        keys = (each.key for each in CONFIGURABLE)
        return [CompletionItem(key) for key in keys if key.startswith(incomplete)]


@click.group(cls=Group, invoke_without_command=True)
@click.pass_context
def config(ctx: click.Context) -> None:
    """Show the settings in effect and the files they come from, or change the user's file.

    The command line overrides the environment (EDGESPEC_TEMP), which overrides the project's edgespec.toml (here or in
    a parent folder), which overrides the user's config.toml. Keys are the long option names of 'edgespec run'.
    """
    if ctx.invoked_subcommand is None:
        _show(ctx)


def _show(ctx: click.Context) -> None:
    from edgespec.chat.personas import folder, personas

    output = Output(quiet=False)
    user, project = user_file(), project_file()
    usable, problems = personas()
    settings = configured(ctx)
    absent = why_unusable(user) or ("" if is_there(user) else "does not exist")
    output.line(f"user file     {user}{f' ({absent})' if absent else ''}")
    output.line(f"project file  {project or '(none here or in a parent folder)'}")
    output.line(f"personas      {folder()} ({', '.join(each.name for each in usable)})")
    for problem in problems:
        output.line(f"              cannot be used: {one_line(problem)}")
    for option in CONFIGURABLE:
        value, file = settings.get(str(option.name), (None, None))
        if variable := os.environ.get(str(option.envvar)):
            output.line(f"{option.key} = {one_line(variable)}  # {option.envvar}")
        elif file is not None:
            output.line(_line(option.key, value, "project" if file == project else "user"))


# A negative number is a value, not an option.
@config.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("key", type=Key())
@click.argument("values", nargs=-1, required=True, type=Text(), metavar="VALUE...")
@click.pass_context
def set_setting(ctx: click.Context, key: str, values: tuple[str, ...]) -> None:
    """Save a setting in the user's file, whose comments stay.

    \b
    edgespec config set model qwen2.5-7b
    edgespec config set temp 0.3
    edgespec config set stop "User:" "END"
    """
    option = setting_option(key)
    if len(values) > 1 and not option.multiple:
        raise UsageError(f"'{key}' has one value, and {len(values)} are given", hint="quote a text with spaces")
    try:
        # Paths are relative to the working folder here, and to the file's folder in the file.
        typed = [option.typed(value) for value in values]
        value = option.check(ctx, typed if option.multiple else typed[0], Path.cwd() / user_file().name)
    except ValueError as error:
        raise UsageError(f"invalid value for '{key}'", why=str(error)) from error
    file = change_settings({key: value})
    output = Output(quiet=False)
    output.line(_line(key, value, str(file)))
    _note_overrides(option, output)


@config.command("unset")
@click.argument("key", type=Key())
def unset_setting(key: str) -> None:
    """Remove a setting from the user's file."""
    file = user_file()
    if not is_there(file) or key not in read_settings(file):
        raise UsageError(f"'{key}' is not set in {file}", hint="'edgespec config' lists the settings and their files")
    change_settings({key: None})
    Output(quiet=False).line(f"{key} is no longer set in {file}")


def _note_overrides(option: Option, output: Output) -> None:
    """Note what overrides a setting of the user's file."""
    project = project_file()
    if os.environ.get(str(option.envvar)):
        output.note(f"the environment variable {option.envvar} overrides this setting")
    elif project is not None and option.key in read_settings(project):
        output.note(f"{project} overrides this setting here")


def _line(key: str, value: object, source: str) -> str:
    return f"{key} = {json_line(value)}  # {source}"
