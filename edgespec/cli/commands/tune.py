"""`edgespec tune`: whether a draft is worth it for a model on this machine, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.options.command import Call, Command
from edgespec.cli.options.common import JSON, QUIET, VERBOSE, Option, option
from edgespec.cli.options.generation import CORPUS, DRAFT_MODEL, MODEL, TARGET_NAME, load_settings
from edgespec.cli.options.types import SPEC_TYPE, Integer, Number
from edgespec.cli.setup.models import fetch_models, named_model
from edgespec.cli.terminal.output import Output
from edgespec.errors import UsageError
from edgespec.settings import DRAFT_N_MAX, HEADS, MAX_DRAFT, MTP, SELF, SPELLINGS, LoadSettings, drafters_of
from edgespec.text.figures import counted, percent

if TYPE_CHECKING:
    from edgespec.bench.tune import CategoryFigures, Tuned

SECONDS = 60
MODEL_N_MAX = 8  # each is a pass of the draft model at every token

OPTIONS = [
    DRAFT_MODEL,
    CORPUS,
    option(
        "Speculation", "--spec-type", "spec_type", type=SPEC_TYPE, metavar="DRAFTER",
        show_default="draft, or suffix without a draft model", help="Drafter to measure.",
    ),
    Option(
        "--spec-draft-n-max", "spec_draft_n_max", section="Speculation", type=Integer(1, MAX_DRAFT),
        show_default=f"{DRAFT_N_MAX}, or {MODEL_N_MAX} with a draft model", help="Longest drafts to consider.",
    ),
    option("Sampling", "--temp", "temperature", type=Number(0), default=0.0, metavar="T", help="Temperature."),
    option(
        "Answer", "--seconds", type=Integer(1), default=SECONDS,
        help="Approximate duration; every category gets at least one text.",
    ),
    JSON,
    QUIET,
    VERBOSE,
]  # fmt: skip


@click.command(cls=Command, params=[TARGET_NAME, *MODEL, *OPTIONS])
def tune(call: Call) -> None:
    """Measure in a minute whether a draft is worth it here.

    Measures the cost of passes of MODEL (smollm2 by default) and of its draft, the acceptance rate on texts of several
    kinds, and the speed with and without speculation. The results are saved for 'edgespec run'.
    """
    values, output = call.values, call.output
    values["model"] = named_model(call)
    fetch_models(call, load_settings(values))
    output.progress(f"loading {values['model']}", 0)
    from edgespec.models.names.spec import resolve

    if values["spec_type"] is None:
        has_draft = values["draft_model"] or resolve(values["model"]).default_draft
        values["spec_type"] = "draft" if has_draft else "suffix"
        if not has_draft:
            output.note(f"no draft model was given (-md) and {values['model']} has no default: tuning suffix")
    elif values["spec_type"] in ("auto", "none") or len(drafters_of(values["spec_type"])) > 1:
        raise UsageError("tune measures one drafter at a time", hint=f"name one of {', '.join(SPELLINGS)}")

    if values["spec_draft_n_max"] is None and values["spec_type"].startswith(("draft", SELF, *HEADS, MTP)):
        values["spec_draft_n_max"] = MODEL_N_MAX
    measured = measure(call, load_settings(values), values["seconds"], temperature=values["temperature"])
    if measured.found is not None and values["as_json"]:
        about = measured.about
        output.json({"model": about["model"], "draft_model": about["draft_model"], **measured.found.as_json()})
        measured = replace(measured, found=None)
    measured.show(output)
    call.interrupts.raise_if_received()


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of `measure`: `found` is None if it was cancelled before it had any; `about` describes the models."""

    found: Tuned | None
    about: dict[str, Any]
    notes: list[str]

    def show(self, output: Output) -> None:
        if self.found is not None:
            _show(self.found, output)
        for note in self.notes:
            output.note(note)


def measure(call: Call, settings: LoadSettings, seconds: float, *, temperature: float = 0.0) -> Measured:
    """Measure the drafter of these settings. Raises what `Runtime` raises, and UsageError."""
    from edgespec.bench.suites import sample, shipped
    from edgespec.bench.tune import tune as tune_pair
    from edgespec.runtime.runtime import Runtime

    tell = call.progress_of(settings.model)
    with (
        call.output.showing_progress(),
        Runtime(replace(settings, store=False), tell) as llm,
        call.cancelling() as cancel,
    ):
        items = sample(shipped(), 10)
        found = tune_pair(llm, items, seconds, temperature=temperature, progress=tell, cancel=cancel)
        return Measured(found, llm.describe(), [*llm.notes, *(found.messages if found else ())])


def _show(found: Tuned, output: Output) -> None:
    from edgespec.bench.tables import Figures

    widths = sorted(found.curve.target)
    costs = ["cost", *(f"{found.curve.target[width]:.2f}" for width in widths)]
    title = "Cost of a target pass, relative to a pass over one token"
    output.show(Figures(title, ["tokens", *map(str, widths)], [costs]))
    header = ["", "accept.\nrate", f"speedup\nof fixed:{found.length}", "speedup\nof auto"]
    rows = [_row(each) for each in [*found.categories, found.overall]]
    output.show(Figures("Speedup over plain decoding", header, rows, bold=[len(found.categories)]))
    about = [("target", f"{found.curve.pass_s * 1e3:.3g} ms a pass over one token")]
    if found.curve.draft is not None:
        about.append((found.drafter, f"{found.curve.draft:.3f} of that for a draft token"))
    if (even := found.curve.break_even) is not None:
        length = counted(found.curve.best_length(even), "draft token")
        about.append(("even", f"break-even at {percent(even)} acceptance, with {length} a step"))
    about.append(("measured", str(found.speedup) if found.speedup else "nothing"))
    about.append(("recommendation", found.recommendation.why))
    output.facts(about)


def _row(found: CategoryFigures) -> list[str]:
    figures = (found.fixed_speedup, found.auto_speedup)
    rate = "-" if found.alpha is None else percent(found.alpha)
    return [found.category, rate, *("-" if value is None else f"{value:.2f}" for value in figures)]
