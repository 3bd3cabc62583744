"""`edgespec doctor`: this machine, this build and a model, for a bug report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgespec.cli.commands.show import header_facts, header_rows
from edgespec.cli.options.common import JSON, MODEL_TOO, QUIET, VERBOSE
from edgespec.cli.options.given import one_model
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.render.machine_rows import machine_rows
from edgespec.cli.render.rows import Row, write_rows
from edgespec.cli.setup.machine_report import Facts, machine_facts
from edgespec.cli.terminal.output import Output
from edgespec.errors import EdgespecError
from edgespec.text.figures import counted

if TYPE_CHECKING:
    from edgespec.llama.model import Model
    from edgespec.llama.rounding import Widths

LABEL, COLUMNS = 18, 80  # fits any terminal, and into a bug report
# A short prefix, and one past the 512 tokens from which flash attention splits the work differently
PREFIXES = (64, 512)
WIDEST = 32  # tokens of a pass


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", required=False, type=ModelSpec())
@MODEL_TOO
@JSON
@QUIET
@VERBOSE
@click.pass_context
def doctor(
    ctx: click.Context, /, model: str | None, model_too: str | None, as_json: bool, quiet: bool, verbose: bool
) -> None:
    """Check this machine, this build and a model.

    Shows versions, what this build of llama.cpp supports and whether it runs quantised models, devices, memory,
    folders, and what could be better, with the command for it. For MODEL (a GGUF file, or a name as shown by 'edgespec
    ls') also its details and how much its answers depend on rounding: whether the same tokens get the same logits
    when several are decoded at once. The output is meant for bug reports: it contains no tokens and no settings.
    Exit code 1 if quantised models crash.
    """
    output = Output(quiet=quiet)
    output.log_to_stderr(verbose=verbose)

    def show(rows: Iterable[Row]) -> None:
        """Write rows as soon as they are known: later ones may fail."""
        write_rows(output, () if as_json else rows, indent=LABEL, columns=COLUMNS)

    model = one_model(model, model_too)
    path = _find(model) if model is not None else None
    failure: EdgespecError | None = None
    try:
        output.progress("checking this machine", None)
        facts = machine_facts() | {"model": None}
        show(machine_rows(facts))
        if path is not None:
            try:
                facts["model"] = _examine(path, output, show)
            except EdgespecError as error:
                failure = error
                facts["model"] = {"path": str(path), "error": str(error)}
    finally:
        output.end_progress()
    if as_json:
        output.json(facts)
    if failure is not None:
        raise failure
    if facts["self_check"] == "crashes":
        ctx.exit(1)


def _find(spec: str) -> Path:
    from edgespec.models.names.spec import resolve

    return resolve(spec).path


# --- the model --------------------------------------------------------------------------------------------------------


def _examine(path: Path, output: Output, show: Callable[[Iterable[Row]], None]) -> Facts:
    """MODEL's properties and its rounding. Raises ModelNotFoundError, ModelFileError, OutOfMemoryError,
    GenerationError."""
    from edgespec.gguf_file.model_check import check_model
    from edgespec.llama.library import default_threads
    from edgespec.models.memory.defaults import usual_context
    from edgespec.models.memory.estimate import Plan
    from edgespec.runtime.fitting import can_be_exact, fitted, open_model

    header = check_model(path)
    facts = header_facts(header) | {"notes": []}
    show(_header_rows(facts))
    plan = Plan(header, n_ctx=usual_context(header), exact=can_be_exact())
    plan = fitted(plan, facts["notes"].append, may_shrink=True)
    # Whether repacking is off is shown above, as the self-check's result.
    with open_model(plan, lambda _: None, lambda done: output.progress(f"loading {path.name}", done)) as model:
        facts |= _model_facts(model)
        show(_model_rows(facts))
        facts["rounding"] = []
        facts["threads"] = default_threads()
        if model.can_roll_back:
            measured = _measure(model, output)
            facts["rounding"] = [
                asdict(widths) | {"n_past": n_past, "summary": widths.summary()} for n_past, widths in measured.items()
            ]
            show(_rounding_rows(measured, facts["threads"]))
    return facts


def _model_facts(model: Model) -> Facts:
    from edgespec.models.memory.kv_cache import bytes_per_token

    return {
        "description": model.description,
        "parameters": model.n_params,
        "can_roll_back": model.can_roll_back,
        "drafts": "trees" if model.can_roll_back else "chains" if _keeps_states(model) else "none",
        "kv_bytes_per_token": int(bytes_per_token(model.header)),
        "gpu_layers": model.gpu_layers,
    }


def _keeps_states(model: Model) -> bool:
    """Whether a recurrent memory can be rolled back by a few tokens."""
    from edgespec.llama.context import Context

    with Context(model, n_ctx=32, rollback=3) as context:
        return context.rollback > 0


def _header_rows(facts: Facts) -> Iterator[Row]:
    yield Row()
    yield from header_rows(facts)


def _model_rows(facts: Facts) -> Iterator[Row]:
    yield Row("parameters", f"{facts['parameters'] / 1e6:,.1f} million")
    if facts["drafts"] == "chains":
        yield Row("KV cache", "can be rolled back by a few tokens: chains only; rounding is not measured")
    elif facts["can_roll_back"]:
        yield Row("KV cache", f"{facts['kv_bytes_per_token'] / 1000.0:,.1f} kB per token of context (F16)")
    else:
        yield Row("KV cache", "cannot be rolled back: no speculative decoding with this model")
    if facts["gpu_layers"]:
        yield Row("GPU", f"{facts['gpu_layers']} of {facts['layers'] + 1} layers, including the output layer")
    for note in facts["notes"]:
        yield Row("note", note)


def _measure(model: Model, output: Output) -> dict[int, Widths]:
    """Return which widths of a pass agree, by the number of tokens before them."""
    from edgespec.llama.context import Context
    from edgespec.llama.rounding import FEW_ROWS, measure_widths
    from edgespec.models.memory.defaults import exact_attention
    from edgespec.runtime.fitting import can_be_exact

    room = WIDEST + FEW_ROWS
    prefixes = [n_past for n_past in PREFIXES if n_past + room <= model.n_ctx_train]
    if not prefixes:
        return {}
    exact = can_be_exact()
    attention = exact_attention(model.header, "f16") if exact else "auto"
    with Context(
        model, n_ctx=prefixes[-1] + room, max_outputs=WIDEST, flash_attention=attention, exact=exact
    ) as context:
        measured: dict[int, Widths] = {}
        for n_past in prefixes:

            def tell(part: float) -> None:
                output.progress("checking reproducibility", (len(measured) + part) / len(prefixes))

            measured[n_past] = measure_widths(context, n_past, WIDEST, tell)
        return measured


def _rounding_rows(measured: dict[int, Widths], threads: int) -> Iterator[Row]:
    yield Row()
    if not measured:
        yield Row("rounding", "the context is too short to measure it")
        return
    on = counted(threads, "thread")
    yield Row(
        "rounding",
        f"largest logit difference when tokens are decoded several at a time (the width) instead of one by one; {on}",
    )
    yield Row()
    yield Row(f"{'width':>7}", "".join(f"{f'after {n_past} tokens':>20}" for n_past in measured), as_is=True)
    for width, *differences in zip(
        next(iter(measured.values())).widths, *(each.differences for each in measured.values()), strict=True
    ):
        yield Row(f"{width:>7}", "".join(f"{_difference(value):>20}" for value in differences), as_is=True)
    for n_past, widths in measured.items():
        yield Row()
        consequence = ""
        if widths.max_difference:
            consequence = ": texts may differ from plain decoding where the best two tokens are closer than twice that"
        yield Row(f"after {n_past}", widths.summary() + consequence)


def _difference(value: float) -> str:
    return f"{value:.4f}" if value >= 0.0001 else f"{value:.0e}" if value else "0"
