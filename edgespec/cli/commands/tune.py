"""`edgespec tune`: which drafters to use for a model on this machine, how long drafts should be, and what they gain."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgespec.cli.options import shared
from edgespec.cli.options.command import Call, Options, command, configured, settings_of, value_of
from edgespec.cli.options.common import JSON, QUIET, VERBOSE, Option, advanced_except, option
from edgespec.cli.options.types import SPEC_TYPE, Integer
from edgespec.cli.setup.models import TARGET_NAME, fetch_models, settings_of_model, use_named_model
from edgespec.core.sampling import SamplingSettings
from edgespec.errors import EdgespecError, UsageError
from edgespec.settings import AUTO_DRAFT, DRAFT_N_MAX, MAX_DRAFT, LoadSettings

if TYPE_CHECKING:
    from edgespec.bench.tune import Tuned

SECONDS = 120


# fmt: off
@dataclass(frozen=True, kw_only=True)
class TuneOptions(Options):
    target: str | None = value_of(TARGET_NAME)
    load: LoadSettings = settings_of(LoadSettings, [
        *shared.MODEL,
        shared.LOADING["draft_model"],
        shared.LOADING["corpus"],
        option(
            "Speculation", "--spec-type", "spec_type", type=SPEC_TYPE, metavar="DRAFTER,...", default="auto",
            show_default="auto: all that can draft for the model", help="Measure only these drafters.",
        ),
        Option(
            "--spec-draft-n-max", "spec_draft_n_max", section="Speculation", type=Integer(1, MAX_DRAFT),
            show_default=str(DRAFT_N_MAX), help="Longest drafts to consider.",
        ),
    ])
    yes: bool = value_of(shared.YES)
    sampling: SamplingSettings = settings_of(
        SamplingSettings, advanced_except(["temperature"], *(each for each in shared.SAMPLING if each.name != "seed"))
    )
    seconds: int = value_of(option(
        "Answer", "--seconds", type=Integer(1), default=SECONDS,
        help="Approximate duration; three prompts are measured with every draft even if that takes longer.",
    ))
    as_json: bool = value_of(JSON)
# fmt: on


@command(TuneOptions, QUIET, VERBOSE)
def tune(call: Call[TuneOptions]) -> None:
    """Measure which drafts are worth it here.

    Compares everything that can draft for MODEL (smollm2 by default): drafters without weights, its MTP block, and each
    draft head and draft model near it, with automatic and with fixed draft lengths, at temperature 0 and at that of
    'run'. All ways answer the same prompts in turns; the speedups are medians of ratios to plain decoding. Then it says
    what to use, and how to make that permanent. Ctrl-C stops and shows what was measured.
    """
    if call.options.load.spec_type == "none":
        raise UsageError("there is nothing to tune without drafters", hint="leave out --spec-type none")
    name = use_named_model(call, call.options.target, call.options.load.model)
    call.change(settings_of_model(call, name))
    options, settings = call.options, call.options.load
    fetch_models(call, settings, yes=options.yes)
    call.output.progress(f"loading {name}", 0)
    current = LoadSettings(settings.model, corpus=settings.corpus, **_configured(call))
    found = measure(call, settings, options.seconds, options.sampling, current)
    show(call, found, as_json=options.as_json)
    call.interrupts.raise_if_received()
    if found is not None and settings.draft_model not in (None, AUTO_DRAFT):
        from edgespec.bench.candidates import name_of_draft
        from edgespec.models.names.spec import resolve

        named = name_of_draft(resolve(settings.draft_model).path)
        if named in [each.draft for each in found.left_out]:
            call.ctx.exit(EdgespecError.exit_code)


def _configured(call: Call[TuneOptions]) -> dict[str, Any]:
    """Return the settings of drafting that `run` takes from the environment and the configuration files."""
    set_in_files = configured(call.ctx)
    found = {}
    for each in shared.SPECULATION:
        value = os.environ.get(str(each.envvar)) or set_in_files.get(str(each.name), (None,))[0]
        if each.name in ("draft_model", "spec_type", "pace", "spec_draft_n_max") and value is not None:
            found[str(each.name)] = each.type_cast_value(call.ctx, value)
    return found


def measure(
    call: Call[Options],
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
        return tune_model(
            settings,
            sampling,
            items,
            seconds,
            current=current,
            only_named=only_named,
            progress=tell,
            cancel=cancel,
        )


def show(call: Call[Options], found: Tuned | None, *, as_json: bool = False) -> None:
    """Print the result, with advice."""
    if found is None:
        call.output.note("stopped before anything was measured")
        return
    from edgespec.bench.advice import advise, table

    advice = advise(found)
    if as_json:
        call.output.json(found.as_json() | {"advice": advice.as_json()})
    else:
        call.output.show(table(found, advice))
