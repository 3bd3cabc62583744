"""`edgespec config`: the settings in force, and the files they come from."""

from __future__ import annotations

import json
import os

import click

from edgespec.cli.options.command import Option, configured
from edgespec.cli.options.files import project_file, user_file, working_folder
from edgespec.cli.terminal.output import Output


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.pass_context
def config(ctx: click.Context) -> None:
    """Show the settings in effect and the files they come from.

    The command line overrides the environment (EDGESPEC_TEMP), which overrides the project's edgespec.toml (here or in
    a parent folder), which overrides the user's config.toml. Keys are the long option names of 'edgespec run'.
    """
    from edgespec.chat.personas import folder, personas
    from edgespec.cli.commands.run import run

    output = Output(quiet=False)
    user, project = user_file(), project_file(working_folder())
    output.line(f"user file     {user}{'' if user.is_file() else ' (does not exist)'}")
    output.line(f"project file  {project or '(none here or in a parent folder)'}")
    output.line(f"personas      {folder()} ({', '.join(each.name for each in personas()[0])})")
    settings = configured(click.Context(run), run)
    for option in run.params:
        if not isinstance(option, Option) or not option.config:
            continue
        setting, variable = settings.get(str(option.name)), os.environ.get(str(option.envvar))
        if variable:
            output.line(f"{option.key} = {json.dumps(variable, ensure_ascii=False)}  # {option.envvar}")
        elif setting is not None:
            origin = "project" if setting.file == project else "user"
            output.line(f"{option.key} = {json.dumps(setting.value, ensure_ascii=False)}  # {origin}")
