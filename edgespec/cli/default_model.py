"""The model that answers where none is named: a small real one, downloaded once, or the bundled pair where that cannot
be had."""

from __future__ import annotations

import os
from typing import Any

import click
from click.core import ParameterSource

from edgespec.cli.fetching import fetch_missing
from edgespec.cli.output import Output
from edgespec.errors import EdgespecError
from edgespec.models.catalog import find
from edgespec.models.spec import NAMES, NotFetchedError, is_path, resolve

DEFAULT_MODEL = "smollm2"
VARIABLE = "EDGESPEC_DEFAULT_MODEL"  # names another one
DEMO = "demo"


def default_model(ctx: click.Context, output: Output) -> str:
    """The model to load, downloaded if need be, which is said in a line.

    Nothing is asked before that: who names no model wants an answer, and a script has nobody to ask.
    """
    if chosen := os.environ.get(VARIABLE):
        output.note(f"no model given; using {chosen} ({VARIABLE}; choose one with -m)")
        return chosen
    try:
        resolve(DEFAULT_MODEL)
    except NotFetchedError:
        return _downloaded(ctx, output)
    except EdgespecError as error:
        return _demo(output, str(error))
    output.note(f"no model given; using {DEFAULT_MODEL} (choose one with -m)")
    return DEFAULT_MODEL


def answer_as_catalogued(ctx: click.Context, values: dict[str, Any]) -> None:
    """Put the settings that the catalogue has for this model where the user set none.

    The system prompt is left out where prompts are completed verbatim. Raises UsageError as `catalogue` does.
    """
    spec = values["model"]
    entry = None if spec in NAMES or is_path(spec) else find(spec.partition(":")[0])
    for name, value in (entry.settings if entry else {}).items():
        unset = ctx.get_parameter_source(name) is ParameterSource.DEFAULT
        if unset and not (name == "system" and values.get("chat") is False):
            values[name] = value


def _downloaded(ctx: click.Context, output: Output) -> str:
    from edgespec.models.hub import is_offline

    if is_offline():
        why = "--offline or HF_HUB_OFFLINE forbids to download it"
        return _demo(output, f"{DEFAULT_MODEL} is not on this machine, and {why}")
    output.note(f"no model given; downloading {DEFAULT_MODEL}, once (choose another with -m)")
    try:
        fetch_missing(ctx, [DEFAULT_MODEL], output, yes=True)
    except EdgespecError as error:
        return _demo(output, f"{error.what}: {error.why}" if error.why else error.what)
    return DEFAULT_MODEL


def _demo(output: Output, why: str) -> str:
    output.note(f"using the bundled {DEMO}, a toy that makes little sense: {why}")
    return DEMO
