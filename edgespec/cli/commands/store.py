"""`edgespec store`: the earlier answers that suffix drafting copies from."""

from __future__ import annotations

import click

from edgespec.cli.options.common import YES, flag
from edgespec.cli.options.group import Group
from edgespec.cli.render.rows import table
from edgespec.cli.terminal.output import Output
from edgespec.cli.terminal.prompt import agreed
from edgespec.errors import UsageError
from edgespec.text.figures import size_of


@click.group(cls=Group)
def store() -> None:
    """Earlier answers that suffix drafting copies from.

    Answers are stored as token ids, one file per vocabulary; the oldest are dropped first. With --no-store, a command
    neither reads nor writes them.
    """


@store.command()
def ls() -> None:
    """List the vocabularies that have stored answers."""
    from edgespec.datastore.answer_store import stored

    output = Output(quiet=False)
    found = stored()
    if not found:
        output.line("no answers are stored yet")
        return
    rows = [
        (str(each["name"]), str(each["model"]), str(each["answers"]), str(each["tokens"]), size_of(each["bytes"]))
        for each in found
    ]
    header = ("vocabulary", "last model", "answers", "tokens", "size")
    output.line("\n".join(table(header, rows, right=("answers", "tokens", "size"))))


@store.command(short_help="Delete stored answers.")
@click.argument("vocabularies", nargs=-1, metavar="[VOCABULARY]...")
@flag("--all", "every", help="Delete all answers.")
@YES
def clear(vocabularies: tuple[str, ...], every: bool, yes: bool) -> None:
    """Delete the answers of VOCABULARY, as shown by 'store ls', or with --all those of all vocabularies."""
    from edgespec.datastore.answer_store import clear as forget

    if bool(vocabularies) == every:
        raise UsageError("name vocabularies, or use --all" if not every else "use names or --all, not both")
    if agreed(f"Delete the answers of {' and '.join(vocabularies) or 'all vocabularies'}?", yes=yes):
        Output(quiet=False).note(f"{forget(vocabularies)} deleted")
