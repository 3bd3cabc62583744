"""`edgespec rm`: delete models."""

from __future__ import annotations

import click

from edgespec.cli.options.common import YES
from edgespec.cli.options.group import HELP_NAMES
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.terminal.output import Output
from edgespec.cli.terminal.prompt import agreed
from edgespec.models.hub.cache import repository_of
from edgespec.models.hub.removal import DeletedFile, plan_removal, remove
from edgespec.models.names.known import with_tilde
from edgespec.text.figures import size_of
from edgespec.text.printable import one_line


@click.command(context_settings=HELP_NAMES)
@click.argument("models", nargs=-1, required=True, type=ModelSpec(), metavar="MODEL...")
@YES
def rm(models: tuple[str, ...], yes: bool) -> None:
    """Delete models.

    MODEL is a GGUF file, or a name as shown by 'edgespec ls'. All parts of a split model and incomplete downloads of
    its repository are deleted, too. The files are listed first, and confirmed.
    """
    output = Output(quiet=False)
    removal = plan_removal(models)
    for file in removal.files:
        output.line(_line(file))
    if not agreed(f"Delete {size_of(removal.freed_bytes)}?", yes=yes):
        return
    remove(removal)
    output.note(f"{size_of(removal.freed_bytes)} deleted")


def _line(file: DeletedFile) -> str:
    place = repository_of(file.path)
    name = f"{place[0]}, {place[1]}" if place else file.repository or with_tilde(file.path)
    remark = f" ({file.remark})" if file.remark else ""
    return f"{size_of(file.freed_bytes):>8}  {one_line(name)}{remark}"
