"""Turn option values into settings: what to load, how to sample, what to generate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import click

from edgespec.core.sampling import SamplingSettings
from edgespec.errors import UsageError
from edgespec.llama.constraint import constraint_text
from edgespec.settings import CONSTRAINTS, Constraint, LoadSettings, Message, Request


def one_model(argument: str | None, option: str | None) -> str | None:
    """Return the model that a command's argument or its option -m names, if any. Raises UsageError for two models."""
    if argument is not None and option is not None:
        raise UsageError("two models were given", why=f"{argument} and -m {option}", hint="use one of them")
    return argument or option


def load_settings(values: Mapping[str, Any]) -> LoadSettings:
    """Return what to load, from the values of the options by name."""
    return LoadSettings(**_given(LoadSettings, values))


def request(values: Mapping[str, Any], prompt: str, *, chat: bool, seed: int) -> Request:
    """Return what to generate for `prompt`, a user message or a text to complete. Raises UsageError."""
    system = values["system"]
    turns = [Message("system", system)] if system else []
    texts: dict[str, Any] = {kind: constraint_text(kind, given) for kind, given in constraints(values).items()}
    what = {"prompt": "" if chat else prompt, "messages": (*turns, Message("user", prompt)) if chat else ()}
    how = {"sampling": sampling_settings(values), "seed": seed}
    # Drafting is set when loading, for all answers.
    given = {name: value for name, value in _given(Request, values).items() if name not in _given(LoadSettings, values)}
    return Request(**given | texts | what | how)


def constraints(values: Mapping[str, Any]) -> dict[Constraint, str]:
    """Return the constraints of answers: the command line overrides the environment, which overrides files."""
    ctx = click.get_current_context(silent=True)
    given = {kind: values[kind] for kind in CONSTRAINTS if values[kind]}
    sources = {kind: ctx.get_parameter_source(kind) if ctx else None for kind in given}
    order = (click.ParameterSource.COMMANDLINE, click.ParameterSource.ENVIRONMENT, click.ParameterSource.DEFAULT_MAP)
    nearest = next((source for source in order if source in sources.values()), None)
    return {kind: given[kind] if kind in given and sources[kind] is nearest else "" for kind in CONSTRAINTS}


def sampling_settings(values: Mapping[str, Any]) -> SamplingSettings:
    """Return how to sample. Raises UsageError."""
    try:
        return SamplingSettings(**_given(SamplingSettings, values))
    except ValueError as error:
        raise UsageError(str(error)) from error


def _given(settings: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that name a field of `settings`; None keeps the field's default."""
    names = {field.name for field in fields(settings)}
    return {name: value for name, value in values.items() if name in names and value is not None}
