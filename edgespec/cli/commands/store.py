"""`edgespec store`: the previous answers that suffix drafting copies from."""

from __future__ import annotations

import click

from edgespec.cli.options.common import JSON_LINES, YES
from edgespec.cli.options.group import Group
from edgespec.cli.terminal.output import Output
from edgespec.cli.terminal.prompt import agreed
from edgespec.text.figures import size_of


@click.group(cls=Group)
def store() -> None:
    """Earlier answers that suffix drafting copies from.

    Answers are stored as token ids, one file per vocabulary; the oldest are dropped first. '--no-store' neither reads
    nor writes them.
    """


@store.command()
@JSON_LINES
def ls(as_json: bool) -> None:
    """List the vocabularies that have stored answers."""
    from edgespec.datastore.answer_store import stored

    output = Output(quiet=False)
    found = stored()
    if as_json:
        for entry in found:
            output.json(entry)
        return
    if not found:
        output.line("no answers are stored yet")
        return
    from edgespec.bench.tables import Figures

    rows = [
        [
            str(entry["name"]),
            str(entry["model"]),
            f"{entry['answers']:,}",
            f"{entry['tokens']:,}",
            size_of(entry["bytes"]),
        ]
        for entry in found
    ]
    output.show(
        Figures("Answers stored for suffix drafting", ["vocabulary", "last model", "answers", "tokens", ""], rows)
    )


@store.command()
@click.argument("vocabularies", nargs=-1, metavar="[VOCABULARY]...")
@YES
def clear(vocabularies: tuple[str, ...], yes: bool) -> None:
    """Delete the answers of VOCABULARY, as shown by 'store ls', or all."""
    from edgespec.datastore.answer_store import clear as forget

    if agreed(f"Delete the answers of {' and '.join(vocabularies) or 'all vocabularies'}?", yes=yes):
        Output(quiet=False).note(f"{forget(vocabularies)} deleted")


@store.command()
def path() -> None:
    """Print the folder of the answer store."""
    from edgespec.datastore.answer_store import store_dir

    Output(quiet=False).line(str(store_dir()))
