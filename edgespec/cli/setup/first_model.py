"""The model of a chat or an answer for which none was chosen; at the first start at a terminal the user is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.cli.options.command import Call, Options
from edgespec.cli.setup.models import (
    DEFAULT_MODEL,
    DEMO,
    can_ask,
    companions,
    fetch_missing,
    have_default_model,
    model_of_variable,
)
from edgespec.cli.terminal.output import Output
from edgespec.errors import EdgespecError, UsageError
from edgespec.models.names.spec import NotFetchedError, resolve
from edgespec.settings import LoadSettings

if TYPE_CHECKING:
    from edgespec.models.hub.pulling import PendingDownload


def model_to_talk_to(call: Call[Options], settings: LoadSettings, *, yes: bool) -> str:
    """Return the model of a chat or an answer for which none was chosen: at the first start at a terminal the one that
    the user chooses, which becomes the default; else the default model, or the bundled pair if that cannot be
    downloaded.

    With `yes` nothing is asked. Raises UsageError as `catalogue` does, and what `fetch_missing` raises if the chosen
    model cannot be downloaded.
    """
    if chosen := model_of_variable(call):
        return chosen
    chosen = "" if yes or not _is_first_start(call.output) else _chosen_first(call, settings)
    if chosen and chosen != DEFAULT_MODEL:
        _fetch_chosen(call, replace(settings, model=chosen))
        _remember(call.output, chosen)
        return chosen
    try:
        have_default_model(call, is_chosen=bool(chosen))
    except UsageError:
        raise
    except EdgespecError as error:
        # also shown with --quiet: the answer must not be mistaken for a real model's
        call.output.aside(f"note: using the bundled {DEMO}, a toy whose answers make little sense: {error.line}")
        return DEMO
    if chosen:
        _remember(call.output, chosen)
    return DEFAULT_MODEL


def _is_first_start(output: Output) -> bool:
    """Return whether the user can be asked for a model, and has no default model yet."""
    from edgespec.models.hub.cache import is_offline

    if output.quiet or is_offline() or not can_ask(output):
        return False
    try:
        resolve(DEFAULT_MODEL)
    except NotFetchedError:
        return True
    return False


def _chosen_first(call: Call[Options], settings: LoadSettings) -> str:
    """Return the model that the user chooses of those that suit this machine; empty if there is nothing to choose."""
    from edgespec.cli.setup.model_offer import choose_model
    from edgespec.models.hub.pulling import items_of

    def plan(name: str) -> list[PendingDownload]:
        return items_of([name], **companions(replace(settings, model=name)))

    return choose_model(call.output, DEFAULT_MODEL, plan)


def _fetch_chosen(call: Call[Options], settings: LoadSettings) -> None:
    """Download the chosen model. Raises what `fetch_missing` raises."""
    try:
        fetch_missing(call, [settings.model], **companions(settings), yes=True)
    except EdgespecError as error:
        error.hint = "; ".join(filter(None, [error.hint, f"-m {DEFAULT_MODEL} uses the small model"]))
        raise


def _remember(output: Output, model: str) -> None:
    """Make a model the default of all commands, in the user's file of settings."""
    from edgespec.files.config_file import change_settings

    try:
        change_settings({"model": model})
    except UsageError as error:
        output.note(f"{model} is not saved as your default model: {error.line}")
    else:
        output.note(f"{model} is your default model now; 'edgespec config set model NAME' changes it")
