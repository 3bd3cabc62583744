"""`edgespec ls` and `rm`: list the models of this machine, or the catalogue, and delete models."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

import click

from edgespec.cli.options.common import JSON_LINES, QUIET, YES
from edgespec.cli.options.group import HELP_NAMES
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.terminal.output import Output, in_options
from edgespec.cli.terminal.prompt import agreed
from edgespec.text.figures import count_of, counted, iso, size_of, when
from edgespec.text.printable import one_line, wrapped

if TYPE_CHECKING:
    from edgespec.models.listing import ModelRow

INDENT = " " * 4


@click.command(context_settings=HELP_NAMES)
@click.argument("part", required=False, default="", metavar="[NAME-PART]")
@click.option("--catalog", is_flag=True, help="List the models of the catalogue, which can be downloaded by name.")
@JSON_LINES
@QUIET
def ls(part: str, catalog: bool, as_json: bool, quiet: bool) -> None:
    """List the models on this machine. NAME-PART selects models by a part of their names.

    Searches edgespec's own folder, the Hugging Face cache, the working folder, ~/models, the folders of LM Studio,
    llama.cpp and Ollama, and your own folders (in EDGESPEC_MODELS). Other commands accept the names under 'model'.
    """
    from edgespec.models.listing import catalogue_rows, incomplete, rows_here

    output = Output(quiet=quiet)
    if catalog:
        rows = list(catalogue_rows())
    else:
        with output.showing_progress():
            rows = rows_here(embeds=True, reading=lambda name: output.progress(f"reading {name}", None)) + incomplete()
        _report_folders(output)
    rows = [row for row in rows if row.has(part)]
    if as_json:
        for row in rows:
            output.json(_entry_as_json(row) if catalog else _as_json(row))
    elif not rows:
        place = "of the catalogue" if catalog else "on this machine"
        output.note(f"no model {place} has '{part.lower()}' in its name")
    elif catalog:
        _print_catalogue(output, rows)
    else:
        _print_models(output, rows)


def _report_folders(output: Output) -> None:
    """Show a note for each of the user's own folders that does not exist."""
    from edgespec.models.names.model_names import VARIABLE, own_folders, with_tilde

    for folder in own_folders():
        if not folder.is_dir():
            output.note(f"{with_tilde(folder)}, set in {VARIABLE}, does not exist")


# --- as text ----------------------------------------------------------------------------------------------------------


def _print_models(output: Output, rows: Sequence[ModelRow]) -> None:
    models, heads, embeddings, unusable, begun = (
        [row for row in rows if row.kind == kind] for kind in ("model", "head", "embedding", "unusable", "incomplete")
    )
    if models:
        _print_table(output, models)
        output.line("")
    for heading, lines in (
        ("draft heads, which draft for their model (-md):", map(_line, heads)),
        ("for vectors and scores of texts ('edgespec serve'):", map(_line, embeddings)),
        ("cannot be loaded:", (line for row in unusable for line in _reason(row))),
        ("incomplete downloads:", _incomplete_lines(begun)),
    ):
        if text := "\n".join(lines):
            output.line(f"{heading}\n{text}\n")
    lost_bytes = sum(row.size_bytes for row in [*unusable, *begun])
    total = [f"{counted(len(models), 'model')}, {size_of(sum(row.size_bytes for row in models))}"] if models else []
    total += [counted(len(heads), "draft head")] if heads else []
    total += [counted(len(embeddings), "embedding model")] if embeddings else []
    total += [f"{size_of(lost_bytes)} in files that cannot be loaded"] if lost_bytes else []
    output.line("; ".join(total))


def _print_table(output: Output, rows: Sequence[ModelRow]) -> None:
    from edgespec.models.names.model_names import short_spec

    cells = [
        (
            one_line(short_spec(row.name)),
            count_of(row.model.n_params),
            row.quant,
            row.size,
            str(row.model.n_ctx_train or ""),
            str(row.head or ""),
            when(row.model.modified_s) if row.model.modified_s else "",
        )
        for row in rows
        if row.model is not None
    ]
    header = ("model", "parameters", "weights", "size", "context", "draft head", "modified")
    output.table(header, cells, right=("parameters", "size", "context"), least=("modified", "context"))
    _note_absent(output, rows)


def _note_absent(output: Output, rows: Iterable[ModelRow]) -> None:
    if any(row.head is not None and row.head.place == "not here" for row in rows):
        output.note("edgespec pull MODEL --head downloads a draft head that is not here")


def _line(row: ModelRow) -> str:
    from edgespec.gguf_file.head_check import kind_of_head
    from edgespec.models.names.model_names import short_spec

    assert row.model is not None and row.model.header is not None  # else it would be unusable
    kind = kind_of_head(row.model.header) if row.kind == "head" else row.model.architecture
    return one_line(f"{short_spec(row.name)}: {kind}, {row.size}")


def _reason(row: ModelRow) -> list[str]:
    size = f"{row.size}, " if row.size else ""
    reason = f"{INDENT}{size}{in_options(one_line(row.problem))}"
    return [one_line(row.name), wrapped(reason, shutil.get_terminal_size().columns)]


def _incomplete_lines(rows: Iterable[ModelRow]) -> list[str]:
    lines = []
    for repository, group in groupby(rows, lambda row: row.name):
        begun = list(group)
        lines += [
            repository,
            f"{INDENT}{size_of(sum(row.size_bytes for row in begun))} downloaded;"
            " to finish it, repeat the command that started it",
            f"{INDENT}to delete it, delete the incomplete files in {begun[0].files[0].parent}",
        ]
    return lines


def _print_catalogue(output: Output, rows: Sequence[ModelRow]) -> None:
    from edgespec.models.listing import quants_here
    from edgespec.models.recommend import recommended, this_machine

    with output.showing_progress():
        output.progress("measuring this machine", None)
        machine = this_machine()
        best = next(iter(recommended(machine)), None)
    cells = [
        (
            row.name,
            row.size,
            "best" if best and row.name == best.row.name else _fit(row, machine.room_bytes + machine.gpu_bytes),
            " ".join(quants_here(row)),
            row.entry.licence,
            row.entry.about,
            row.quant,
            " ".join(row.entry.drafts),
            str(row.head or ""),
        )
        for row in rows
    ]
    header = ("model", "size", "fits", "here", "licence", "about", "weights", "drafts", "draft head")
    output.table(header, cells, right=("size",), least=("draft head", "drafts", "weights", "about"), wraps="about")
    _note_absent(output, rows)
    if best and best.row.name in [row.name for row in rows]:
        speed = f" ({best.speed})" if best.speed else ""
        output.note(f"the best model for this machine is {best.row.name}{speed}: edgespec chat -m {best.row.name}")


def _fit(row: ModelRow, room_bytes: int) -> str:
    """Say in a word if a model fits into the memory; empty if its size is unknown."""
    from edgespec.models.memory.fit import TIGHT

    if not row.needed_bytes:
        return ""
    return "yes" if row.needed_bytes <= TIGHT * room_bytes else "tight" if row.needed_bytes <= room_bytes else "no"


# --- as JSON ----------------------------------------------------------------------------------------------------------


def _as_json(row: ModelRow) -> dict[str, object]:
    files = [str(path.absolute()) for path in row.files]
    about = {"model": row.name, "files": files, "size_bytes": row.size_bytes, "problem": row.problem}
    if row.model is None:
        return about
    return about | {
        "name": row.model.name,
        "architecture": row.model.architecture,
        "parameters": row.model.n_params,
        "quantisation": row.quant,
        "ctx_trained": row.model.n_ctx_train,
        "modified": iso(row.model.modified_s) if row.model.modified_s else None,
        "head": row.head.as_json if row.head is not None else None,
    }


def _entry_as_json(row: ModelRow) -> dict[str, object]:
    """Return a model of the catalogue with a key for each setting, null for those that the catalogue leaves open."""
    from edgespec.models.listing import quants_here
    from edgespec.models.names.catalog import NUMBERS

    head = row.head.as_json if row.head is not None else None
    settings = {**dict.fromkeys(NUMBERS), **row.entry.numbers}
    about = {name: value for name, value in asdict(row.entry).items() if name != "numbers"}
    return {**about, **settings, "here": quants_here(row), "head": head}


# --- edgespec rm ------------------------------------------------------------------------------------------------------


@click.command(context_settings=HELP_NAMES)
@click.argument("models", nargs=-1, required=True, type=ModelSpec(), metavar="MODEL...")
@YES
def rm(models: tuple[str, ...], yes: bool) -> None:
    """Delete models.

    MODEL is a GGUF file, or a name as shown by 'edgespec ls'. All parts of a split model and incomplete downloads of
    its repository are deleted, too. The files are listed first, and confirmed.
    """
    from edgespec.models.hub.cache import repository_of
    from edgespec.models.hub.removal import plan_removal, remove
    from edgespec.models.names.model_names import with_tilde

    output = Output(quiet=False)
    removal = plan_removal(models)
    for file in removal.files:
        place = repository_of(file.path)
        name = f"{place[0]}, {place[1]}" if place else file.repository or with_tilde(file.path)
        remark = f" ({file.remark})" if file.remark else ""
        output.line(f"{size_of(file.freed_bytes):>8}  {one_line(name)}{remark}")
    if not agreed(f"Delete {size_of(removal.freed_bytes)}?", yes=yes):
        return
    remove(removal)
    output.note(f"{size_of(removal.freed_bytes)} deleted")
