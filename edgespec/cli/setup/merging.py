"""The options of `batch` for shards, and `batch --merge`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edgespec.batch.merge import merge
from edgespec.batch.output import OutputFile
from edgespec.batch.shards import Shard
from edgespec.cli.options.common import Option, flag, option
from edgespec.cli.options.types import Parsed
from edgespec.cli.setup.batch_files import STDIO, are_same
from edgespec.cli.terminal.output import Output
from edgespec.errors import FailedRowsError, UsageError

_OF_MERGE = ("merge", "target", "overwrite", "quiet", "verbose")

SHARDS = [
    option(
        "Output", "--shard", type=Parsed("shard", Shard.parse), metavar="I/N", advanced=True,
        help="Answer only the rows of shard I of N, counted from 0. Every row is in one shard.",
    ),
    flag("--merge", help="Merge the outputs of all shards into FILE, in the order of the input."),
]  # fmt: skip


def merge_parts(ctx: click.Context, sources: Sequence[str], values: Mapping[str, Any], output: Output) -> None:
    """Merge the outputs of shards. Raises EdgespecError, and FailedRowsError if rows of the shards have failed."""
    others = [
        max(param.opts, key=len)
        for param in ctx.command.params
        if isinstance(param, Option)
        and param.name not in _OF_MERGE
        and ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    ]
    if others:
        raise UsageError(f"{', '.join(others)} cannot be combined with --merge", why="the rows are answered already")
    name, paths = values["target"], [Path(source) for source in sources]
    if name in (None, STDIO):
        raise UsageError("--merge needs an output file", hint="use -o FILE")
    if any(are_same(Path(name), path) for path in paths):
        raise UsageError(f"cannot merge {name} into itself", hint="use another output file")
    with OutputFile(Path(name)) as target:
        if target.path.exists() and target.path.stat().st_size and not values["overwrite"]:
            raise UsageError(f"{name} exists", hint="use another file name; --overwrite replaces it")
        n_rows, n_failed = merge(paths, target)
    if not output.quiet:
        output.aside(f"{n_rows:,} rows of {len(paths):,} shards · {name}")
    if n_failed:
        hint = f'each has its reason in "error"; to try them again, use the whole input and -o {name} --retry-errors'
        raise FailedRowsError(f"{n_failed:,} of {n_rows:,} rows failed", hint=hint)
