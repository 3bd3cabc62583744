"""`edgespec ls` and `rm`: list the models of this machine, or the catalogue, and delete models."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgespec.cli.options.common import JSON_LINES, QUIET, YES
from edgespec.cli.options.group import HELP_NAMES
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.terminal.output import Output
from edgespec.cli.terminal.prompt import agreed
from edgespec.text.figures import count_of, counted, iso, size_of, when
from edgespec.text.printable import one_line, wrapped

if TYPE_CHECKING:
    from edgespec.models.names.catalog import Entry
    from edgespec.models.names.local import LocalModel
    from edgespec.models.names.published_heads import KnownHead
    from edgespec.models.pair.known_heads import KnownHeads

INDENT = " " * 4
Found = tuple[str, "LocalModel"]  # the name of a model, and its description
Begun = tuple[str, Path, int]  # an incomplete download: its repository, the file, and its size


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
    output = Output(quiet=quiet)
    (_list_catalogue if catalog else _list_models)(output, part.lower(), as_json=as_json)


def _list_models(output: Output, part: str, *, as_json: bool) -> None:
    from edgespec.models.hub.removal import unfinished
    from edgespec.models.pair.known_heads import KnownHeads

    everything = _found(output)
    heads_of = KnownHeads(model for _, model in everything)
    found = sorted((each for each in everything if _has(part, *each)), key=lambda each: bool(each[1].problem))
    begun = [each for each in unfinished() if part in each[0].lower()]
    _report_folders(output)
    if as_json:
        for name, model in found:
            output.json(_as_json(name, model, heads_of.of(model)))
        for repository, path, size_bytes in begun:
            output.json(_problem(repository, [str(path)], size_bytes, "incomplete download"))
        return
    if not (found or begun):
        output.note(f"no model on this machine has '{part}' in its name")
        return
    usable = [each for each in found if not (each[1].problem or each[1].is_head or each[1].is_embedding)]
    heads = [each for each in found if each[1].is_head]
    for_texts = [each for each in found if each[1].is_embedding]
    unusable = [each for each in found if each[1].problem]
    if usable:
        _print_table(output, usable, heads_of)
        output.line("")
    if heads:
        output.line("\n".join(["draft heads, which draft for their model (-md):", *starmap(_head_line, heads), ""]))
    if for_texts:
        lines = [_line(name, model, model.architecture) for name, model in for_texts]
        output.line("\n".join(["for vectors and scores of texts ('edgespec serve'):", *lines, ""]))
    problems = [line for name, model in unusable for line in _reason(name, model)]
    for heading, lines in (("cannot be loaded:", problems), ("incomplete downloads:", _unfinished_lines(begun))):
        if lines:
            output.line("\n".join([heading, *lines, ""]))
    lost_bytes = sum(model.size_bytes for _, model in unusable) + sum(size_bytes for _, _, size_bytes in begun)
    size = size_of(sum(model.size_bytes for _, model in usable))
    total = [f"{counted(len(usable), 'model')}, {size}"] if usable else []
    total += [counted(len(heads), "draft head")] if heads else []
    total += [counted(len(for_texts), "embedding model")] if for_texts else []
    total += [f"{size_of(lost_bytes)} in files that cannot be loaded"] if lost_bytes else []
    output.line("; ".join(total))


# --- the models -------------------------------------------------------------------------------------------------------


def _found(output: Output) -> list[Found]:
    from edgespec.models.names.local import local_models
    from edgespec.models.names.model_names import name_of

    found: list[Found] = []
    with output.showing_progress():
        for model in local_models(embeds=True):
            output.progress(f"reading {model.path.name}", None)
            found.append((name_of(model.path, model.spec), model))
    return found


def _has(part: str, name: str, model: LocalModel) -> bool:
    return part in f"{name} {model.path} {model.name} {model.architecture} {model.quantisation}".lower()


def _report_folders(output: Output) -> None:
    """Show a note for each of the user's own folders that does not exist."""
    from edgespec.models.names.model_names import VARIABLE, own_folders, with_tilde

    for folder in own_folders():
        if not folder.is_dir():
            output.note(f"{with_tilde(folder)}, set in {VARIABLE}, does not exist")


# --- as text ----------------------------------------------------------------------------------------------------------


def _print_table(output: Output, usable: Sequence[Found], heads_of: KnownHeads) -> None:
    from edgespec.models.names.model_names import short_spec

    heads = [heads_of.of(model) for _, model in usable]
    rows = [
        (
            one_line(short_spec(name)),
            count_of(model.n_params),
            model.quantisation,
            size_of(model.size_bytes),
            str(model.n_ctx_train or ""),
            str(head or ""),
            when(model.modified_s) if model.modified_s else "",
        )
        for (name, model), head in zip(usable, heads, strict=True)
    ]
    header = ("model", "parameters", "weights", "size", "context", "draft head", "modified")
    output.table(header, rows, right=("parameters", "size", "context"), least=("modified", "context"))
    _note_absent(output, heads)


def _note_absent(output: Output, heads: Iterable[KnownHead | None]) -> None:
    if any(head is not None and head.place == "not here" for head in heads):
        output.note("edgespec pull MODEL --head downloads a draft head that is not here")


def _head_line(name: str, head: LocalModel) -> str:
    from edgespec.gguf_file.head_check import kind_of_head

    assert head.header is not None  # else it would not be known as a head
    return _line(name, head, kind_of_head(head.header))


def _line(name: str, model: LocalModel, kind: str | None) -> str:
    from edgespec.models.names.model_names import short_spec

    return one_line(f"{short_spec(name)}: {kind}, {size_of(model.size_bytes)}")


def _reason(name: str, model: LocalModel) -> list[str]:
    size = f"{size_of(model.size_bytes)}, " if model.size_bytes else ""
    return [one_line(name), wrapped(INDENT + size + one_line(model.problem), shutil.get_terminal_size().columns)]


def _unfinished_lines(begun: list[Begun]) -> list[str]:
    lines = []
    for repository, files in groupby(begun, lambda each: each[0]):
        paths, sizes = zip(*((path, size_bytes) for _, path, size_bytes in files), strict=True)
        lines += [
            repository,
            f"{INDENT}{size_of(sum(sizes))} downloaded; to finish it, repeat the command that started it",
            f"{INDENT}to delete it, delete the incomplete files in {paths[0].parent}",
        ]
    return lines


# --- as JSON ----------------------------------------------------------------------------------------------------------


def _as_json(name: str, model: LocalModel, head: KnownHead | None) -> dict[str, Any]:
    parts = model.header.parts if model.header else ()
    return _problem(
        name, [str(path.absolute()) for path in parts or (model.path,)], model.size_bytes, model.problem
    ) | {
        "name": model.name,
        "architecture": model.architecture,
        "parameters": model.n_params,
        "quantisation": model.quantisation,
        "ctx_trained": model.n_ctx_train,
        "modified": iso(model.modified_s) if model.modified_s else None,
        "head": head.as_json if head is not None else None,
    }


def _problem(name: str, files: list[str], size_bytes: int, problem: str) -> dict[str, Any]:
    return {"model": name, "files": files, "size_bytes": size_bytes, "problem": problem}


# --- the catalogue ----------------------------------------------------------------------------------------------------


def _list_catalogue(output: Output, part: str, *, as_json: bool) -> None:
    from edgespec.models.names.catalog import catalogue
    from edgespec.models.pair.known_heads import head_of_entry

    entries = [each for each in catalogue().values() if part in f"{each.name} {each.about} {each.source}".lower()]
    if as_json:
        for entry in entries:
            head = head_of_entry(entry)
            output.json(
                asdict(entry) | {"here": _quants_here(entry), "head": head.as_json if head is not None else None}
            )
    elif entries:
        heads = [head_of_entry(each) for each in entries]
        rows = [_entry_row(entry, head) for entry, head in zip(entries, heads, strict=True)]
        header = ("model", "weights", "here", "licence", "about", "drafts", "draft head")
        output.table(header, rows, least=("licence", "drafts", "about"))
        _note_absent(output, heads)
    else:
        output.note(f"no model of the catalogue has '{part}' in its name")


def _entry_row(entry: Entry, head: KnownHead | None) -> tuple[str, ...]:
    here, drafts = " ".join(_quants_here(entry)), " ".join(entry.drafts)
    return entry.name, entry.quant, here, entry.licence, entry.about, drafts, str(head or "")


def _quants_here(entry: Entry) -> list[str]:
    """Return the quantisations of a model that are on this machine."""
    from edgespec.models.hub.quants import quant_of
    from edgespec.models.names.source import files_here

    return sorted({quant_of(path.name) or path.name for path in files_here(entry)})


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
