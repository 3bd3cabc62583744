"""`edgespec bench`: measure how fast a model decodes in each mode, and what speculation gains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgespec.cli.options.command import Call, Options, command, settings_of, typed, value_of
from edgespec.cli.options.common import QUIET, VERBOSE, option
from edgespec.cli.options.shared import LOADING, MODEL, YES
from edgespec.cli.options.types import Integer, Number, Text
from edgespec.cli.setup.models import TARGET_NAME, fetch_models, use_named_model
from edgespec.cli.terminal.output import Output
from edgespec.errors import EdgespecError, UsageError, told_as
from edgespec.files.paths import check_writable, write_whole
from edgespec.settings import HEADS, MTP, LoadSettings
from edgespec.text.strict_json import json_line

if TYPE_CHECKING:
    from edgespec.bench.measure import BenchResult
    from edgespec.bench.modes import Mode
    from edgespec.bench.suites import SuitePrompt

PER_CATEGORY = 3
STDOUT = "-"


# fmt: off
@dataclass(frozen=True, kw_only=True)
class BenchOptions(Options):
    target: str | None = value_of(TARGET_NAME)
    load: LoadSettings = settings_of(LoadSettings, [*MODEL, LOADING["draft_model"], LOADING["corpus"]])
    yes: bool = value_of(YES)
    modes: tuple[str, ...] = value_of(option(
        "Speculation", "--mode", "modes", multiple=True, type=Text(), metavar="MODE",
        show_default="all drafters, each alone, and fixed lengths",
        help="Mode to compare with plain decoding: drafters, auto or fixed:K, optionally tree:W and a "
        "verification rule, such as 'all auto', 'suffix fixed:4', 'self:8 auto', 'draft fixed:6 tree:4 "
        "rejection'. 'all' are suffix, recycling, a corpus, the draft model or head, and mtp where the model "
        "has the block. Repeatable.",
    ))
    categories: tuple[str, ...] = value_of(option(
        "Prompt", "--suite", "categories", multiple=True, type=Text(), metavar="CATEGORY", show_default="all",
        help="Use only the prompts of this category. Repeatable.",
    ))
    prompts: str | None = value_of(option(
        "Prompt", "--prompts", type=click.Path(), metavar="FILE",
        help="Use the prompts in this JSONL file instead of the built-in suites.",
    ))
    per_category: int | None = value_of(option(
        "Prompt", "--per-category", type=Integer(1), show_default=f"{PER_CATEGORY}, or all in FILE",
        help="Prompts per category.",
    ))
    temperatures: tuple[float, ...] = value_of(option(
        "Sampling", "--temp", "temperatures", multiple=True, type=Number(0), metavar="T",
        show_default="0 and 0.8; 0 with --reference", help="Temperature. Repeatable.",
    ))
    tokens: int | None = value_of(option(
        "Answer", "-n", "--max-tokens", "tokens", type=Integer(1), show_default="48, or all with --reference",
        help="Tokens per answer.",
    ))
    repeat: int = value_of(option(
        "Answer", "--repeat", type=Integer(1), default=1, help="Repeat every measurement N times.",
    ))
    reference: bool = value_of(option(
        "Answer", "--reference", is_flag=True,
        help="Force the reference answers that come with the prompts: measures the gain on realistic text even if the "
        "model cannot write it.",
    ))
    json_file: str | None = value_of(option(
        "Output", "--json", "json_file", type=click.Path(dir_okay=False, allow_dash=True), metavar="FILE",
        help="All figures as JSON; '-' for stdout.",
    ))
    plot_file: str | None = value_of(option(
        "Output", "--plot", "plot_file", type=click.Path(dir_okay=False), metavar="FILE",
        help="The speedups as a PNG or SVG picture (needs matplotlib).",
    ))
    compare: tuple[str, str] | None = value_of(option(
        "Output", "--compare", nargs=2, type=click.Path(), metavar="A B",
        help="Compare two files written by --json, without measuring.",
    ))
# fmt: on


@command(BenchOptions, QUIET, VERBOSE)
def bench(call: Call[BenchOptions]) -> None:
    """Benchmark decoding speed and speculation.

    MODEL (smollm2 by default) answers each prompt in all modes before the next prompt, so that all modes run under the
    same conditions. The table goes to stdout. Ctrl-C stops and shows what was measured.
    """
    options, output = call.options, call.output
    if options.compare:
        from edgespec.bench.measure import load_result
        from edgespec.bench.report import side_by_side

        output.show(side_by_side(*(load_result(Path(file)) for file in options.compare)))
        return
    use_named_model(call, options.target, options.load.model)
    settings = call.options.load
    fetch_models(call, settings, yes=options.yes, modes=options.modes)
    files = options.json_file, options.plot_file
    if options.plot_file:
        from edgespec.bench.report import check_plot

        check_plot(Path(options.plot_file))
    for name in files:
        if name and name != STDOUT:
            check_writable(Path(name))  # before anything is measured
    from edgespec.bench.suites import chosen

    items, problems = chosen(options.prompts, options.categories, options.per_category, PER_CATEGORY)
    modes = _modes(settings, options.modes, output)
    result = _measure(call, settings, modes, items)
    if options.json_file == STDOUT:
        for message in result.messages:
            output.note(message)
    elif result.samples:
        from edgespec.bench.report import table

        output.show(table(result))
    for problem in problems:
        output.note(f"{options.prompts}: {problem}")
    _write(result, *files, output)
    if result.failure:
        raise EdgespecError(result.failure)
    call.interrupts.raise_if_received()


# --- the request ------------------------------------------------------------------------------------------------------


def _modes(settings: LoadSettings, texts: Sequence[str], output: Output) -> list[Mode]:
    """Return the requested modes, or all that are possible."""
    from edgespec.bench.modes import default_modes, parse_mode, possible_drafters, with_plain
    from edgespec.runtime.model_files import drafters_here

    here = drafters_here(settings)
    has_draft = bool(here - {MTP})
    possible = possible_drafters(settings, here)
    modes = with_plain(parse_mode(text, possible) for text in texts)
    if not texts:
        if not has_draft:
            output.note(
                f"no draft model was given (-md) and {settings.model} has no default: measuring the other drafters"
            )
        return default_modes(possible)
    for mode in modes if not has_draft else []:
        if {"draft", *HEADS}.isdisjoint(mode.drafters):
            continue
        raise UsageError(
            f"mode {mode.name} needs a draft {'model' if 'draft' in mode.drafters else 'head'}",
            why=f"{settings.model} has no default draft",
            hint="pass one (-md)",
        )
    return modes


# --- measuring --------------------------------------------------------------------------------------------------------


def _measure(
    call: Call[BenchOptions], settings: LoadSettings, modes: list[Mode], items: list[SuitePrompt]
) -> BenchResult:
    """Return the result, complete or not. Partial results go to the file of --json after every prompt."""
    options, output, file = call.options, call.output, call.options.json_file
    output.progress(f"loading {settings.model}", 0)
    from edgespec.bench.measure import TEMPERATURES, BenchPlan, run_bench
    from edgespec.bench.modes import settings_for
    from edgespec.core.sampling import SamplingSettings
    from edgespec.runtime.runtime import Runtime

    # With noise a draft model would miss a reference answer, which was not sampled with that noise.
    temperatures = tuple(dict.fromkeys(options.temperatures)) or ((0.0,) if options.reference else TEMPERATURES)
    try:
        for temperature in temperatures:
            SamplingSettings(temperature=temperature)
    except ValueError as error:
        raise UsageError(str(error)) from error
    plan = BenchPlan(
        items,
        modes,
        temperatures=temperatures,
        tokens=options.tokens,
        repeat=options.repeat,
        reference=options.reference,
        command=typed(call.ctx),
    )
    show = call.progress_of(settings.model)

    def tell(what: str, done: float) -> None:
        if what != "prompt":  # there are many; the total progress is shown
            show(what, done)

    def keep(result: BenchResult) -> None:
        if file not in (None, STDOUT) and len(result.samples) % len(result.modes) == 0:
            with suppress(OSError):  # the final write reports it
                write_whole(Path(file), _as_text(result))

    # Before anything is measured there is nothing to save: while the model is loaded, Ctrl-C ends the program.
    with output.showing_progress(), Runtime(settings_for(settings, modes), tell) as llm, call.cancelling() as cancel:
        return run_bench(llm, plan, output.progress, cancel, keep)


# --- the result -------------------------------------------------------------------------------------------------------


def _write(result: BenchResult, json_file: str | None, plot_file: str | None, output: Output) -> None:
    """Write a result, unless nothing was measured, which would replace the file of an earlier run. Raises
    EdgespecError."""
    if not result.samples:
        return
    if plot_file:
        from edgespec.bench.report import plot_bench

        with told_as(EdgespecError, f"{plot_file} cannot be written"):
            write_whole(Path(plot_file), plot_bench(result, Path(plot_file)))
    if json_file == STDOUT:
        output.line(_as_text(result).rstrip("\n"))
    elif json_file:
        with told_as(EdgespecError, f"{json_file} cannot be written"):
            write_whole(Path(json_file), _as_text(result))


def _as_text(result: BenchResult) -> str:
    """The result as JSON with one sample per line, to be read with a pager."""
    about = result.as_json()
    samples = [json_line(sample) for sample in about.pop("samples")]
    lines = [f"{json.dumps(name)}: {json_line(value)}" for name, value in about.items()]
    return "{\n" + ",\n".join(lines) + ',\n"samples": [\n' + ",\n".join(samples) + "\n]\n}\n"
