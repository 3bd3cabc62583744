"""`edgespec config`: the settings in effect, and the files that set them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from edgespec.cli.options.command import configured
from edgespec.cli.options.common import JSON
from edgespec.cli.options.files import project_file, user_file, working_folder
from edgespec.cli.options.generation import RUN
from edgespec.cli.options.group import HELP_NAMES
from edgespec.cli.terminal.output import Output
from edgespec.text.printable import one_line


@click.command(context_settings=HELP_NAMES)
@JSON
@click.pass_context
def config(ctx: click.Context, /, as_json: bool) -> None:
    """Show the settings in effect and the files they come from.

    The command line overrides the environment (EDGESPEC_TEMP), which overrides the project's edgespec.toml (here or in
    a parent folder), which overrides the user's config.toml. Keys are the long option names of 'edgespec run'.
    """
    from edgespec.chat.personas import folder, personas

    output = Output(quiet=False)
    user, project = user_file(), project_file(working_folder())
    usable, problems = personas()
    names = [each.name for each in usable]
    settings = _in_effect(ctx, project)
    if as_json:
        files = {"user_file": str(user), "project_file": None if project is None else str(project)}
        found = {"folder": str(folder()), "names": names, "problems": problems}
        output.json(files | {"personas": found, "settings": settings})
        return
    output.line(f"user file     {user}{'' if user.is_file() else ' (does not exist)'}")
    output.line(f"project file  {project or '(none here or in a parent folder)'}")
    output.line(f"personas      {folder()} ({', '.join(names)})")
    for problem in problems:
        output.line(f"              cannot be used: {one_line(problem)}")
    for key, setting in settings.items():
        output.line(f"{key} = {json.dumps(setting['value'], ensure_ascii=False)}  # {setting['from']}")


def _in_effect(ctx: click.Context, project: Path | None) -> dict[str, dict[str, Any]]:
    """Return the settings of the environment and of the files by key, each with its source. Raises UsageError."""
    settings = configured(ctx)
    found: dict[str, dict[str, Any]] = {}
    for option in RUN:
        setting, variable = settings.get(str(option.name)), os.environ.get(str(option.envvar))
        if variable:
            found[option.key] = {"value": option.as_toml(ctx, variable), "from": str(option.envvar)}
        elif setting is not None:
            found[option.key] = {"value": setting.value, "from": "project" if setting.file == project else "user"}
    return found
