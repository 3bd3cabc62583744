"""The input and output of `edgespec batch`: resumable files, pipes, and the outputs of shards."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from edgespec.batch.input import Line, Shard, count_lines, read_ahead, read_lines
from edgespec.batch.merge import merge
from edgespec.batch.output import OutputFile, encoded
from edgespec.batch.reading import id_on
from edgespec.cli.terminal.output import Output, StdoutClosed
from edgespec.closable import Closable
from edgespec.errors import EdgespecError, FailedRowsError, UsageError, told_as
from edgespec.requests.row import BadRow, Row

STDIO = "-"
END_OF_FILE = "Ctrl-Z and Enter" if os.name == "nt" else "Ctrl-D"


def open_input(source: str, output: Output) -> AbstractContextManager[BinaryIO]:
    """Open the input. A pipe is not closed at the end: closing would wait for the thread that reads it."""
    if source == STDIO and sys.stdin is None:
        raise UsageError("there are no rows", why="stdin is closed")
    if source == STDIO and sys.stdin.isatty():
        output.note(f"reading rows from the terminal, one JSON object per line; {END_OF_FILE} ends the input")
    with told_as(UsageError, f"cannot read {source}"):
        if source == STDIO:  # not sys.stdin: Python crashes at exit if a thread still reads that
            return nullcontext(os.fdopen(sys.stdin.fileno(), "rb", closefd=False))
        file = Path(source).open("rb")  # noqa: SIM115 - the caller closes it
        return file if is_file(source) else nullcontext(file)


def input_lines(source: str, data: BinaryIO, limit: int | None) -> Iterator[Line]:
    """Yield the lines of the input. Raises EdgespecError."""
    with told_as(EdgespecError, f"cannot continue reading {source}"):
        yield from islice(read_lines(data), limit)


def remaining(source: str, rows: Iterator[Row | BadRow]) -> Iterator[Row | BadRow | None]:
    """Yield the first row, which is there, and the others; None while a pipe has no row yet."""
    yield next(rows)
    yield from rows if is_file(source) else read_ahead(rows)


def are_same(file: Path, other: Path) -> bool:
    """Return whether both paths exist and are the same file."""
    try:
        return file.samefile(other)
    except OSError:
        return False


def is_file(source: str) -> bool:
    """Return whether the input is a file, all of whose rows are there."""
    return source != STDIO and Path(source).is_file()


def count_rows(source: str, limit: int | None, shard: Shard | None) -> int | None:
    """Return the number of rows of the input, or of its shard; None for a pipe."""
    if not is_file(source):
        return None
    with Path(source).open("rb") as file:
        if shard is not None:
            return sum(shard.holds(id_on(*line)) for line in islice(read_lines(file), limit))
        n_lines = count_lines(file)
    return n_lines if limit is None else min(n_lines, limit)


class StdoutRows(Closable):
    """Rows on stdout, with the interface of `OutputFile`; there are never earlier rows."""

    name = STDIO
    n_done = n_failed = 0

    def __init__(self, output: Output) -> None:
        self._output = output
        self.done: dict[int, str] = {}

    def begin(self) -> None:
        pass

    def write(self, row: Mapping[str, object]) -> None:
        """Write a row. Raises EdgespecError if the reader of stdout has gone, since rows would be missing."""
        try:
            self._output.line(encoded(row).decode().removesuffix("\n"))
        except StdoutClosed:
            raise EdgespecError(
                "the remaining rows are not answered", why="the reader of stdout has closed it"
            ) from None

    def close(self) -> None:
        pass


def merge_parts(name: str, sources: Sequence[str], output: Output, *, overwrite: bool) -> None:
    """Merge the outputs of shards. Raises EdgespecError, and FailedRowsError if rows of the shards have failed."""
    paths = [Path(source) for source in sources]
    if name == STDIO:
        raise UsageError("--merge needs an output file", hint="use -o FILE")
    if any(are_same(Path(name), path) for path in paths):
        raise UsageError(f"cannot merge {name} into itself", hint="use another output file")
    with OutputFile(Path(name)) as target:
        if target.path.exists() and target.path.stat().st_size and not overwrite:
            raise UsageError(f"{name} exists", hint="use another file name; --overwrite replaces it")
        n_rows, n_failed = merge(paths, target)
    if not output.quiet:
        output.aside(f"{n_rows} rows of {len(paths)} shards · {name}")
    if n_failed:
        hint = f'each has its reason in "error"; to try them again, use the whole input and -o {name} --retry-errors'
        raise FailedRowsError(f"{n_failed} of {n_rows} rows failed", hint=hint)
