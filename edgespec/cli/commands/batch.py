"""`edgespec batch`: answer the prompts of a file."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, BinaryIO

import click

from edgespec.batch.input import Shard
from edgespec.batch.job import Job
from edgespec.batch.output import OutputFile
from edgespec.batch.reading import Defaults, RowReader
from edgespec.batch.results import Meter, Results, RowResult
from edgespec.batch.sidecar import texts_depend_on
from edgespec.cancel import CancelFlag
from edgespec.cli.options import shared
from edgespec.cli.options.command import Call, Options, command, settings_of, value_of
from edgespec.cli.options.common import advanced, advanced_except, flag, option
from edgespec.cli.options.types import PARALLEL, Integer, Parsed
from edgespec.cli.setup.batch_files import (
    STDIO,
    StdoutRows,
    are_same,
    count_rows,
    input_lines,
    is_file,
    merge_parts,
    open_input,
    remaining,
)
from edgespec.cli.setup.job_models import fleet_of, open_model
from edgespec.cli.setup.models import default_model, fetch_models, settings_of_model, show_notes
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
from edgespec.settings import AUTO_SEQUENCES, MAX_SEQUENCES, LoadSettings, Request
from edgespec.text.figures import counted
from edgespec.validation import check_load_settings, check_rule

if TYPE_CHECKING:
    from edgespec.llama.model import LlamaModel

SHOWN_S = 0.25  # how often progress is shown
CACHE_RAM = 256  # MiB; enough, since slots keep the common beginning of rows


COMMON = ("model", "system", "chat", "yes", "draft_model", "temperature", "seed", "max_tokens", "json_schema")
"""The options of `run` that `--help` lists."""
_OF_MERGE = ("merge", "target", "overwrite", "quiet", "verbose")


# fmt: off
@dataclass(frozen=True, kw_only=True)
class BatchOptions(Options):
    sources: tuple[str, ...] = value_of(click.Argument(
        ["sources"], nargs=-1, required=True, metavar="IN.jsonl", type=click.Path(allow_dash=True),
    ))
    server: tuple[str, ...] = value_of(server_option(
        "Answer on this server instead of this machine. Repeatable: rows go to idle servers.", multiple=True,
    ))
    over: str | None = value_of(OVER)
    system: str | None = value_of(shared.SYSTEM)
    chat: bool | None = value_of(shared.CHAT_OR_RAW)
    load: LoadSettings = settings_of(LoadSettings, advanced_except(COMMON, *shared.MODEL, *shared.SPECULATION))
    yes: bool = value_of(shared.YES)
    answer: Request = settings_of(
        Request, advanced_except(COMMON, shared.SPECIAL, *shared.SAMPLING, *shared.ANSWER)
    )
    samples: int = value_of(advanced(shared.SAMPLES))
    target: str = value_of(option(
        "Output", "-o", "--output", "target", metavar="FILE", type=click.Path(allow_dash=True), default=STDIO,
        show_default="stdout",
        help="Append results to FILE as they finish. Rows that FILE already answers are skipped.",
    ))
    parallel: int = value_of(option(
        "Output", "--parallel", type=PARALLEL, default="auto", metavar="auto|N",
        help=f"Answers to decode together, at most {MAX_SEQUENCES}. auto: up to {AUTO_SEQUENCES}, as memory allows.",
    ))
    ordered: bool = value_of(flag("--ordered", help="Write results in the order of the input."))
    retry_errors: bool = value_of(flag(
        "--retry-errors", help="Retry rows that failed earlier; their results are appended.",
    ))
    overwrite: bool = value_of(flag("--overwrite", help="Start over, discarding the rows in FILE."))
    limit: int | None = value_of(option(
        "Output", "--limit", type=Integer(1), show_default="all", help="Read only N rows.",
    ))
    timings: bool = value_of(flag("--timings", help="Add timings to each row; the output then differs between runs."))
    shard: Shard | None = value_of(option(
        "Output", "--shard", type=Parsed("shard", Shard.parse), metavar="I/N", advanced=True,
        help="Answer only the rows of shard I of N, counted from 0. Every row is in one shard.",
    ))
    merge: bool = value_of(flag(
        "--merge", help="Merge the outputs of all shards into FILE, in the order of the input.",
    ))
# fmt: on


@command(BatchOptions, shared.QUIET, shared.VERBOSE)
def batch(call: Call[BatchOptions]) -> None:
    """Answer all prompts of a file.

    Each line of IN.jsonl ('-' for stdin) is a JSON object with a "prompt" or "messages", an "id", and settings
    (max_tokens, temperature, json_schema, ...), or a request in the format of OpenAI's Batch API. Options are defaults
    for all rows; --help-all lists the options of 'edgespec run' for sampling and drafting. After Ctrl-C, a crash or a
    full disk, the same command resumes.

    To use several machines, run the command with --shard 0/N to N-1/N, then batch --merge PART... -o FILE.
    """
    options, output = call.options, call.output
    if options.merge:
        if others := [f"--{each.key}" for each in call.typed_options() if each.name not in _OF_MERGE]:
            what, why = f"{', '.join(others)} cannot be combined with --merge", "the rows are answered already"
            raise UsageError(what, why=why)
        merge_parts(options.target, options.sources, output, overwrite=options.overwrite)
        return
    source, *others = options.sources
    if others:
        raise UsageError(f"batch reads one input, not {1 + len(others)}", why="only --merge reads several files")
    _refuse_contradictions(source, options)
    if options.server:
        check_options(call)
    if options.over is not None:
        check_over(options.over, options.server, options.load.rpc)
    with (
        (_on_servers if options.server else _here)(call) as model,
        open_input(source, output) as data,
        StdoutRows(output) if options.target == STDIO else OutputFile(Path(options.target)) as target,
    ):
        n_failed, n_rows, first_failure = _answer(call, model, source, data, target)
    if n_failed:
        and_first = "; the first" if first_failure else ""
        hint = 'each has its reason in "error"; corrected lines are read again, other rows with --retry-errors'
        hint = "" if target.name == STDIO else hint
        raise FailedRowsError(f"{n_failed} of {n_rows} rows failed{and_first}", why=first_failure, hint=hint)


def _refuse_contradictions(source: str, options: BatchOptions) -> None:
    target = options.target
    if target == STDIO:
        for name, value in (
            ("retry-errors", options.retry_errors),
            ("overwrite", options.overwrite),
            ("shard", options.shard),
        ):
            if value:
                raise UsageError(f"--{name} needs an output file", hint="use -o FILE")
    elif source != STDIO and are_same(Path(target), Path(source)):
        raise UsageError(f"cannot overwrite {target} with itself", hint="use another output file")
    if options.retry_errors and options.overwrite:
        raise UsageError("--overwrite keeps no rows to retry", hint="leave out --retry-errors")
    if options.system and options.chat is False:
        raise UsageError("a system message needs chat mode", why="--raw was given")


# --- the model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Model:
    """A model before it is loaded. `asked` are the default settings of rows; `depend_on` identifies everything about
    the model that changes the texts."""

    name: str
    has_chat_template: bool
    depend_on: Mapping[str, object]
    asked: Request
    token_bytes: TokenBytes
    open: Callable[[int, CancelFlag], Fleet]  # for this number of answers at the most


@contextmanager
def _here(call: Call[BatchOptions]) -> Iterator[_Model]:
    """Yield a model of this machine, downloaded if necessary. With --over the nodes of a cluster load it."""
    may_download = call.options.yes or not call.options.load.model
    name = call.options.load.model or default_model(call)
    call.change({"model": name} | settings_of_model(call, name))
    options, output = call.options, call.output
    fetch_models(call, options.load, yes=options.yes)
    settings = replace(options.load, sequences=options.parallel)
    if settings.cache_ram is None:
        settings = replace(settings, cache_ram=CACHE_RAM)
    check_load_settings(settings)
    check_rule(settings, options.answer.verify)
    found = resolve(settings.model)
    header, asked = check_model(found.path), _defaults(options)
    has_template = bool(chat_templates(header, settings.chat_template, settings.chat_template_file).default)
    depend_on = text_facts(header, settings)

    def load(most: int, cancel: CancelFlag) -> Fleet:
        wanted = replace(settings, most_sequences=most)
        if options.over:
            return open_nodes(options.over, wanted, depend_on, asked, output, cancel, may_download=may_download)
        return open_model(wanted, asked, output, cancel)

    yield _Model(found.name, has_template, depend_on, asked, _token_bytes(found.path), load)


def _defaults(options: BatchOptions) -> Request:
    """Return the default settings of rows, whose seeds are set apart."""
    return replace(shared.with_texts(options.answer), seed=0)


def _token_bytes(path: Path) -> TokenBytes:
    """Return a function for the bytes of a token. Its first call opens the model without its weights."""

    @cache
    def vocabulary() -> LlamaModel:
        from edgespec.llama.model import LlamaModel

        return LlamaModel.load_vocabulary(path)

    return lambda token: vocabulary().token_bytes(token, special=True)


@contextmanager
def _on_servers(call: Call[BatchOptions]) -> Iterator[_Model]:
    """Yield a model that servers have loaded."""
    from edgespec.remote.model import token_bytes

    engines = open_servers(call, call.options.server, call.options.load)
    options, output = call.options, call.output
    with ExitStack() as stack:
        for engine in engines:
            stack.callback(engine.close)
        first, asked = engines[0], _defaults(options)
        yield _Model(
            first.settings.model,
            first.info.has_chat_template,
            first.texts_depend_on,
            asked,
            partial(token_bytes, engines),
            lambda most, cancel: fleet_of(engines, asked, output, room=options.parallel, kind="server"),
        )


# --- the job --------------------------------------------------------------------------------------------------------


def _answer(
    call: Call[BatchOptions], model: _Model, source: str, data: BinaryIO, target: OutputFile | StdoutRows
) -> tuple[int, int, str]:
    """Answer the rows that have no answer yet. Return the numbers of failed rows and of all, and the first failure."""
    options, output = call.options, call.output
    chat = model.has_chat_template if options.chat is None else options.chat
    made_with = texts_depend_on(model.depend_on, model.asked, chat=chat, system=options.system, n=options.samples)
    seed = _seed(target, made_with, options)
    reader = RowReader(
        Defaults(model.asked, seed, chat, options.system or "", options.samples), target.done, options.shard
    )
    rows = reader.from_lines(input_lines(source, data, options.limit))
    first = next(rows, None)
    meter = Meter(target.n_done, None if output.quiet else count_rows(source, options.limit, options.shard))
    target.begin()
    results = Results(model.name, model.token_bytes, options.timings, numbered=options.shard is not None)

    def keep(result: RowResult) -> None:
        target.write(result.row)
        meter.add(result)

    while isinstance(first, BadRow):  # reported without loading a model
        keep(results.refused(first))
        first = next(rows, None)
    if first is not None:
        begun: list[Row | BadRow] = [first]
        most = AUTO_SEQUENCES
        if is_file(source):  # a pipe may have more rows later
            begun += islice(rows, AUTO_SEQUENCES - 1)
            most = min(AUTO_SEQUENCES, sum(row.n for row in begun if isinstance(row, Row)))
        todo = remaining(source, chain(begun, rows))
        _run(call, partial(model.open, most), todo, results, keep, target, meter)
    elif target.n_done:
        output.note(f"nothing to do: {target.name} already has all {target.n_done + meter.n_rows} rows")
    elif not meter.n_rows:
        output.note("there are no rows")
    if reader.inventory is not None and isinstance(target, OutputFile):
        target.finish(reader.inventory.as_json())
    if target.done and options.limit is None:
        output.note(f"{len(target.done)} rows of {target.name} match no row of the input")
    return target.n_failed + meter.n_failed, target.n_done + meter.n_rows, meter.first_failure


def _seed(target: OutputFile | StdoutRows, made_with: dict[str, object], options: BatchOptions) -> int:
    """Open the output for resuming or overwriting. Return the seed from which the seeds of rows are derived."""
    seed = options.answer.seed if options.answer.seed >= 0 else None
    if isinstance(target, StdoutRows):
        return secrets.randbits(48) if seed is None else seed
    if options.shard is not None:
        made_with = {**made_with, "shard": str(options.shard)}
    if options.overwrite:
        return target.overwrite(made_with, seed)
    return target.resume(made_with, seed, retry_failed=options.retry_errors)


def _run(
    call: Call[BatchOptions],
    load: Callable[[CancelFlag], Fleet],
    rows: Iterator[Row | BadRow | None],
    results: Results,
    keep: Callable[[RowResult], None],
    target: OutputFile | StdoutRows,
    meter: Meter,
) -> None:
    """Answer rows until none is left, or an error or a signal stops the job."""
    output, cancel = call.output, call.cancel
    is_done, n_waiting = False, 0
    try:
        with call.cancelling(), load(cancel) as model:
            heard = _shower(output, meter, model)
            job = Job(model, rows, results, cancel, ordered=call.options.ordered, heard=heard, dropped=meter.drop)
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
                _show_summary(meter, target, output)
        is_done = not cancel.is_set()
    except LoadingStoppedError:
        pass  # a signal stopped it; reported below
    finally:
        if not is_done and target.name != STDIO and (target.n_done or meter.n_rows or cancel.is_set()):
            without = " without --overwrite" if call.options.overwrite else ""
            dropped = f" except {n_waiting} that were waiting for an earlier one (--ordered)" if n_waiting else ""
            if target.n_done or meter.n_rows:
                output.note(f"the rows in {target.name} are saved{dropped}; the same command{without} resumes")
            else:
                output.note("no row is saved yet; the same command starts again")
    call.interrupts.raise_if_received()


def _show_summary(meter: Meter, target: OutputFile | StdoutRows, output: Output) -> None:
    if meter.n_rows and not output.quiet:
        where = [target.name] if target.name != STDIO else []
        output.aside(" · ".join([*meter.summary(), *where]))
    if meter.n_cut_off:
        which = f"{meter.n_cut_off} of these rows" if meter.n_rows > 1 else "the row"
        output.note(f'{which} cut off by max_tokens (-n) before the constraint was met ("cut_off": true)')


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
