"""`edgespec compare`: quantisations of a model, drafts and modes side by side, in speed, size and quality."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgespec.cli.options.command import Call, Options, command, settings_of, typed, value_of
from edgespec.cli.options.common import QUIET, VERBOSE, option
from edgespec.cli.options.shared import HELD, LOADING, YES
from edgespec.cli.options.types import Integer, ModelSpec, Text
from edgespec.cli.setup.models import fetch_missing, uses_draft
from edgespec.cli.terminal.interrupt import Interrupted
from edgespec.errors import EdgespecError
from edgespec.gguf_file.head_check import mtp_mismatch
from edgespec.settings import MTP, LoadSettings

if TYPE_CHECKING:
    from edgespec.bench.comparison import ComparisonPlan
    from edgespec.bench.targets import Targets
    from edgespec.events import Progress

TOKENS, PER_CATEGORY = 48, 1
DEFAULT_MODES = ("plain,all auto",)

LOADED = [LOADING[name] for name in ("ctx_size", "gpu_layers", "gpu_layers_draft", "device_draft")]


# fmt: off
@dataclass(frozen=True, kw_only=True)
class CompareOptions(Options):
    targets: tuple[str, ...] = value_of(click.Argument(
        ["targets"], metavar="MODEL...", nargs=-1, required=True, type=ModelSpec(),
    ))
    quants: tuple[str, ...] = value_of(option(
        "Model", "--quants", multiple=True, type=Text(), metavar="TYPE,...",
        help="Also compare these quantisations of the reference (Q8_0,Q5_K_M,Q4_K_M,Q2_K); missing ones are created "
        "in the cache folder.",
    ))
    reference: str | None = value_of(option(
        "Model", "--reference", type=ModelSpec(), metavar="MODEL", show_default="the largest file",
        help="Model that the others are compared with.",
    ))
    load: LoadSettings = settings_of(LoadSettings, [*LOADED, *HELD, LOADING["corpus"]])
    yes: bool = value_of(YES)
    drafts: tuple[str, ...] = value_of(option(
        "Speculation", "-md", "--draft-model", "drafts", multiple=True, type=ModelSpec(), metavar="MODEL",
        show_default="the reference's default draft, if any", help="Draft model. Repeatable.",
    ))
    modes: tuple[str, ...] = value_of(option(
        "Speculation", "--modes", multiple=True, type=Text(), metavar="MODE,...", show_default="plain,all auto",
        help="Modes to compare with plain decoding, as in 'edgespec bench --mode': drafters (or all), auto or "
        "fixed:K, with commas between modes and + between drafters: 'draft auto,suffix+recycling fixed:4'.",
    ))
    prompts: str | None = value_of(option(
        "Prompt", "--prompts", type=Text(), metavar="CATEGORY|FILE", show_default="all categories",
        help="Use the prompts of this category of the built-in suites, or those in this JSONL file.",
    ))
    per_category: int | None = value_of(option(
        "Prompt", "--per-category", type=Integer(1), show_default=f"{PER_CATEGORY}, or all in FILE",
        help="Prompts per category.",
    ))
    text: str | None = value_of(option(
        "Prompt", "--text", type=click.Path(), metavar="FILE", show_default="the prompts and answers of the suites",
        help="Text (UTF-8) to measure quality on.",
    ))
    limit: int | None = value_of(option(
        "Prompt", "--limit", type=Integer(1), show_default="12, fewer if that takes more than 1 GB",
        help="Measure quality on the first N windows of 512 tokens. The reference's probabilities need space in the "
        "cache folder meanwhile: 510 bytes per window for each token of the vocabulary.",
    ))
    tokens: int = value_of(option(
        "Answer", "-n", "--max-tokens", "tokens", type=Integer(1), default=TOKENS, help="Tokens per answer.",
    ))
    as_json: bool = value_of(option(
        "Output", "--json", "as_json", is_flag=True,
        help="Print one JSON object to stdout instead of tables (a flag, unlike the --json FILE of bench).",
    ))
# fmt: on


@command(CompareOptions, QUIET, VERBOSE)
def compare(call: Call[CompareOptions]) -> None:
    """Compare quantisations of a model, drafts and drafting methods.

    Each MODEL answers the same prompts in the same modes, which measures speed, and reads the same text, which measures
    the divergence from the reference. One file is loaded at a time. Ctrl-C stops and shows what was measured.
    """
    options, output = call.options, call.output
    specs = [*options.targets, options.reference, *options.drafts]
    fetch_missing(call, specs, yes=options.yes, drafts_of=_drafting_for(options))
    output.progress("reading headers", 0)

    def tell(what: str, done: float) -> None:
        call.interrupts.raise_if_received()  # making files here cannot be cancelled by the flag
        output.progress(what, done)

    try:
        with output.showing_progress(), call.cancelling() as cancel:
            plan, problems = _plan(call, tell)
            from edgespec.bench.comparison import run_comparison

            result = run_comparison(plan, output.progress, cancel)
    except Interrupted:
        output.note(_nothing_measured(options))
        raise
    from edgespec.bench.comparison import caveats, conclusions, table

    is_any = bool(result.rows) or any(file.quality for file in result.files)
    if options.as_json:
        output.json(result.as_json() | {"caveats": list(caveats(result)), "conclusions": list(conclusions(result))})
    elif is_any:
        output.show(table(result))
    for problem in problems:
        output.note(f"{options.prompts}: {problem}")
    for failure in result.failures:
        output.error(failure)
    if call.cancel.is_set() and not is_any:
        output.note(_nothing_measured(options))
    call.interrupts.raise_if_received()
    if result.failures:
        call.ctx.exit(EdgespecError.exit_code)


# --- the request ------------------------------------------------------------------------------------------------------


def _plan(call: Call[CompareOptions], progress: Progress) -> tuple[ComparisonPlan, list[str]]:
    """Return what to compare, and problems in the user's prompts. Creates missing quantisations."""
    from edgespec.bench.comparison import ComparisonPlan
    from edgespec.bench.modes import contests, parse_mode, possible_drafters
    from edgespec.bench.quality import default_text, read_text
    from edgespec.bench.suites import CATEGORIES, chosen
    from edgespec.bench.targets import check_quants, find_targets

    options = call.options
    quants = check_quants(name for text in options.quants for name in text.split(","))
    text = default_text() if options.text is None else read_text(Path(options.text))
    name = options.prompts
    file, categories = (None, [name] if name else []) if name in (None, *CATEGORIES) else (name, [])
    items, problems = chosen(file, categories, options.per_category, sys.maxsize if categories else PER_CATEGORY)
    targets = find_targets(options.targets, quants, options.reference, progress)
    settings = replace(options.load, model=str(targets.reference.path))
    drafts = _drafts(options.drafts, targets)
    with_weights = ["draft"] * bool(drafts) + [MTP] * (not any(mtp_mismatch(target.header) for target in targets.all))
    possible = possible_drafters(settings, with_weights)
    modes = [parse_mode(mode, possible) for mode in _split_modes(options.modes)]
    rounds, limit = contests(modes, drafts), options.limit
    return ComparisonPlan(targets, rounds, items, options.tokens, text, settings, limit, typed(call.ctx)), problems


def _drafting_for(options: CompareOptions) -> Sequence[str]:
    """Return the models whose default drafts would be used: the reference, or those that may become it."""
    references = [options.reference] if options.reference else options.targets
    modes = _split_modes(options.modes)
    settings = replace(options.load, model=references[0])
    return references if not options.drafts and uses_draft(settings, modes) else ()


def _drafts(names: Sequence[str], targets: Targets) -> list[Path]:
    """Return the draft models, or the reference's default. Raises ModelNotFoundError."""
    from edgespec.models.names.spec import resolve

    default = targets.reference.default_draft
    return list(dict.fromkeys(resolve(name).path for name in names)) or ([default] if default else [])


def _split_modes(texts: Sequence[str]) -> list[str]:
    """Return the modes, which commas separate; in a mode "+" joins drafters."""
    return [mode.replace("+", ",") for text in texts or DEFAULT_MODES for mode in text.split(",")]


# --- the result -------------------------------------------------------------------------------------------------------


def _nothing_measured(options: CompareOptions) -> str:
    made = "new quantisations are saved, and " if options.quants else ""
    return f"stopped before anything was measured; {made}the same command starts again"
