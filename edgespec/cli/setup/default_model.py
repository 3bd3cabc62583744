"""The default model, a small model that is downloaded once, and the catalogue's settings for models."""

from __future__ import annotations

import os
from typing import Any

import click
from click.core import ParameterSource

from edgespec.cli.call import Call
from edgespec.cli.options.given import one_model
from edgespec.cli.options.habits import looks_like_model
from edgespec.cli.setup.fetching import fetch_missing
from edgespec.cli.terminal.output import Output
from edgespec.errors import EdgespecError, ModelNotFoundError, UsageError
from edgespec.models.names.spec import NotFetchedError, catalogued_settings, resolve

DEFAULT_MODEL = "smollm2"
VARIABLE = "EDGESPEC_DEFAULT_MODEL"  # names another model
DEMO = "demo"


def default_model(call: Call, *, or_demo: bool = False) -> str:
    """Return the model to load, downloaded with a note if necessary; with `or_demo` the bundled pair if that fails.

    It is downloaded without asking, because scripts cannot answer. Raises UsageError as `catalogue` does, and without
    `or_demo` ModelNotFoundError.
    """
    if chosen := os.environ.get(VARIABLE):
        call.output.note(f"no model given; using {chosen} ({VARIABLE}; choose a model with -m)")
        return chosen
    try:
        _have_default_model(call)
    except UsageError:
        raise
    except EdgespecError as error:
        if not or_demo:
            raise ModelNotFoundError(
                "no model given, and the default model is not available",
                why=error.line,
                hint=f"use another model, such as -m {DEMO}; to download the default: edgespec pull {DEFAULT_MODEL}",
            ) from error
        # also shown with --quiet: the answer must not be mistaken for a real model's
        call.output.aside(f"note: using the bundled {DEMO}, a toy whose answers make little sense: {error.line}")
        return DEMO
    return DEFAULT_MODEL


def named_model(call: Call) -> str:
    """Return the model that the command's argument or its option -m names, or the default model. Raises UsageError for
    two models, and as `default_model` does."""
    return one_model(call.values["target"], call.values["model"]) or default_model(call)


def note_model_as_prompt(output: Output, prompt: str | None, model: str | None) -> None:
    """Show a note if the prompt looks like a model, which ollama takes first. Raises UsageError as `catalogue` does."""
    if prompt and not model and looks_like_model(prompt):
        output.note(f"{prompt!r} was taken as the prompt; to choose the model, use -m")


def answer_as_catalogued(ctx: click.Context, values: dict[str, Any]) -> None:
    """Use the catalogue's settings for this model, except for options that the user set.

    The system prompt is left out if prompts are completed verbatim. Raises UsageError as `catalogue` does.
    """
    for name, value in catalogued_settings(values["model"]).items():
        unset = ctx.get_parameter_source(name) is ParameterSource.DEFAULT
        if unset and not (name == "system" and values.get("chat") is False):
            values[name] = value


def _have_default_model(call: Call) -> None:
    from edgespec.models.hub.cache import is_offline

    try:
        resolve(DEFAULT_MODEL)
    except NotFetchedError as error:
        if is_offline():
            raise ModelNotFoundError(error.what, why="--offline or HF_HUB_OFFLINE forbids downloading it") from error
        call.output.note(f"no model given; downloading {DEFAULT_MODEL} once (choose another model with -m)")
        fetch_missing(call, [DEFAULT_MODEL], yes=True)
    else:
        call.output.note(f"no model given; using {DEFAULT_MODEL} (choose a model with -m)")
