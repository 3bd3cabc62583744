"""The models that a command needs: the default model, missing models, the settings of personas and of the catalogue,
and the notes of a model."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

import click
from click.core import ParameterSource

from edgespec.cancel import CancelFlag
from edgespec.cli.options.command import Call, Options
from edgespec.cli.options.common import option
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.terminal.output import Output
from edgespec.errors import EdgespecError, ModelNotFoundError, UsageError
from edgespec.models.names.catalog import near
from edgespec.models.names.source import NAMES
from edgespec.models.names.spec import NotFetchedError, own_settings, resolve
from edgespec.settings import AUTO_DRAFT, CONSTRAINTS, LoadSettings
from edgespec.text.figures import size_of

if TYPE_CHECKING:
    from edgespec.chat.personas import Persona
    from edgespec.llm.model import Model
    from edgespec.models.hub.pulling import PendingDownload

DEFAULT_MODEL = "smollm2"
VARIABLE = "EDGESPEC_DEFAULT_MODEL"  # names another model
DEMO = "demo"
Ask = Callable[[str], bool]

TARGET_NAME = click.Argument(["target"], metavar="[MODEL]", required=False, type=ModelSpec())

PERSONA = option(
    "Prompt", "--persona", metavar="NAME",
    help="Use a saved system prompt with its settings: brief, coder, editor, translator, or your own "
    "('edgespec config' shows the folder).",
)  # fmt: skip


def default_model(call: Call[Options]) -> str:
    """Return the model to load, downloaded with a note if necessary.

    It is downloaded without asking, because scripts cannot answer. Raises UsageError as `catalogue` does, and
    ModelNotFoundError.
    """
    if chosen := model_of_variable(call):
        return chosen
    try:
        have_default_model(call)
    except UsageError:
        raise
    except EdgespecError as error:
        raise ModelNotFoundError(
            "no model given, and the default model is not available",
            why=error.line,
            hint=f"use another model, such as -m {DEMO}; to download the default: edgespec pull {DEFAULT_MODEL}",
        ) from error
    return DEFAULT_MODEL


def use_named_model(call: Call[Options], argument: str | None, option: str) -> str:
    """Choose the model that the command's argument or its option -m names, or the default model, and return it. The
    argument overrides a configured model. Raises UsageError for two models, and as `default_model` does."""
    if argument is not None and call.is_typed("model"):
        raise UsageError("two models were given", why=f"{argument} and -m {option}", hint="use one of them")
    name = argument or option or default_model(call)
    call.change({"model": name})
    return name


def looks_like_model(prompt: str) -> bool:
    """Return whether a prompt is probably the model, which ollama takes first. Raises UsageError as `catalogue`
    does."""
    if not re.fullmatch(r"\S+", prompt):
        return False
    return prompt in NAMES or "gguf" in prompt.lower() or bool(near(prompt.replace(":", "-")))


def note_model_as_prompt(output: Output, prompt: str | None, model: str | None) -> None:
    if prompt and not model and looks_like_model(prompt):
        output.note(f"{prompt!r} was taken as the prompt; to choose the model, use -m")


def named_persona(call: Call[Options], name: str | None) -> Persona | None:
    """Return the persona of the option, if any, and use its model unless one was typed. Raises UsageError."""
    if name is None:
        return None
    from edgespec.chat.personas import persona

    found = persona(name)
    if found.model and not call.is_typed("model"):
        call.change({"model": found.model})
    return found


def answer_as(call: Call[Options], persona: Persona) -> None:
    """Use the persona's system prompt and settings for the options that were not typed."""
    from edgespec.chat.settings import ChatSettings, setting

    typed = call.typed_names()
    settings = persona.applied(ChatSettings(), typed)
    taken: dict[str, object] = {"system": persona.system} if persona.system and "system" not in typed else {}
    for item in map(setting, persona.settings):
        is_free = item.field not in typed and not (item.field in CONSTRAINTS and typed & set(CONSTRAINTS))
        if is_free:
            taken[item.field] = item.value(settings)
    call.change(taken, ParameterSource.DEFAULT_MAP)  # so that the catalogue does not change it


def settings_of_model(call: Call[Options], spec: str) -> dict[str, object]:
    """Return a model's own settings, of the catalogue or of Ollama, by the names of options that the user left open.

    The system prompt is left out if prompts are completed verbatim. Raises UsageError as `catalogue` does.
    """
    is_verbatim = call.ctx.params.get("chat") is False
    return {
        name: value
        for name, value in own_settings(spec).items()
        if call.is_unset(name) and not (name == "system" and is_verbatim)
    }


def show_notes(model: Model, output: Output) -> None:
    """Show the new notes of a model."""
    for note in model.notes.take():
        output.note(note)


def model_of_variable(call: Call[Options]) -> str:
    """Return the default model that the environment names, with a note; empty without one."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen:
        call.output.note(f"no model given; using {chosen} ({VARIABLE}; choose a model with -m)")
    return chosen


def have_default_model(call: Call[Options], *, is_chosen: bool = False) -> None:
    """Download the default model if it is not here, with a note unless the user has chosen it."""
    from edgespec.models.hub.cache import is_offline

    try:
        resolve(DEFAULT_MODEL)
    except NotFetchedError as error:
        if is_offline():
            raise ModelNotFoundError(error.what, why="--offline or HF_HUB_OFFLINE forbids downloading it") from error
        if not is_chosen:
            call.output.note(f"no model given; downloading {DEFAULT_MODEL} once (choose another model with -m)")
        fetch_missing(call, [DEFAULT_MODEL], yes=True)
    else:
        call.output.note(f"no model given; using {DEFAULT_MODEL} (choose a model with -m)")


# --- downloads --------------------------------------------------------------------------------------------------------


def confirmed(question: str) -> bool:
    """Ask the user a question whose default answer is yes."""
    return click.confirm(question, default=True, err=True)


def can_ask(output: Output) -> bool:
    """Return whether there is a terminal on which the user can answer a question. A job in the background of a shell
    would be stopped."""
    if sys.stdin is None or not sys.stdin.isatty() or not output.stderr_is_terminal:
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError):  # Windows has no such jobs, and another terminal than the program's has none
        return True


def fetch_models(
    call: Call[Options], settings: LoadSettings, *, yes: bool, modes: Sequence[str] = (), ask: Ask = confirmed
) -> LoadSettings:
    """Download the models that these settings need, or that these modes of a benchmark need.

    Returns the settings, without a draft model if the default draft could not be downloaded. Raises as `fetch_missing`
    does.
    """
    named = None if settings.draft_model == AUTO_DRAFT else settings.draft_model
    drafts = [named] if named else []
    of_model = companions(settings, modes)
    has_all = fetch_missing(call, [settings.model, *drafts], **of_model, drafts=drafts, yes=yes, ask=ask)
    others = settings.without_draft
    return settings if has_all or others == "none" else replace(settings, spec_type=others)


class Companions(TypedDict):
    """The models whose drafts and assistants are downloaded with them."""

    drafts_of: Collection[str]
    assistants_of: Collection[str]


def companions(settings: LoadSettings, modes: Sequence[str] = ()) -> Companions:
    """Return whether a draft or an assistant of the model is downloaded with it. Raises UsageError."""
    if settings.draft_model not in (None, AUTO_DRAFT):
        return {"drafts_of": [], "assistants_of": []}
    uses_assistant = settings.uses_draft and "assistant" in settings.drafters
    return {
        "drafts_of": [settings.model] if uses_draft(settings, modes) else [],
        "assistants_of": [settings.model] if uses_assistant else [],
    }


def uses_draft(settings: LoadSettings, modes: Sequence[str] = ()) -> bool:
    """Return whether a draft model, not a head, is used with these settings or in one of these modes. Raises
    UsageError."""
    if modes:
        from edgespec.bench.modes import parse_mode, possible_drafters

        possible = possible_drafters(settings, ["draft"])
        return any("draft" in parse_mode(mode, possible).drafters for mode in modes)
    return settings.uses_draft and "draft" in settings.drafters


def fetch_missing(
    call: Call[Options],
    specs: Sequence[str | None],
    *,
    yes: bool,
    drafts_of: Collection[str] = (),
    assistants_of: Collection[str] = (),
    drafts: Collection[str] = (),
    ask: Ask = confirmed,
) -> bool:
    """Download the missing models among `specs`.

    The catalogue's drafts of the models in `drafts_of` are downloaded too, and the assistants of those in
    `assistants_of`. The question calls the models in `drafts` drafts; with `yes` it is not asked.

    Returns whether all models exist now: a draft that fails is not an error. Raises NotFetchedError if the user
    declines or cannot be asked, and the errors of downloading.
    """
    missing: dict[str, NotFetchedError] = {}
    for spec in filter(None, specs):
        try:
            resolve(spec)
        except NotFetchedError as error:
            missing[spec] = error
    if not missing:
        return True
    from edgespec.models.hub.cache import is_offline
    from edgespec.models.hub.pulling import fetch_items, items_of, missing_bytes, plan_all, without_failed

    output = call.output
    refusal = next(iter(missing.values()))
    if is_offline() or not (yes or can_ask(output)):
        raise refusal
    items = items_of(list(missing), drafts_of=drafts_of, assistants_of=assistants_of)
    possible = plan_all(items, output)
    coming = [item for item in possible if not item.was_here]
    if not yes and missing_bytes(coming) and not ask(_question(coming, drafts)):
        with_drafts = [target.spec for item in coming for target in item.targets]
        if with_drafts:
            refusal.hint += f", or without its draft: edgespec pull {with_drafts[0]} --no-draft"
        raise refusal
    cancel = CancelFlag()
    with call.interrupts.calling(cancel.set):
        fetch_items(possible, output, cancel)
    tell_stopped(possible, output)
    call.interrupts.raise_if_received()
    return without_failed(possible, output) == items


def tell_stopped(items: Sequence[PendingDownload], output: Output) -> None:
    """Show which downloads were stopped by Ctrl-C."""
    for item in items:
        if item.stopped:
            output.control("\r\x1b[K")  # the terminal has written ^C after the line to erase
            output.note(item.stopped)


def _question(items: Sequence[PendingDownload], drafts: Collection[str]) -> str:
    """Return the question, which names the models, their sizes and the free space."""
    from edgespec.models.hub.pulling import free_bytes, missing_bytes
    from edgespec.models.memory.fit import fit_of, needed_by_size, room_bytes

    downloads = {item.spec: item.download for item in items if item.download is not None}
    named = []
    for item in items:
        role = "its draft" if item.is_draft else "the draft" if item.spec in drafts else "the model"
        size = f" ({size_of(downloads[item.spec].missing_bytes)})" if len(items) > 1 else ""
        named.append(f"{role} {item.spec}{size}")
    missing, free = size_of(missing_bytes(items)), size_of(free_bytes(items))
    needed, room = needed_by_size(sum(download.size_bytes for download in downloads.values())), room_bytes()
    fit = f"; {fit_of(needed, room)}" if needed > room else ""
    return f"Download {' and '.join(named)}, {missing} ({free} free{fit})?"
