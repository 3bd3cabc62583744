"""`edgespec ls`: the models of this machine, what was not downloaded completely, and the names of the catalogue."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from textwrap import fill
from typing import TYPE_CHECKING

import click

from edgespec.cli.common import JSON_LINES, QUIET
from edgespec.cli.output import Output
from edgespec.figures import count_of, size_of, when
from edgespec.printable import one_line

if TYPE_CHECKING:
    from edgespec.models.catalog import Entry
    from edgespec.models.local import LocalModel
    from edgespec.models.removal import Unfinished

Row = tuple[str, ...]

INDENT = " " * 4
FIGURES = ("parameters", "size", "context")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("part", required=False, default="", metavar="[NAME-PART]")
@click.option("--catalog", is_flag=True, help="List the names that edgespec knows, to be fetched, instead.")
@JSON_LINES
@QUIET
def ls(part: str, catalog: bool, as_json: bool, quiet: bool) -> None:
    """List the models of this machine; with NAME-PART those that have it in their names.

    Looks into the Hugging Face cache, this folder and ~/models. What stands under 'model' is what other commands take.
    """
    output = Output(quiet=quiet)
    (_list_catalogue if catalog else _list_models)(output, part.lower(), as_json)


# --- models -----------------------------------------------------------------------------------------------------------


def _list_models(output: Output, part: str, as_json: bool) -> None:
    from edgespec.models.local import local_models
    from edgespec.models.names import name_of
    from edgespec.models.removal import unfinished

    found: list[tuple[str, LocalModel]] = []
    try:
        for model in local_models():
            output.progress(f"reading {model.path.name}", None)
            name = name_of(model.path)
            if part in f"{name} {model.path} {model.name} {model.architecture} {model.quantisation}".lower():
                found.append((name, model))
    finally:
        output.end_progress()
    found.sort(key=lambda each: bool(each[1].problem))
    begun = [each for each in unfinished() if part in each.repository.lower()]
    if as_json:
        for name, model in found:
            output.json(_model_json(name, model))
        for each in begun:
            output.json(_unfinished_json(each))
        return
    usable = [_model_row(name, model) for name, model in found if not model.problem]
    if usable:
        header = ("model", "architecture", "parameters", "weights", "size", "context", "last used")
        _show(output, header, usable, _below_each_other([row[1:] for row in usable]))
    if problems := [(name, model) for name, model in found if model.problem]:
        output.line(("\n" if usable else "") + "cannot be loaded:")
        for name, model in problems:
            output.line(f"{one_line(name)}\n{_wrapped(f'{size_of(model.size_bytes)}, {model.problem}')}")
    if begun:
        output.line(("\n" if found else "") + "not downloaded completely:")
        for repository, files in groupby(begun, lambda each: each.repository):
            sizes = [each.size_bytes for each in files]
            of_files = f" of {len(sizes)} files" if len(sizes) > 1 else ""
            output.line(f"{repository}\n{INDENT}{size_of(sum(sizes))}{of_files} so far")
            output.line(f"{INDENT}to finish it:  edgespec pull {repository}:QUANT")
            output.line(f"{INDENT}to delete it:  edgespec rm --unfinished {repository}")
    if not found and not begun:
        output.note(f"no model here has '{part}' in its name")


def _model_row(name: str, model: LocalModel) -> Row:
    used = when(model.used_s) if model.used_s else ""
    context = f"{model.n_ctx_train:,}"
    return (
        one_line(name),
        model.architecture,
        count_of(model.n_params),
        model.quantisation,
        size_of(model.size_bytes),
        context,
        used,
    )


def _model_json(name: str, model: LocalModel) -> dict[str, object]:
    from edgespec.transcript import iso

    parts = model.header.parts if model.header else ()
    return {
        "model": name,
        "files": [str(path.absolute()) for path in parts or (model.path,)],
        "name": model.name,
        "architecture": model.architecture,
        "parameters": model.n_params,
        "quantisation": model.quantisation,
        "size_bytes": model.size_bytes,
        "ctx_trained": model.n_ctx_train,
        "last_used": iso(model.used_s) if model.used_s else None,
        "problem": model.problem,
    }


def _unfinished_json(each: Unfinished) -> dict[str, object]:
    problem = "not downloaded completely"
    return {"model": each.repository, "files": [str(each.path)], "size_bytes": each.size_bytes, "problem": problem}


# --- the catalogue ----------------------------------------------------------------------------------------------------


def _list_catalogue(output: Output, part: str, as_json: bool) -> None:
    from edgespec.models.catalog import catalogue

    entries = [each for each in catalogue().values() if part in f"{each.name} {each.about} {each.repository}".lower()]
    if as_json:
        for entry in entries:
            output.json(asdict(entry) | {"here": _quants_here(entry)})
    elif entries:
        header = ("model", "about", "weights", "here", "licence", "drafts")
        rows = [_entry_row(entry) for entry in entries]
        _show(output, header, rows, [_wrapped(_entry_text(entry)) for entry in entries])
    else:
        output.note(f"the catalogue has nothing with '{part}' in its name")


def _entry_row(entry: Entry) -> Row:
    here, drafts = " ".join(_quants_here(entry)), " ".join(entry.drafts)
    return entry.name, entry.about, entry.quant, here, entry.licence, drafts


def _entry_text(entry: Entry) -> str:
    here = f" (here: {' '.join(_quants_here(entry))})" if _quants_here(entry) else ""
    drafts = f"drafts {' '.join(entry.drafts)}" if entry.drafts else ""
    return ", ".join(filter(None, (entry.about, entry.quant + here, entry.licence, drafts)))


def _quants_here(entry: Entry) -> list[str]:
    """In which quantisations it is on this machine."""
    from edgespec.models.cache import cached_files
    from edgespec.models.quants import models_in, quant_of

    return sorted({quant_of(name) or name for name in models_in(list(cached_files(entry.repository)))})


# --- layout -----------------------------------------------------------------------------------------------------------


def _show(output: Output, header: Row, rows: Sequence[Row], narrow: Sequence[str]) -> None:
    """A table, or where that is wider than the terminal each name on a line of its own, with `narrow` below it."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    if sum(_widths([header, *rows])) + 2 * (len(header) - 1) > _columns():
        for row, text in zip(rows, narrow, strict=True):
            output.line(f"{row[0]}\n{text}")
        return
    # the box puts one of the two spaces between columns
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False, header_style="")
    for name in header:
        table.add_column(name, no_wrap=True, justify="right" if name in FIGURES else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    output.show(table)


def _below_each_other(rows: Sequence[Row]) -> list[str]:
    """Cells at the same place in each row."""
    widths = _widths(rows)
    return [INDENT + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _wrapped(text: str) -> str:
    return fill(text, _columns(), initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False)


def _widths(rows: Sequence[Row]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _columns() -> int:
    return shutil.get_terminal_size().columns
