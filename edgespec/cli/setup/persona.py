"""The option `--persona`: typed options override the persona, which overrides other defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from click.core import ParameterSource

from edgespec.cli.options.command import Call
from edgespec.cli.options.common import option

if TYPE_CHECKING:
    from edgespec.chat.personas import Persona


PERSONA = option(
    "Prompt", "--persona", metavar="NAME",
    help="Use a saved system prompt with its settings: brief, coder, editor, translator, or your own "
    "('edgespec config' shows the folder).",
)  # fmt: skip


def typed_fields(call: Call) -> set[str]:
    """Return the settings that were typed, by the names of their fields."""
    return set(filter(call.is_typed, call.values))


def named_persona(call: Call) -> Persona | None:
    """Return the persona of the option, if any, and use its model unless one was typed. Raises UsageError."""
    if call.values["persona"] is None:
        return None
    from edgespec.chat.personas import persona

    found = persona(call.values["persona"])
    if found.model and not call.is_typed("model"):
        call.values["model"] = found.model
    return found


def answer_as(call: Call, persona: Persona) -> None:
    """Use the persona's system prompt and settings for the options that were not typed."""
    from edgespec.chat.settings import ChatSettings, setting
    from edgespec.settings import CONSTRAINTS

    typed = typed_fields(call)
    settings = persona.applied(ChatSettings(), typed)
    taken: dict[str, Any] = {"system": persona.system} if persona.system and "system" not in typed else {}
    for item in map(setting, persona.settings):
        is_free = item.field not in typed and not (item.field in CONSTRAINTS and typed & set(CONSTRAINTS))
        if is_free:
            taken[item.field] = item.value(settings)
    for name, value in taken.items():
        call.values[name] = value
        call.ctx.set_parameter_source(name, ParameterSource.DEFAULT_MAP)  # so that the catalogue does not change it
