"""`edgespec compare`: quantisations of a model, drafts and modes side by side, in speed, size and quality."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.options.command import Call, Command, typed
from edgespec.cli.options.common import QUIET, VERBOSE, option
from edgespec.cli.options.generation import (
    CORPUS,
    CTX_SIZE,
    DEVICE_DRAFT,
    FETCHING,
    GPU_LAYERS,
    GPU_LAYERS_DRAFT,
    HELD,
    load_settings,
)
from edgespec.cli.options.types import Integer, ModelSpec, Text
from edgespec.cli.setup.models import fetch_missing, uses_draft
from edgespec.cli.terminal.interrupt import Interrupted
from edgespec.errors import EdgespecError
from edgespec.gguf_file.head_check import mtp_mismatch
from edgespec.settings import MTP

if TYPE_CHECKING:
    from edgespec.bench.comparison import Plan
    from edgespec.bench.targets import Targets
    from edgespec.events import Progress

TOKENS, PER_CATEGORY = 48, 1
DEFAULT_MODES = ("plain,all auto",)

OPTIONS = [
    option(
        "Model", "--quants", multiple=True, type=Text(), metavar="TYPE,...",
        help="Also compare these quantisations of the reference (Q8_0,Q5_K_M,Q4_K_M,Q2_K); missing ones are created "
        "in the cache folder.",
    ),
    option(
        "Model", "--reference", type=ModelSpec(), metavar="MODEL", show_default="the largest file",
        help="What the others are compared with.",
    ),
    CTX_SIZE,
    GPU_LAYERS,
    GPU_LAYERS_DRAFT,
    DEVICE_DRAFT,
    *HELD,
    *FETCHING,
    option(
        "Speculation", "-md", "--draft-model", "drafts", multiple=True, type=ModelSpec(), metavar="MODEL",
        show_default="the reference's default draft, if any", help="Draft model. Repeatable.",
    ),
    option(
        "Speculation", "--modes", multiple=True, type=Text(), metavar="MODE,...", show_default="plain,all auto",
        help="Modes to compare with plain decoding, as in 'edgespec bench --mode': drafters (or all), auto or "
        "fixed:K, with commas between modes and + between drafters: 'draft auto,suffix+recycling fixed:4'.",
    ),
    CORPUS,
    option(
        "Prompt", "--prompts", type=Text(), metavar="CATEGORY|FILE", show_default="all categories",
        help="Use the prompts of this category of the built-in suites, or those in this JSONL file.",
    ),
    option(
        "Prompt", "--per-category", type=Integer(1), show_default=f"{PER_CATEGORY}, or all in FILE",
        help="Prompts per category.",
    ),
    option(
        "Prompt", "--text", type=click.Path(), metavar="FILE", show_default="the prompts and answers of the suites",
        help="Text (UTF-8) to measure quality on.",
    ),
    option(
        "Prompt", "--limit", type=Integer(1), show_default="12, fewer if that takes more than 1 GB",
        help="Measure quality on the first N windows of 512 tokens. The reference's probabilities need space in the "
        "cache folder meanwhile: 510 bytes per window for each token of the vocabulary.",
    ),
    option("Answer", "-n", "--max-tokens", "tokens", type=Integer(1), default=TOKENS, help="Tokens per answer."),
    option(
        "Output", "--json", "as_json", is_flag=True,
        help="Print one JSON object to stdout instead of tables (a flag, unlike the --json FILE of bench).",
    ),
    QUIET,
    VERBOSE,
]  # fmt: skip


@click.command(cls=Command, params=OPTIONS)
@click.argument("targets", metavar="MODEL...", nargs=-1, required=True, type=ModelSpec())
def compare(call: Call) -> None:
    """Compare quantisations of a model, drafts and drafting methods.

    Each MODEL answers the same prompts in the same modes, which measures speed, and reads the same text, which measures
    the divergence from the reference. One file is loaded at a time. Ctrl-C stops and shows what was measured.
    """
    values, output = call.values, call.output
    specs = [*values["targets"], values["reference"], *values["drafts"]]
    fetch_missing(call, specs, drafts_of=_drafting_for(values))
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
        output.note(_nothing_measured(values))
        raise
    from edgespec.bench.comparison import caveats, conclusions, table

    is_any = bool(result.rows) or any(file.quality for file in result.files)
    if values["as_json"]:
        output.json(result.as_json() | {"caveats": list(caveats(result)), "conclusions": list(conclusions(result))})
    elif is_any:
        output.show(table(result))
    for problem in problems:
        output.note(f"{values['prompts']}: {problem}")
    for failure in result.failures:
        output.error(failure)
    if call.cancel.is_set() and not is_any:
        output.note(_nothing_measured(values))
    call.interrupts.raise_if_received()
    if result.failures:
        call.ctx.exit(EdgespecError.exit_code)


# --- the request ------------------------------------------------------------------------------------------------------


def _plan(call: Call, progress: Progress) -> tuple[Plan, list[str]]:
    """Return what to compare, and problems in the user's prompts. Creates missing quantisations."""
    from edgespec.bench.comparison import Plan
    from edgespec.bench.modes import contests, parse_mode, possible_drafters
    from edgespec.bench.quality import default_text, read_text
    from edgespec.bench.suites import CATEGORIES, chosen
    from edgespec.bench.targets import check_quants, find_targets

    values = call.values
    quants = check_quants(name for text in values["quants"] for name in text.split(","))
    text = default_text() if values["text"] is None else read_text(Path(values["text"]))
    name = values["prompts"]
    file, categories = (None, [name] if name else []) if name in (None, *CATEGORIES) else (name, [])
    items, problems = chosen(file, categories, values["per_category"], sys.maxsize if categories else PER_CATEGORY)
    targets = find_targets(values["targets"], quants, values["reference"], progress)
    settings = load_settings(values | {"model": str(targets.reference.path)})
    drafts = _drafts(values["drafts"], targets)
    with_weights = ["draft"] * bool(drafts) + [MTP] * (not any(mtp_mismatch(target.header) for target in targets.all))
    possible = possible_drafters(settings, with_weights)
    modes = [parse_mode(mode, possible) for mode in _split_modes(values["modes"])]
    rounds, limit = contests(modes, drafts), values["limit"]
    return Plan(targets, rounds, items, values["tokens"], text, settings, limit, typed(call.ctx)), problems


def _drafting_for(values: dict[str, Any]) -> Sequence[str]:
    """Return the models whose default drafts would be used: the reference, or those that may become it."""
    references = [values["reference"]] if values["reference"] else values["targets"]
    modes = _split_modes(values["modes"])
    settings = load_settings(values | {"model": references[0]})
    return references if not values["drafts"] and uses_draft(settings, modes) else ()


def _drafts(names: Sequence[str], targets: Targets) -> list[Path]:
    """Return the draft models, or the reference's default. Raises ModelNotFoundError."""
    from edgespec.models.names.spec import resolve

    default = targets.reference.default_draft
    return list(dict.fromkeys(resolve(name).path for name in names)) or ([default] if default else [])


def _split_modes(texts: Sequence[str]) -> list[str]:
    """Return the modes, which commas separate; in a mode "+" joins drafters."""
    return [mode.replace("+", ",") for text in texts or DEFAULT_MODES for mode in text.split(",")]


# --- the result -------------------------------------------------------------------------------------------------------


def _nothing_measured(values: dict[str, Any]) -> str:
    made = "new quantisations are saved, and " if values["quants"] else ""
    return f"stopped before anything was measured; {made}the same command starts again"
