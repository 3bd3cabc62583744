"""`edgespec config`: the settings in effect, and the files that set them."""

from __future__ import annotations

import json
import os

import click

from edgespec.cli.options.command import configured, project_file, user_file
from edgespec.cli.options.generation import RUN
from edgespec.cli.options.group import HELP_NAMES
from edgespec.cli.terminal.output import Output
from edgespec.text.printable import one_line


@click.command(context_settings=HELP_NAMES)
@click.pass_context
def config(ctx: click.Context) -> None:
    """Show the settings in effect and the files they come from.

    The command line overrides the environment (EDGESPEC_TEMP), which overrides the project's edgespec.toml (here or in
    a parent folder), which overrides the user's config.toml. Keys are the long option names of 'edgespec run'.
    """
    from edgespec.chat.personas import folder, personas

    output = Output(quiet=False)
    user, project = user_file(), project_file()
    usable, problems = personas()
    settings = configured(ctx)
    output.line(f"user file     {user}{'' if user.is_file() else ' (does not exist)'}")
    output.line(f"project file  {project or '(none here or in a parent folder)'}")
    output.line(f"personas      {folder()} ({', '.join(each.name for each in usable)})")
    for problem in problems:
        output.line(f"              cannot be used: {one_line(problem)}")
    for option in RUN:
        value, file = settings.get(str(option.name), (None, None))
        if variable := os.environ.get(str(option.envvar)):
            output.line(f"{option.key} = {one_line(variable)}  # {option.envvar}")
        elif file is not None:
            source = "project" if file == project else "user"
            output.line(f"{option.key} = {json.dumps(value, ensure_ascii=False)}  # {source}")
