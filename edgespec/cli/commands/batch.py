"""`edgespec batch`: answer the prompts of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from edgespec.batch.job import Job
from edgespec.batch.output import OutputFile
from edgespec.batch.reading import Defaults, RowReader
from edgespec.batch.results import Meter, Result, Results
from edgespec.batch.sidecar import texts_depend_on
from edgespec.cancel import CancelFlag
from edgespec.cli.options.command import Call, Command
from edgespec.cli.options.common import advanced, flag, option
from edgespec.cli.options.generation import ANSWER, MODEL, QUESTION, SAID, SAMPLING, SPECULATION, load_settings, request
from edgespec.cli.options.types import PARALLEL, Integer
from edgespec.cli.setup.batch_files import (
    SHARDS,
    STDIO,
    StdoutRows,
    are_same,
    count_rows,
    input_lines,
    merge_parts,
    open_input,
    prepare,
    remaining,
)
from edgespec.cli.setup.job_models import fleet_of, open_model, show_notes
from edgespec.cli.setup.models import answer_as_its_own, default_model, fetch_models
from edgespec.cli.setup.servers import OVER, check_options, check_over, open_nodes, open_servers, server_option
from edgespec.cli.terminal.output import Output
from edgespec.errors import EdgespecError, FailedRowsError, UsageError
from edgespec.events import TokenEvent
from edgespec.gguf_file.chat_templates import chat_templates
from edgespec.gguf_file.model_check import check_model
from edgespec.llm.fleet import Fleet
from edgespec.models.names.spec import resolve
from edgespec.models.text_facts import text_facts
from edgespec.requests.openai import TokenBytes
from edgespec.requests.row import BadRow, Row
from edgespec.runtime.worker import LoadingStoppedError
from edgespec.settings import MAX_SEQUENCES, Request
from edgespec.text.figures import counted
from edgespec.validation import check_load_settings, check_rule

if TYPE_CHECKING:
    from edgespec.llama.model import LlamaModel

SHOWN_S = 0.25  # how often progress is shown
CACHE_RAM = 256  # MiB; enough, since slots keep the common beginning of rows


# fmt: off
OUTPUT = [
    option(
        "Output", "-o", "--output", "target", metavar="FILE", type=click.Path(allow_dash=True), default=STDIO,
        show_default="stdout",
        help="Append results to FILE as they finish. Rows that FILE already answers are skipped.",
    ),
    option(
        "Output", "--parallel", type=PARALLEL, default="auto", metavar="auto|N",
        help=f"Answers to decode together, at most {MAX_SEQUENCES}. auto: up to 16, as memory allows.",
    ),
    flag("--ordered", help="Write results in the order of the input."),
    flag("--retry-errors", help="Retry rows that failed earlier; their results are appended."),
    flag("--overwrite", help="Start over, discarding the rows in FILE."),
    option("Output", "--limit", type=Integer(1), show_default="all", help="Read only N rows."),
    flag("--timings", help="Add timings to each row; the output then differs between runs."),
    *SHARDS,
    *SAID,
]
# fmt: on

SERVER = server_option(
    "Answer on this server instead of this machine. Repeatable: rows go to idle servers.", multiple=True
)
COMMON = ("model", "system", "chat", "yes", "draft_model", "temperature", "seed", "max_tokens", "json_schema")
"""The options of `run` that `--help` lists."""
SHARED = [*QUESTION, *MODEL, *SPECULATION, *SAMPLING, *ANSWER]
OPTIONS = [SERVER, OVER, *(each if each.name in COMMON else advanced(each) for each in SHARED), *OUTPUT]


@click.command(cls=Command, params=OPTIONS)
@click.argument("sources", nargs=-1, required=True, metavar="IN.jsonl", type=click.Path(allow_dash=True))
def batch(call: Call) -> None:
    """Answer all prompts of a file.

    Each line of IN.jsonl ('-' for stdin) is a JSON object with a "prompt" or "messages", an "id", and settings
    (max_tokens, temperature, json_schema, ...), or a request in the format of OpenAI's Batch API. Options are defaults
    for all rows; --help-all lists the options of 'edgespec run' for sampling and drafting. After Ctrl-C, a crash or a
    full disk, the same command resumes.

    To use several machines, run the command with --shard 0/N to N-1/N, then batch --merge PART... -o FILE.
    """
    values, output = call.values, call.output
    if values["merge"]:
        merge_parts(call)
        return
    source, *others = values["sources"]
    if others:
        raise UsageError(f"batch reads one input, not {1 + len(others)}", why="only --merge reads several files")
    _refuse_contradictions(source, values)
    check_options(call)
    check_over(values)
    with (
        (_on_servers if values["server"] else _here)(call) as model,
        open_input(source, output) as data,
        StdoutRows(output) if values["target"] == STDIO else OutputFile(Path(values["target"])) as target,
    ):
        chat = model.has_chat_template if values["chat"] is None else values["chat"]
        asked = model.asked
        made_with = texts_depend_on(model.depend_on, asked, chat=chat, system=values["system"], n=values["samples"])
        seed = prepare(target, made_with, values)
        defaults = Defaults(asked, seed, chat, values["system"] or "", values["samples"])
        reader = RowReader(defaults, target.done, values["shard"])
        rows = reader.from_lines(input_lines(source, data, values["limit"]))
        first = next(rows, None)
        meter = Meter(target.n_done, None if output.quiet else count_rows(source, values["limit"], values["shard"]))
        target.begin()
        results = Results(model.name, model.token_bytes, values["timings"], numbered=values["shard"] is not None)

        def keep(result: Result) -> None:
            target.write(result.row)
            meter.add(result)

        while isinstance(first, BadRow):  # reported without loading a model
            keep(results.refused(first))
            first = next(rows, None)
        if first is not None:
            _run(call, model.open, remaining(source, first, rows), results, keep, target, meter)
        elif target.n_done:
            output.note(f"nothing to do: {target.name} already has all {target.n_done + meter.n_rows} rows")
        elif not meter.n_rows:
            output.note("there are no rows")
        if reader.inventory is not None and isinstance(target, OutputFile):
            target.finish(reader.inventory.as_json())
        if target.done and values["limit"] is None:
            output.note(f"{len(target.done)} rows of {target.name} match no row of the input")
    failed = target.n_failed + meter.n_failed
    if failed:
        and_first = "; the first" if meter.first_failure else ""
        hint = 'each has its reason in "error"; corrected lines are read again, other rows with --retry-errors'
        hint = "" if target.name == STDIO else hint
        what = f"{failed} of {target.n_done + meter.n_rows} rows failed{and_first}"
        raise FailedRowsError(what, why=meter.first_failure, hint=hint)


def _refuse_contradictions(source: str, values: dict[str, Any]) -> None:
    target = values["target"]
    if target == STDIO:
        for name in ("retry_errors", "overwrite", "shard"):
            if values[name]:
                raise UsageError(f"--{name.replace('_', '-')} needs an output file", hint="use -o FILE")
    elif source != STDIO and are_same(Path(target), Path(source)):
        raise UsageError(f"cannot overwrite {target} with itself", hint="use another output file")
    if values["retry_errors"] and values["overwrite"]:
        raise UsageError("--overwrite keeps no rows to retry", hint="leave out --retry-errors")
    if values["system"] and values["chat"] is False:
        raise UsageError("a system message needs chat mode", why="--raw was given")


# --- the model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Model:
    """A model before it is loaded. `asked` are the default settings of rows; `depend_on` identifies everything about
    the model that changes the texts."""

    name: str
    has_chat_template: bool
    depend_on: Mapping[str, Any]
    asked: Request
    token_bytes: TokenBytes
    open: Callable[[CancelFlag], Fleet]


@contextmanager
def _here(call: Call) -> Iterator[_Model]:
    """Yield a model of this machine, downloaded if necessary. With --over the nodes of a cluster load it."""
    values, output = call.values, call.output
    may_download = values["yes"] or not values["model"]
    values["model"] = values["model"] or default_model(call)
    answer_as_its_own(call.ctx, values)
    fetch_models(call, load_settings(values))
    settings = replace(load_settings(values), sequences=values["parallel"])
    if settings.cache_ram is None:
        settings = replace(settings, cache_ram=CACHE_RAM)
    check_load_settings(settings)
    check_rule(settings, values["verify"])
    found = resolve(settings.model)
    header, asked = check_model(found.path), request(values, "", chat=False, seed=0)
    has_template = bool(chat_templates(header, settings.chat_template, settings.chat_template_file).default)
    depend_on = text_facts(header, settings)
    load: Callable[[CancelFlag], Fleet] = partial(open_model, settings, asked, output)
    if values["over"]:
        load = partial(open_nodes, values["over"], settings, depend_on, asked, output, may_download=may_download)
    yield _Model(found.name, has_template, depend_on, asked, _token_bytes(found.path), load)


def _token_bytes(path: Path) -> TokenBytes:
    """Return a function for the bytes of a token. Its first call opens the model without its weights."""

    @cache
    def vocabulary() -> LlamaModel:
        from edgespec.llama.model import LlamaModel

        return LlamaModel.load_vocabulary(path)

    return lambda token: vocabulary().token_bytes(token, special=True)


@contextmanager
def _on_servers(call: Call) -> Iterator[_Model]:
    """Yield a model that servers have loaded."""
    from edgespec.remote.model import token_bytes

    values, output = call.values, call.output
    engines = open_servers(call, values["server"])
    with ExitStack() as stack:
        for engine in engines:
            stack.callback(engine.close)
        first, asked = engines[0], request(values, "", chat=False, seed=0)
        yield _Model(
            first.settings.model,
            first.info.has_chat_template,
            first.texts_depend_on,
            asked,
            partial(token_bytes, engines),
            lambda cancel: fleet_of(engines, asked, output, room=values["parallel"], kind="server"),
        )


# --- the job --------------------------------------------------------------------------------------------------------


def _run(
    call: Call,
    load: Callable[[CancelFlag], Fleet],
    rows: Iterator[Row | BadRow | None],
    results: Results,
    keep: Callable[[Result], None],
    target: OutputFile | StdoutRows,
    meter: Meter,
) -> None:
    """Answer rows until none is left, or an error or a signal stops the job."""
    values, output, cancel = call.values, call.output, call.cancel
    is_done, n_waiting = False, 0
    try:
        with call.cancelling(), load(cancel) as model:
            heard = _shower(output, meter, model)
            job = Job(model, rows, results, cancel, ordered=values["ordered"], heard=heard)
            meter.start()
            try:
                with closing(job.run()) as answered:
                    for result in answered:
                        keep(result)
                        show_notes(model, output)
            finally:
                show_notes(model, output)
                n_waiting = job.n_waiting
                output.end_progress()
                if meter.n_rows and not output.quiet:
                    where = [target.name] if target.name != STDIO else []
                    output.aside(" · ".join([*meter.summary(), *where]))
                if meter.n_cut_off:
                    which = f"{meter.n_cut_off} of these rows" if meter.n_rows > 1 else "the row"
                    output.note(f'{which} cut off by max_tokens (-n) before the constraint was met ("cut_off": true)')
        is_done = not cancel.is_set()
    except LoadingStoppedError:
        pass  # a signal stopped it; reported below
    finally:
        if not is_done and target.name != STDIO and (target.n_done or meter.n_rows or cancel.is_set()):
            without = " without --overwrite" if values["overwrite"] else ""
            dropped = f" except {n_waiting} that were waiting for an earlier one (--ordered)" if n_waiting else ""
            if target.n_done or meter.n_rows:
                output.note(f"the rows in {target.name} are saved{dropped}; the same command{without} resumes")
            else:
                output.note("no row is saved yet; the same command starts again")
    call.interrupts.raise_if_received()


def _shower(output: Output, meter: Meter, model: Fleet) -> Callable[[TokenEvent | EdgespecError], None]:
    """Return a function that counts events and shows the progress from time to time."""
    shown_s = perf_counter()

    def heard(event: TokenEvent | EdgespecError) -> None:
        nonlocal shown_s
        meter.hear(event)
        if perf_counter() - shown_s > SHOWN_S:
            shown_s = perf_counter()
            where = [counted(model.n_members, model.kind)] if model.kind else []
            output.progress(" · ".join([*meter.progress(), *where]), None)

    return heard
