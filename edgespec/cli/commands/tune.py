"""`edgespec tune`: which drafters to use for a model on this machine, how long drafts should be, and what they gain."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.options.command import Call, Command, configured
from edgespec.cli.options.common import JSON, QUIET, VERBOSE, Option, advanced, option
from edgespec.cli.options.generation import (
    CORPUS,
    DRAFT_MODEL,
    MODEL,
    SAMPLING,
    SPECULATION,
    TARGET_NAME,
    load_settings,
    sampling_settings,
)
from edgespec.cli.options.types import SPEC_TYPE, Integer
from edgespec.cli.setup.models import answer_as_its_own, fetch_models, named_model
from edgespec.errors import EdgespecError, UsageError
from edgespec.settings import AUTO_DRAFT, DRAFT_N_MAX, MAX_DRAFT, LoadSettings

if TYPE_CHECKING:
    from edgespec.bench.tune import Tuned
    from edgespec.core.sampling import SamplingSettings

SECONDS = 120

OPTIONS = [
    DRAFT_MODEL,
    CORPUS,
    option(
        "Speculation", "--spec-type", "spec_type", type=SPEC_TYPE, metavar="DRAFTER,...", default="auto",
        show_default="auto: all that can draft for the model", help="Measure only these drafters.",
    ),
    Option(
        "--spec-draft-n-max", "spec_draft_n_max", section="Speculation", type=Integer(1, MAX_DRAFT),
        show_default=str(DRAFT_N_MAX), help="Longest drafts to consider.",
    ),
    *(advanced(each) if each.name != "temperature" else each for each in SAMPLING if each.name != "seed"),
    option(
        "Answer", "--seconds", type=Integer(1), default=SECONDS,
        help="Approximate duration; three prompts are measured with every draft even if that takes longer.",
    ),
    JSON,
    QUIET,
    VERBOSE,
]  # fmt: skip


@click.command(cls=Command, params=[TARGET_NAME, *MODEL, *OPTIONS])
def tune(call: Call) -> None:
    """Measure which drafts are worth it here.

    Compares everything that can draft for MODEL (smollm2 by default): drafters without weights, its MTP block, and each
    draft head and draft model near it, with automatic and with fixed draft lengths, at temperature 0 and at that of
    'run'. All ways answer the same prompts in turns; the speedups are medians of ratios to plain decoding. Then it says
    what to use, and how to make that permanent. Ctrl-C stops and shows what was measured.
    """
    values, output = call.values, call.output
    values["model"] = named_model(call)
    if values["spec_type"] == "none":
        raise UsageError("there is nothing to tune without drafters", hint="leave out --spec-type none")
    answer_as_its_own(call.ctx, values)
    settings = load_settings(values)
    fetch_models(call, settings)
    output.progress(f"loading {values['model']}", 0)
    current = LoadSettings(settings.model, corpus=settings.corpus, **_configured(call))
    found = measure(call, settings, values["seconds"], sampling_settings(values), current)
    show(call, found, as_json=values["as_json"])
    call.interrupts.raise_if_received()
    if found is not None and settings.draft_model not in (None, AUTO_DRAFT):
        from edgespec.bench.candidates import name_of_draft
        from edgespec.models.names.spec import resolve

        named = name_of_draft(resolve(settings.draft_model).path)
        if named in [each.draft for each in found.left_out]:
            call.ctx.exit(EdgespecError.exit_code)


def _configured(call: Call) -> dict[str, Any]:
    """Return the settings of drafting that `run` takes from the environment and the configuration files."""
    set_in_files = configured(call.ctx)
    found = {}
    for each in SPECULATION:
        value = os.environ.get(str(each.envvar)) or set_in_files.get(str(each.name), (None,))[0]
        if each.name in ("draft_model", "spec_type", "pace", "spec_draft_n_max") and value is not None:
            found[str(each.name)] = each.type_cast_value(call.ctx, value)
    return found


def measure(
    call: Call,
    settings: LoadSettings,
    seconds: float,
    sampling: SamplingSettings,
    current: LoadSettings | None = None,
    *,
    only_named: bool = False,
) -> Tuned | None:
    """Measure what can draft for a model, or the named draft alone; None if it was cancelled before it had any result.
    `current` are the settings of a start without options. Raises as `bench.tune.tune` does."""
    from edgespec.bench.suites import sample, shipped
    from edgespec.bench.tune import tune as tune_model

    tell = call.progress_of(settings.model)
    with call.output.showing_progress(), call.cancelling() as cancel:
        items = sample(shipped(), 10)
        chosen: dict[str, Any] = {"current": current, "only_named": only_named}
        return tune_model(settings, sampling, items, seconds, **chosen, progress=tell, cancel=cancel)


def show(call: Call, found: Tuned | None, *, as_json: bool = False) -> None:
    """Print the result, with advice."""
    if found is None:
        call.output.note("stopped before anything was measured")
        return
    from edgespec.bench.advice import advise, table

    advice = advise(found)
    if as_json:
        facts: dict[str, Any] = found.as_json() | {"advice": advice.as_json()}
        call.output.json(facts)
    else:
        call.output.show(table(found, advice))
