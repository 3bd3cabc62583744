"""`edgespec tune`: whether a draft is worth it for a model on this machine, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from edgespec.cancel import CancelFlag
from edgespec.cli.options.command import Command
from edgespec.cli.options.common import JSON, QUIET, VERBOSE, Option, option, with_options
from edgespec.cli.options.generation import CORPUS, DRAFT_MODEL, MODEL
from edgespec.cli.options.given import load_settings, one_model
from edgespec.cli.options.types import SPEC_TYPE, Integer, ModelSpec, Number
from edgespec.cli.setup.default_model import default_model
from edgespec.cli.setup.fetching import fetch_models
from edgespec.cli.terminal.interrupt import Interrupts
from edgespec.cli.terminal.output import Output
from edgespec.errors import UsageError
from edgespec.settings import DRAFT_N_MAX, HEADS, MAX_DRAFT, MTP, SELF, SPELLINGS, drafters_of
from edgespec.text.figures import percent

if TYPE_CHECKING:
    from rich.console import RenderableType

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


@click.command(cls=Command)
@click.argument("target", metavar="[MODEL]", required=False, type=ModelSpec())
@with_options(*MODEL, *OPTIONS)
@click.pass_context
def tune(ctx: click.Context, /, target: str | None, **values: Any) -> None:
    """Measure in a minute whether a draft is worth it here.

    Measures the cost of passes of MODEL (smollm2 by default) and of its draft, the acceptance rate on texts of several
    kinds, and the speed with and without speculation. The results are saved for 'edgespec run'.
    """
    output = Output(quiet=values["quiet"])
    output.log_to_stderr(verbose=values["verbose"])
    values["model"] = one_model(target, values["model"]) or default_model(ctx, output)
    fetch_models(ctx, load_settings(values), output, yes=values["yes"])
    output.progress(f"loading {values['model']}", 0)
    from edgespec.bench.suites import sample, shipped
    from edgespec.bench.tune import tune as tune_pair
    from edgespec.events import PROGRESS
    from edgespec.models.names.spec import resolve
    from edgespec.runtime.runtime import Runtime

    if values["spec_type"] is None:
        has_draft = values["draft_model"] or resolve(values["model"]).default_draft
        values["spec_type"] = "draft" if has_draft else "suffix"
        if not has_draft:
            output.note(f"no draft model was given (-md) and {values['model']} has no default: tuning suffix")
    elif values["spec_type"] in ("auto", "none") or len(drafters_of(values["spec_type"])) > 1:
        raise UsageError("tune measures one drafter at a time", hint=f"name one of {', '.join(SPELLINGS)}")

    if values["spec_draft_n_max"] is None and values["spec_type"].startswith(("draft", SELF, *HEADS, MTP)):
        values["spec_draft_n_max"] = MODEL_N_MAX

    def tell(what: str, done: float) -> None:
        output.progress(PROGRESS.get(what, what).format(values["model"]), done)

    cancel, interrupts = CancelFlag(), ctx.find_object(Interrupts) or Interrupts()
    try:
        with Runtime(replace(load_settings(values), store=False), tell) as llm, interrupts.cancelling(cancel):
            items = sample(shipped(), 10)
            found = tune_pair(
                llm, items, values["seconds"], temperature=values["temperature"], progress=tell, cancel=cancel
            )
            about = llm.describe()
    finally:
        output.end_progress()
    if found is not None and values["as_json"]:
        output.json({"model": about["model"], "draft_model": about["draft_model"], **found.as_json()})
    elif found is not None:
        for part in _report(found):
            output.show(part)
    for note in [*llm.notes, *(found.messages if found else ())]:
        output.note(note)
    interrupts.raise_if_received()


def _report(found: Tuned) -> list[RenderableType]:
    from edgespec.bench.tables import Figures, Lines

    widths = sorted(found.curve.target)
    curve = Figures(
        "Cost of a target pass, relative to a pass over one token",
        ["tokens", *map(str, widths)],
        [["cost", *(f"{found.curve.target[width]:.2f}" for width in widths)]],
    )
    header = ["", "accept.\nrate", f"speedup\nof fixed:{found.length}", "speedup\nof auto"]
    rows = [_row(each) for each in [*found.categories, found.overall]]
    categories = Figures("Speedup over plain decoding", header, rows, bold=[len(found.categories)])
    about = [("target", f"{found.curve.pass_s * 1e3:.3g} ms a pass over one token")]
    if found.curve.draft is not None:
        about.append((found.drafter, f"{found.curve.draft:.3f} of that for a draft token"))
    if found.break_even is not None:
        about.append(("even", f"break-even at {percent(found.break_even)} acceptance"))
    about.append(("measured", str(found.speedup) if found.speedup else "nothing"))
    about.append(("recommendation", found.recommendation.why))
    return [curve, categories, Lines(about)]


def _row(found: CategoryFigures) -> list[str]:
    figures = (found.fixed_speedup, found.auto_speedup)
    rate = "-" if found.alpha is None else percent(found.alpha)
    return [found.category, rate, *("-" if value is None else f"{value:.2f}" for value in figures)]
