"""`edgespec ls`: the models of this machine, and why others cannot be loaded."""

from __future__ import annotations

import shutil
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgespec.cli.options.common import JSON_LINES, QUIET
from edgespec.cli.render.table import INDENT, Row, table
from edgespec.cli.terminal.output import Output
from edgespec.errors import UsageError
from edgespec.text.figures import count_of, counted, size_of, when
from edgespec.text.printable import one_line, wrapped

if TYPE_CHECKING:
    from edgespec.models.names.local import LocalModel

HEADER = ("model", "architecture", "parameters", "weights", "size", "context", "last used")
FIGURES = ("parameters", "size", "context")

Found = tuple[str, "LocalModel"]  # its name, and a description
Begun = tuple[str, Path, int]  # an incomplete download: its repository, the file, and its size


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("part", required=False, default="", metavar="[NAME-PART]")
@click.option(
    "--sort", type=click.Choice(["name", "size", "used"]), help="Largest first, most recently used first, or by name."
)
@click.option("--catalog", is_flag=True, help="List the catalogue instead: models that can be downloaded by name.")
@JSON_LINES
@QUIET
def ls(part: str, sort: str | None, catalog: bool, as_json: bool, quiet: bool) -> None:
    """List the models on this machine; with NAME-PART, those that have it in their names.

    Searches edgespec's own folder, the Hugging Face cache, the working folder, ~/models, the folders set in models.toml
    (in the config folder) and in EDGESPEC_MODELS, and those of LM Studio and llama.cpp. Other commands accept the names
    under 'model'.
    """
    output = Output(quiet=quiet)
    if not catalog:
        _list_models(output, part.lower(), sort, as_json=as_json)
        return
    if sort:
        raise UsageError("--sort and --catalog cannot be combined", why="the catalogue has its own order")
    from edgespec.cli.render.ls_catalog import list_catalogue

    list_catalogue(output, part.lower(), as_json=as_json)


def _list_models(output: Output, part: str, sort: str | None, *, as_json: bool) -> None:
    from edgespec.models.hub.removal import unfinished

    found = _sorted(_found(output, part), sort)
    begun = [each for each in unfinished() if part in each[0].lower()]
    absent = [(folder, named_by) for folder, named_by in _absent_folders(output) if part in folder.lower()]
    if as_json:
        for value in [*map(_model_json, found), *map(_unfinished_json, begun), *map(_folder_json, absent)]:
            output.json(value)
        return
    usable = [each for each in found if not each[1].problem]
    unusable = [each for each in found if each[1].problem]
    groups = [
        table(HEADER, [_model_row(*each) for each in usable], columns=_columns(), right=FIGURES) if usable else [],
        _headed("cannot be loaded:", [line for each in unusable for line in _problem(*each)]),
        _headed("incomplete downloads:", _unfinished_lines(begun)),
        _headed("folders that do not exist:", [f"{folder}, set in {named_by}" for folder, named_by in absent]),
        _total(usable, [model.size_bytes for _, model in unusable] + [size for _, _, size in begun]),
    ]
    if any(groups):
        output.line("\n\n".join("\n".join(lines) for lines in groups if lines))
    else:
        output.note(f"no model here has '{part}' in its name")


# --- the models -------------------------------------------------------------------------------------------------------


def _found(output: Output, part: str) -> list[Found]:
    from edgespec.models.names.known import name_of
    from edgespec.models.names.local import local_models

    found: list[Found] = []
    try:
        for model in local_models():
            output.progress(f"reading {model.path.name}", None)
            name = name_of(model.path)
            if part in f"{name} {model.path} {model.name} {model.architecture} {model.quantisation}".lower():
                found.append((name, model))
    finally:
        output.end_progress()
    return found


def _sorted(found: list[Found], order: str | None) -> list[Found]:
    """In that order, or as they were found; models that cannot be loaded come last."""
    if order == "name":
        found = sorted(found, key=lambda each: each[0].lower())
    elif order == "size":
        found = sorted(found, key=lambda each: -each[1].size_bytes)
    elif order == "used":
        found = sorted(found, key=lambda each: -(each[1].used_s or 0))
    return sorted(found, key=lambda each: bool(each[1].problem))


def _absent_folders(output: Output) -> list[tuple[str, str]]:
    """Folders of the user's settings that do not exist, and where they are set."""
    from edgespec.models.names.folders import own_folders
    from edgespec.models.names.known import with_tilde

    try:
        return [(with_tilde(folder), named_by) for folder, named_by in own_folders().items() if not folder.is_dir()]
    except UsageError as error:
        output.note(f"your own folders are not searched: {error}")
        return []


# --- as text ----------------------------------------------------------------------------------------------------------


def _model_row(name: str, model: LocalModel) -> Row:
    return (
        one_line(name),
        model.architecture,
        count_of(model.n_params),
        model.quantisation,
        size_of(model.size_bytes),
        f"{model.n_ctx_train:,}" if model.n_ctx_train else "",
        when(model.used_s) if model.used_s else "",
    )


def _problem(name: str, model: LocalModel) -> list[str]:
    size = f"{size_of(model.size_bytes)}, " if model.size_bytes else ""
    return [one_line(name), wrapped(INDENT + size + one_line(model.problem), _columns())]


def _unfinished_lines(begun: list[Begun]) -> list[str]:
    lines = []
    for repository, files in groupby(begun, lambda each: each[0]):
        sizes = [size for _, _, size in files]
        of_files = f" of {len(sizes)} files" if len(sizes) > 1 else ""
        lines += [repository, f"{INDENT}{size_of(sum(sizes))}{of_files} so far"]
        lines += [INDENT + line for line in _how_to_finish(repository)]
        lines.append(f"{INDENT}to delete it:  edgespec rm --unfinished {repository}")
    return lines


def _how_to_finish(repository: str) -> list[str]:
    """The command that finishes a download. The cache does not record which model is incomplete."""
    from edgespec.models.hub.absent import absent_entries

    entries = absent_entries(repository)
    known = [f"to finish it, if it is {entry.quant}:  edgespec pull {entry.name}" for entry in entries]
    return [*known, f"to finish it{' otherwise' if known else ''}, repeat the command that started it"]


def _total(usable: list[Found], unusable_bytes: list[int]) -> list[str]:
    size, count = size_of(sum(model.size_bytes for _, model in usable)), len(usable)
    told = [f"{counted(count, 'model')}, {size}"] if usable else []
    if unused := sum(unusable_bytes):
        told.append(f"{size_of(unused)} in files that cannot be loaded")
    return ["; ".join(told)] if told else []


def _headed(heading: str, lines: list[str]) -> list[str]:
    return [heading, *lines] if lines else []


def _columns() -> int:
    return shutil.get_terminal_size().columns


# --- as JSON ----------------------------------------------------------------------------------------------------------


def _model_json(found: Found) -> dict[str, object]:
    from edgespec.chat.transcript import iso

    name, model = found
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


def _unfinished_json(begun: Begun) -> dict[str, object]:
    repository, path, size = begun
    return {"model": repository, "files": [str(path)], "size_bytes": size, "problem": "incomplete download"}


def _folder_json(absent: tuple[str, str]) -> dict[str, object]:
    folder, named_by = absent
    return {"model": folder, "files": [], "size_bytes": 0, "problem": f"folder set in {named_by} does not exist"}
