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
from edgespec.cli.options.command import Option
from edgespec.cli.options.types import ParamType
from edgespec.cli.setup.batch_files import STDIO, are_same
from edgespec.cli.terminal.output import Output
from edgespec.errors import FailedRowsError, UsageError

_OF_MERGE = ("merge", "target", "overwrite", "quiet", "verbose")


class ShardType(ParamType):
    """i/n."""

    name = "shard"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Shard:
        try:
            return value if isinstance(value, Shard) else Shard.parse(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


SHARDS = [
    click.option(
        "--shard", cls=Option, section="Output", config=False, type=ShardType(), metavar="I/N",
        help="Only the rows of shard I of N, I from 0 on; every row is in one of them.",
    ),
    click.option(
        "--merge", cls=Option, section="Output", config=False, is_flag=True,
        help="Merge the outputs of all shards into FILE, in the order of the input.",
    ),
]  # fmt: skip


def the_input(sources: Sequence[str]) -> str:
    """Raises UsageError unless it is one."""
    if len(sources) > 1:
        raise UsageError(f"batch reads one input, not {len(sources)}", why="several are outputs to --merge")
    return sources[0]


def merge_parts(ctx: click.Context, sources: Sequence[str], values: Mapping[str, Any], output: Output) -> None:
    """Merge the outputs of shards. Raises EdgespecError, FailedRowsError as a job would that wrote these rows."""
    _refuse_other_options(ctx)
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
        hint = f'each has its reason in "error"; with the whole input and -o {name} --retry-errors they are tried again'
        raise FailedRowsError(f"{n_failed:,} of {n_rows:,} rows failed", hint=hint)


def _refuse_other_options(ctx: click.Context) -> None:
    others = [
        max(param.opts, key=len)
        for param in ctx.command.params
        if isinstance(param, Option)
        and param.name not in _OF_MERGE
        and ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    ]
    if others:
        raise UsageError(f"{', '.join(others)} cannot be combined with --merge", why="the rows are answered already")
