"""`edgespec bench`: how fast a model decodes in each mode, measured in turns, and what guessing earns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.cancel import CancelFlag
from edgespec.cli.options.bench import PER_CATEGORY, bench_options
from edgespec.cli.options.command import Command, typed
from edgespec.cli.options.given import load_settings, one_model
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.setup.default_model import default_model
from edgespec.cli.setup.fetching import fetch_models
from edgespec.cli.terminal.interrupt import Interrupts
from edgespec.cli.terminal.output import Output
from edgespec.errors import EdgespecError, UsageError
from edgespec.files.paths import check_writable, write_whole
from edgespec.settings import LoadSettings

if TYPE_CHECKING:
    from edgespec.bench.measure import Result
    from edgespec.bench.modes import Mode
    from edgespec.bench.suites import Item

STDOUT = "-"


@click.command(cls=Command)
@click.argument("target", metavar="[MODEL]", required=False, type=ModelSpec())
@bench_options
@click.pass_context
def bench(ctx: click.Context, /, target: str | None, **values: Any) -> None:
    """Benchmark decoding speed and speculation.

    MODEL (smollm2 by default) answers each prompt in each mode, prompt by prompt in turns, so that all modes run under
    the same conditions. The table goes to stdout. Ctrl-C stops and shows the results so far.
    """
    output = Output(quiet=values["quiet"])
    output.log_to_stderr(verbose=values["verbose"])
    if values["compare"]:
        _compare(output, *map(Path, values["compare"]))
        return
    values["model"] = one_model(target, values["model"]) or default_model(ctx, output)
    settings = load_settings(values)
    fetch_models(ctx, settings, output, yes=values["yes"], modes=values["modes"])
    files = _check_files(values)
    items, problems = _items(values)
    modes = _modes(settings, values["modes"], output)
    result, interrupts = _measure(ctx, output, settings, modes, items, values, files.get("json"))
    # A file that an earlier bench has left is worth more than nothing.
    failures = list(_write(files, result, output)) if result["samples"] else []
    if STDOUT in files.values():
        for message in result["messages"]:
            output.note(message)
    elif result["samples"]:
        from edgespec.bench.report import table

        output.show(table(result))
    for problem in problems:
        output.note(f"{values['prompts']}: {problem}")
    for failure in [result["failure"], *failures]:
        if failure:
            output.error(failure)
    interrupts.raise_if_received()
    if result["failure"] or failures:
        ctx.exit(EdgespecError.exit_code)


# --- what is asked for ------------------------------------------------------------------------------------------------


def _check_files(values: dict[str, Any]) -> dict[str, str]:
    """The files to write by what goes into them. Raises UsageError for one that cannot be written."""
    files = {kind: values[f"{kind}_file"] for kind in ("json", "csv", "plot") if values[f"{kind}_file"]}
    if list(files.values()).count(STDOUT) > 1 or files.get("plot") == STDOUT:
        raise UsageError("only one of --json and --csv can go to stdout", hint="give the other one a file name")
    for kind, name in files.items():
        if kind == "plot":
            from edgespec.bench.plot import check_plot

            check_plot(Path(name))
        if name != STDOUT:
            check_writable(Path(name))
    return files


def _items(values: dict[str, Any]) -> tuple[list[Item], list[str]]:
    """The prompts, and what is wrong with others in the user's file."""
    from edgespec.bench.suites import read_items, sample, shipped

    categories: tuple[str, ...] = values["categories"]
    problems: list[str] = []
    if values["prompts"] is None:
        items = shipped(categories or None)
    else:
        items, problems = read_items(Path(values["prompts"]))
        if categories:
            items = [item for item in items if item.category in categories]
            if not items:
                raise UsageError(f"{values['prompts']} has no prompts of category {' or '.join(categories)}")
    per_category = values["per_category"] or (PER_CATEGORY if values["prompts"] is None else len(items))
    return sample(items, per_category), problems


def _modes(settings: LoadSettings, texts: Sequence[str], output: Output) -> list[Mode]:
    """The modes that were asked for, or those that are possible."""
    from edgespec.bench.modes import default_modes, parse_mode, possible_drafters, with_plain
    from edgespec.models.names.spec import resolve

    has_draft = settings.draft_model is not None or resolve(settings.model).default_draft is not None
    possible = possible_drafters(settings, has_draft=has_draft)
    modes = with_plain(parse_mode(text, possible) for text in texts)
    if not texts:
        if not has_draft:
            output.note(
                f"no draft model was given (-md) and {settings.model} has no default: measuring the other drafters"
            )
        return default_modes(possible)
    needing = [mode.name for mode in modes if "draft" in mode.drafters]
    if needing and not has_draft:
        raise UsageError(
            f"mode {needing[0]} needs a draft model",
            why=f"{settings.model} has no default draft",
            hint="pass one (-md)",
        )
    return modes


# --- measuring --------------------------------------------------------------------------------------------------------


def _measure(
    ctx: click.Context,
    output: Output,
    settings: LoadSettings,
    modes: list[Mode],
    items: list[Item],
    values: dict[str, Any],
    file: str | None,
) -> tuple[Result, Interrupts]:
    """The result, whole or not, and what has stopped it. What there is goes into `file` after every prompt."""
    output.progress(f"loading {settings.model}", 0)
    from edgespec.bench.measure import TEMPERATURES, Plan, run_bench
    from edgespec.bench.modes import settings_for
    from edgespec.core.sampling import SamplingSettings
    from edgespec.events import PROGRESS
    from edgespec.runtime.runtime import Runtime

    # Noise would make a draft model miss a reference answer that was not drawn with it.
    temperatures = tuple(dict.fromkeys(values["temperatures"])) or ((0.0,) if values["reference"] else TEMPERATURES)
    try:
        for temperature in temperatures:
            SamplingSettings(temperature=temperature)
    except ValueError as error:
        raise UsageError(str(error)) from error
    plan = Plan(
        items,
        modes,
        tokens=values["tokens"],
        temperatures=temperatures,
        repeat=values["repeat"],
        reference=values["reference"],
        peer=values["peer"] is not None,
        command=typed(ctx),
    )
    cancel, interrupts = CancelFlag(), ctx.find_object(Interrupts) or Interrupts()

    def tell(what: str, done: float) -> None:
        if what != "prompt":  # there are many, and how far they have come in all is shown
            output.progress(PROGRESS[what].format(settings.model), done)

    def keep(result: Result) -> None:
        with suppress(OSError):  # the writing at the end tells
            write_whole(Path(str(file)), _as_text(result))

    try:
        # Only what is measured is worth keeping: while the model is loaded, Ctrl-C ends the program.
        with Runtime(settings_for(settings, modes, plan.least_n_max), tell) as llm, interrupts.cancelling(cancel):
            return run_bench(llm, plan, output.progress, cancel, None if file in (None, STDOUT) else keep), interrupts
    finally:
        output.end_progress()


# --- the result -------------------------------------------------------------------------------------------------------


def _write(files: dict[str, str], result: Result, output: Output) -> Iterator[str]:
    """Write the files, and say which could not be."""
    from edgespec.bench.plot import plot
    from edgespec.bench.report import to_csv

    for kind, name in sorted(files.items(), key=lambda file: file[1] == STDOUT):  # whoever reads stdout may leave
        path = Path(name)
        try:
            if kind == "plot":
                plot(result, path)
            elif name != STDOUT:
                write_whole(path, to_csv(result) if kind == "csv" else _as_text(result))
            elif kind == "csv":
                output.line(to_csv(result).rstrip("\n"))
            else:
                output.json(result)
        except OSError as error:
            yield f"{path} cannot be written: {error.strerror or error}"
        except EdgespecError as error:
            yield str(error)


def _as_text(result: Result) -> str:
    """JSON with a row a line, numbers of six digits: runs of hours are kept, and looked at with a pager."""
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {_block(value)}" for name, value in result.items()) + "\n}\n"


def _block(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n " + ",\n ".join(_line(row) for row in value) + "\n]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(_rounded(value), ensure_ascii=False)


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.6g}")
        case dict():
            return {name: _rounded(part) for name, part in value.items()}
        case list():
            return [_rounded(part) for part in value]
    return value


def _compare(output: Output, a: Path, b: Path) -> None:
    from edgespec.bench.compare import compare, load_result

    output.show(compare(load_result(a), load_result(b)))
