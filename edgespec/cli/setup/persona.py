"""A persona of the command line (`--persona`): what was typed overrides it, it overrides the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from edgespec.cli.options.command import Option

if TYPE_CHECKING:
    from edgespec.chat.personas import Persona

_FIELDS = {"spec_draft_n_max": "n_max", "spec_tree": "tree"}  # of a chat's settings, by option


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from edgespec.chat.personas import personas

    return [
        CompletionItem(each.name, help=each.description) for each in personas()[0] if each.name.startswith(incomplete)
    ]


PERSONA = click.option(
    "--persona", cls=Option, section="Prompt", config=False, metavar="NAME", shell_complete=_complete,
    help="Answer as a persona: a system prompt with settings ('edgespec config' says where they are). Bundled: brief, "
    "coder, editor, translator.",
)  # fmt: skip


def typed_fields(ctx: click.Context) -> set[str]:
    """The settings that were typed, by the names of their fields."""
    params = {str(param.name) for param in ctx.command.params}
    typed = {name for name in params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    return typed | {field for option, field in _FIELDS.items() if option in typed}


def named_persona(ctx: click.Context, values: dict[str, Any]) -> Persona | None:
    """The persona that was asked for; its model is taken unless another one was typed. Raises UsageError."""
    if values["persona"] is None:
        return None
    from edgespec.chat.personas import persona

    found = persona(values["persona"])
    if found.model and "model" not in typed_fields(ctx):
        values["model"] = found.model
    return found


def answer_as(ctx: click.Context, persona: Persona, values: dict[str, Any]) -> None:
    """Put its system prompt and settings in the place of options that were not typed."""
    from edgespec.chat.settings import ChatSettings, setting
    from edgespec.settings import CONSTRAINTS

    typed = typed_fields(ctx)
    settings = persona.applied(ChatSettings(), typed)
    options = {field: option for option, field in _FIELDS.items()}
    taken: dict[str, Any] = {"system": persona.system} if persona.system and "system" not in typed else {}
    for item in map(setting, persona.settings):
        is_free = item.field not in typed and not (item.field in CONSTRAINTS and typed & set(CONSTRAINTS))
        if is_free:
            taken[options.get(item.field, item.field)] = item.value(settings)
    for name, value in taken.items():
        values[name] = value
        ctx.set_parameter_source(name, ParameterSource.DEFAULT_MAP)  # what the catalogue leaves alone
