"""`edgespec corpus` and `store`: your own texts, and earlier answers, that drafts are copied from."""

from __future__ import annotations

from pathlib import Path

import click

from edgespec.cli.options.command import Call, Options
from edgespec.cli.options.common import QUIET, YES
from edgespec.cli.options.group import Group
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.setup.models import default_model
from edgespec.cli.terminal.output import Output
from edgespec.cli.terminal.prompt import agreed
from edgespec.text.figures import size_of

SHOWN = 5  # skipped files that are named


@click.group(cls=Group)
def corpus() -> None:
    """Index your own texts to draft from them.

    If answers repeat text from your notes, manuals or code, a corpus of these texts drafts many tokens at a time. Build
    it once, then generate with --corpus.
    """


@corpus.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="PATH...")
@click.option(
    "-o", "--output", "out", required=True, metavar="NAME|FILE", help="Name of the corpus, or a file to write."
)
@click.option("-m", "--model", type=ModelSpec(), help="Model whose vocabulary is used (smollm2 by default).")
@QUIET
@click.pass_context
def build(ctx: click.Context, paths: tuple[Path, ...], out: str, model: str | None, quiet: bool) -> None:
    """Build a corpus from UTF-8 files and folders."""
    from edgespec.datastore.corpus import build as make
    from edgespec.datastore.corpus import file_for, text_files
    from edgespec.llama.model import LlamaModel
    from edgespec.models.names.spec import resolve

    output = Output(quiet=quiet)
    model = model or default_model(Call(ctx, Options))
    with output.showing_progress():
        output.progress("looking for texts", 0)
        files = text_files(paths)
        with LlamaModel.load_vocabulary(resolve(model).path) as vocabulary:
            path = file_for(out)
            about, left_out = make(files, vocabulary, path, output.progress)
    for reason in left_out[:SHOWN]:
        output.note(f"skipped {reason}")
    if len(left_out) > SHOWN:
        output.note(f"skipped {len(left_out) - SHOWN} more")
    output.line(f"{path}: {about.tokens} tokens of {about.files} files")


@corpus.command()
def ls() -> None:
    """List the corpora in edgespec's data folder."""
    from edgespec.datastore.corpus import listed

    output = Output(quiet=False)
    found = listed(output.note)
    if found:
        rows = [(path.stem, about.model, str(about.files), str(about.tokens)) for path, about in found]
        output.table(("name", "vocabulary of", "files", "tokens"), rows, right=("files", "tokens"))
    else:
        output.line("there is no corpus yet")


@corpus.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@YES
def rm(names: tuple[str, ...], yes: bool) -> None:
    """Delete corpora."""
    from edgespec.datastore.corpus import find, read_about

    paths = [find(name) for name in names]
    for path in paths:
        read_about(path)  # fails for other files, so that only corpora are deleted
    if agreed(f"Delete {' and '.join(names)}?", yes=yes):
        for path in paths:
            path.unlink()


# --- edgespec store ---------------------------------------------------------------------------------------------------


@click.group(cls=Group)
def store() -> None:
    """Earlier answers that suffix drafting copies from, and what token recycling learned from them.

    Answers are stored as token ids, one file per vocabulary; the oldest are dropped first. Of each model, a table holds
    the tokens that were likely after the last two tokens. With --no-store, a command neither reads nor writes them.
    """


@store.command("ls")
def list_answers() -> None:
    """List stored answers by vocabulary, and tables by model."""
    from edgespec.datastore import successor_store
    from edgespec.datastore.answer_store import stored

    output = Output(quiet=False)
    found, tables = stored(), successor_store.stored()
    if not found and not tables:
        output.line("no answers are stored yet")
        return
    rows = [
        (str(each["name"]), str(each["model"]), str(each["answers"]), str(each["tokens"]), size_of(each["bytes"]))
        for each in found
    ]
    header = ("vocabulary", "last model", "answers", "tokens", "size")
    if rows:
        output.table(header, rows, right=("answers", "tokens", "size"))
    if rows and tables:
        output.line("")
    if tables:
        known = [(str(each["model"]), str(each["contexts"]), size_of(each["bytes"])) for each in tables]
        output.table(("likely tokens of", "contexts", "size"), known, right=("contexts", "size"))


@store.command()
@YES
def clear(yes: bool) -> None:
    """Delete all stored answers and tables."""
    from edgespec.datastore import answer_store, successor_store

    if agreed("Delete the answers of all vocabularies, and all tables learned from answers?", yes=yes):
        Output(quiet=False).note(f"{answer_store.clear() + successor_store.clear()} deleted")
