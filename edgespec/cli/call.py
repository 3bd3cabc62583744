"""A command that runs: the values of its options, its streams, and the signals that stop it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from edgespec.cancel import CancelFlag
from edgespec.cli.options.common import Option
from edgespec.cli.terminal.interrupt import Interrupts
from edgespec.cli.terminal.output import Output

if TYPE_CHECKING:
    from edgespec.events import Progress


class Call:
    """A running command. `values` are its options and arguments by name, and `cancel` is the flag that the first signal
    sets within `cancelling`."""

    def __init__(self, ctx: click.Context) -> None:
        self.ctx, self.cancel = ctx, CancelFlag()
        self.values: dict[str, Any] = ctx.params
        self.output = Output(quiet=self.values.get("quiet", False), verbose=self.values.get("verbose", False))
        self.interrupts = ctx.find_object(Interrupts) or Interrupts()

    def is_typed(self, name: str) -> bool:
        """Return whether an option was given on the command line."""
        return self.ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE

    def typed_options(self) -> list[Option]:
        """Return the options that were given on the command line."""
        params = self.ctx.command.params
        return [param for param in params if isinstance(param, Option) and self.is_typed(str(param.name))]

    def is_unset(self, name: str) -> bool:
        """Return whether an option has its default."""
        return self.ctx.get_parameter_source(name) is ParameterSource.DEFAULT

    @contextmanager
    def cancelling(self) -> Iterator[CancelFlag]:
        """Within this block the first signal sets `cancel`, which is returned, instead of ending the process."""
        with self.interrupts.cancelling(self.cancel):
            yield self.cancel

    def progress_of(self, model: str) -> Progress:
        """Return a function that shows how far the loading of a model is."""
        from edgespec.events import PROGRESS

        return lambda what, done: self.output.progress(PROGRESS.get(what, what).format(model), done)
