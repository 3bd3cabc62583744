"""`edgespec batch`: answer the prompts of a file, into a file that can be gone on with."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, BinaryIO

import click

from edgespec.batch.job import Job
from edgespec.batch.lines import Line, as_they_come, count_lines, read_lines
from edgespec.batch.meter import Meter
from edgespec.batch.output import OutputFile, encoded
from edgespec.batch.reading import Defaults, RowReader
from edgespec.batch.results import Results
from edgespec.batch.row import BadRow, Row
from edgespec.batch.sidecar import texts_depend_on
from edgespec.batch.vocabulary import Vocabulary
from edgespec.cancel import CancelFlag
from edgespec.cli.command import Command, Option
from edgespec.cli.interrupt import Interrupts
from edgespec.cli.options import (
    ANSWER,
    LARGEST,
    MODEL,
    NO_MODEL,
    QUESTION,
    SAID,
    SAMPLING,
    SPECULATION,
    Decorated,
    load_settings,
    request,
    with_options,
)
from edgespec.cli.output import Output
from edgespec.cli.types import Integer, ParamType
from edgespec.closable import Closable
from edgespec.errors import EdgespecError, GenerationError, UsageError
from edgespec.events import PROGRESS, TokenEvent
from edgespec.model_check import check_model
from edgespec.models.spec import resolve
from edgespec.settings import MAX_SEQUENCES, LoadSettings, check_load_settings, check_rule
from edgespec.worker import LoadingStoppedError, Worker

STDIO = "-"
SHOWN_S = 0.25  # how often progress is shown
WAIT_S = 0.03  # for a first row


class FailedRowsError(EdgespecError):
    """The job is done, but some of its rows failed."""

    exit_code = 6


class Parallel(ParamType):
    """A number of answers at a time, or `auto`."""

    name = "parallel"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str) and value.strip().lower() == "auto":
            return 0
        return int(click.IntRange(0 if value == 0 else 1, MAX_SEQUENCES).convert(value, param, ctx))


def _output(*names: str, **attrs: Any) -> Callable[[Decorated], Decorated]:
    return click.option(*names, cls=Option, section="Output", config=False, **attrs)


OUTPUT = [
    _output(
        "-o", "--output", "target", metavar="FILE", type=click.Path(allow_dash=True), show_default="stdout",
        help="Append results to FILE as they are finished, and go on with what is there of an earlier run.",
    ),
    _output(
        "--parallel", type=Parallel(), default=0, metavar="auto|N", show_default="auto",
        help=f"Answers that are decoded together, up to {MAX_SEQUENCES}; auto: as many as pay and fit.",
    ),
    _output("--ordered", is_flag=True, help="Keep the order of the input."),
    _output("--retry-errors", is_flag=True, help="Ask rows once more that failed in an earlier run."),
    _output("--overwrite", is_flag=True, help="Start anew, whatever is in FILE."),
    _output(
        "--max-errors", type=Integer(0, LARGEST), metavar="N", show_default="no limit",
        help="Stop once more than N rows have failed.",
    ),
    _output("--limit", type=Integer(1, LARGEST), metavar="N", show_default="all", help="Only the first N rows."),
    _output("--timings", is_flag=True, help="Let each row say what it took; then no two runs are the same."),
    *SAID,
]  # fmt: skip


def batch_options(command: Decorated) -> Decorated:
    """Those of `run` that say how to answer, and those of a job."""
    return with_options(command, [*QUESTION, *MODEL, *SPECULATION, *SAMPLING, *ANSWER, *OUTPUT])


@click.command(cls=Command)
@click.argument("source", metavar="IN.jsonl", type=click.Path(allow_dash=True))
@batch_options
@click.pass_context
def batch(ctx: click.Context, /, source: str, **values: Any) -> None:
    """Answer all prompts of a file.

    Each line of IN.jsonl ('-' for stdin) is a JSON object with a "prompt" or "messages", an "id", and settings by the
    names of Python's (max_tokens, temperature, json_schema, ...), or a request in the form of OpenAI's Batch API. The
    options hold for rows that say nothing else. Ctrl-C, a crash or a full disk lose nothing that is in FILE: the same
    command goes on.
    """
    output = Output(quiet=values["quiet"])
    output.log_to_stderr(verbose=values["verbose"])
    _refuse_contradictions(source, values)
    if values["model"] is None:
        values["model"] = "demo"
        output.note(NO_MODEL)
    settings = replace(load_settings(values), sequences=values["parallel"])
    check_load_settings(settings)
    check_rule(settings, values["verify"])
    found = resolve(settings.model)
    header, asked = check_model(found.path), request(values, "", chat=False, seed=0)
    chat = "tokenizer.chat_template" in header.metadata if values["chat"] is None else values["chat"]
    with _input(source) as data, _target(values["target"], output) as target, Vocabulary(found.path) as vocabulary:
        made_with = texts_depend_on(header, settings, asked, chat=chat, system=values["system"], n=values["samples"])
        seed = _prepare(target, made_with, values)
        reader = RowReader(Defaults(asked, seed, chat, values["system"] or "", values["samples"]), target.done)
        rows = reader.from_lines(_lines(source, data, values["limit"]))
        first = _first(rows)
        meter = Meter(target.n_done, _count(source, values["limit"]) if output.stderr_is_terminal else None)
        target.begin()
        if first is not None:
            results = Results(found.name, vocabulary.token_bytes, values["timings"])
            _run(ctx, output, settings, chain([first], rows), results, target, meter, values)
        elif target.n_done:
            output.note(f"nothing is left to do: {target.name} has all {target.n_done:,} rows")
    failed = target.n_failed + meter.n_failed
    if failed:
        hint = "" if target.name == STDIO else "--retry-errors asks them once more"
        raise FailedRowsError(f"{failed:,} of {target.n_done + meter.n_rows:,} rows failed", hint=hint)


def _refuse_contradictions(source: str, values: dict[str, Any]) -> None:
    target = values["target"]
    if target in (None, STDIO):
        for name in ("retry_errors", "overwrite"):
            if values[name]:
                raise UsageError(f"--{name.replace('_', '-')} needs a file to write to", hint="name one (-o FILE)")
    elif source != STDIO and Path(target).exists() and Path(source).exists() and Path(target).samefile(source):
        raise UsageError(f"cannot write {target} onto itself", hint="name another file to write to")
    if values["retry_errors"] and values["overwrite"]:
        raise UsageError("--overwrite keeps no rows to be asked once more", hint="leave out --retry-errors")
    if values["system"] and values["chat"] is False:
        raise UsageError("a system message needs a chat", why="--raw was asked for")


# --- what is read and written ---------------------------------------------------------------------------------------


def _input(source: str) -> AbstractContextManager[BinaryIO]:
    """A file, which is closed again; or a pipe, which is not, as that would wait for the thread that reads it."""
    if source == STDIO and sys.stdin is None:
        raise UsageError("there are no rows", why="stdin is closed")
    try:
        if source == STDIO:  # as a file of its own: a thread that waits in sys.stdin crashes Python when it ends
            return nullcontext(os.fdopen(sys.stdin.fileno(), "rb", closefd=False))
        file = Path(source).open("rb")  # noqa: SIM115 - it is what is given back
        return file if _is_file(source) else nullcontext(file)
    except OSError as error:
        raise UsageError(f"cannot read {source}", why=error.strerror or str(error)) from error


def _lines(source: str, data: BinaryIO, limit: int | None) -> Iterator[Line | None]:
    lines = islice(read_lines(data), limit)
    try:
        yield from lines if _is_file(source) else as_they_come(lines)
    except OSError as error:
        raise EdgespecError(f"cannot read on in {source}", why=error.strerror or str(error)) from error


def _is_file(source: str) -> bool:
    return source != STDIO and Path(source).is_file()


def _first(rows: Iterator[Row | BadRow | None]) -> Row | BadRow | None:
    """The first row, waited for; None where there is none at all."""
    for row in rows:
        if row is not None:
            return row
        sleep(WAIT_S)
    return None


def _count(source: str, limit: int | None) -> int | None:
    """How many rows the input has, if that can be known."""
    if not _is_file(source):
        return None
    with Path(source).open("rb") as file:
        n_lines = count_lines(file)
    return n_lines if limit is None else min(n_lines, limit)


class _Stdout(Closable):
    """In place of an `OutputFile`: rows are written, and nothing is ever there."""

    name = STDIO
    n_done = n_failed = 0

    def __init__(self, output: Output) -> None:
        self._output = output
        self.done: set[int] = set()

    def begin(self) -> None:
        pass

    def write(self, row: Mapping[str, Any]) -> None:
        self._output.line(encoded(row).decode().removesuffix("\n"))

    def close(self) -> None:
        pass


def _target(name: str | None, output: Output) -> OutputFile | _Stdout:
    return _Stdout(output) if name in (None, STDIO) else OutputFile(Path(str(name)))


def _prepare(target: OutputFile | _Stdout, made_with: dict[str, Any], values: dict[str, Any]) -> int:
    """The seed that those of rows are derived from."""
    seed = values["seed"] if values["seed"] >= 0 else None
    if isinstance(target, _Stdout):
        return secrets.randbits(48) if seed is None else seed
    if values["overwrite"]:
        return target.overwrite(made_with, seed)
    return target.resume(made_with, seed, retry_failed=values["retry_errors"])


# --- the job --------------------------------------------------------------------------------------------------------


def _run(
    ctx: click.Context,
    output: Output,
    settings: LoadSettings,
    rows: Iterator[Row | BadRow | None],
    results: Results,
    target: OutputFile | _Stdout,
    meter: Meter,
    values: dict[str, Any],
) -> None:
    """Answer rows until there are none, or something stops it."""
    cancel, interrupts = CancelFlag(), ctx.find_object(Interrupts) or Interrupts()
    is_done = False
    try:
        with interrupts.cancelling(cancel), _Model(settings, output, cancel) as model:
            heard = _shower(output, meter)
            job = Job(model.worker, rows, results, cancel, ordered=values["ordered"], reopen=model.reopen, heard=heard)
            meter.start()
            try:
                _write_results(job, target, meter, model, values["max_errors"])
            finally:
                output.end_progress()
                if meter.n_rows and not output.quiet:
                    where = [target.name] if target.name != STDIO else []
                    output.aside(" · ".join([*meter.summary(), *where]))
        is_done = not cancel.is_set()
    except LoadingStoppedError:
        pass  # by a signal
    finally:
        if not is_done and target.name != STDIO:
            without = " without --overwrite" if values["overwrite"] else ""
            output.note(f"{target.name} keeps its rows; the same command{without} goes on")
    interrupts.raise_if_received()


def _write_results(
    job: Job, target: OutputFile | _Stdout, meter: Meter, model: _Model, most_failed: int | None
) -> None:
    with closing(job.run()) as results:
        for result in results:
            target.write(result.row)
            meter.add(result)
            model.show_notes()
            if most_failed is not None and meter.n_failed > most_failed:
                raise FailedRowsError(f"{meter.n_failed:,} rows failed, so this stops", hint="see --max-errors")


def _shower(output: Output, meter: Meter) -> Callable[[TokenEvent | EdgespecError], None]:
    """Counts events, and shows now and then on a terminal how far the job is."""
    shown_s = perf_counter()

    def heard(event: TokenEvent | EdgespecError) -> None:
        nonlocal shown_s
        meter.hear(event)
        if perf_counter() - shown_s > SHOWN_S:
            shown_s = perf_counter()
            output.progress(" · ".join(meter.progress()), None)

    return heard


class _Model(Closable):
    """The model in a process of its own, and in another one when that has died."""

    def __init__(self, settings: LoadSettings, output: Output, cancel: CancelFlag) -> None:
        self._settings, self._output, self._cancel = settings, output, cancel
        self._shown: set[str] = set()
        self.worker = self._open()

    def _open(self) -> Worker:
        name, output = self._settings.model, self._output
        try:
            worker = Worker(
                self._settings, lambda what, done: output.progress(PROGRESS[what].format(name), done), self._cancel
            )
        finally:
            output.end_progress()
        return worker

    def reopen(self, error: GenerationError) -> Worker:
        why = f": {error.why}" if error.why else ""
        self._output.note(f"{error.what}{why}; starting it again")
        self.worker.close()
        self.worker = self._open()
        return self.worker

    def show_notes(self) -> None:
        """Show notes that are new."""
        for note in self.worker.notes:
            if note not in self._shown:
                self._shown.add(note)
                self._output.note(note)

    def close(self) -> None:
        self.show_notes()
        self.worker.close()
