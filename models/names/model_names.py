"""The models' files on this machine, their names, all other names of models, and hints for unknown ones.

No file is opened for them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from edgespec.errors import UsageError
from edgespec.files.paths import models_dir
from edgespec.models.hub.cache import cached_files, cached_repositories, hub_cache, repository_folder, repository_of
from edgespec.models.hub.quants import drafts_in, models_in, quant_of, selects, stem_of
from edgespec.models.names.catalog import CatalogueModel, catalogue
from edgespec.models.names.other_programs import (
    DEPTH,
    files_below,
    files_elsewhere,
    find_elsewhere,
    llama_cpp_folders,
    lm_studio_folders,
    program_of,
    spec_elsewhere,
)
from edgespec.models.names.source import (
    NAMES,
    PAIR,
    HubSpec,
    PackageSpec,
    Source,
    cached,
    is_path,
    packaged_at,
    source_of,
    whole_file,
)

VARIABLE = "EDGESPEC_MODELS"


def gguf_files() -> Iterator[Path]:
    """Yield the .gguf files in and below the usual folders, including broken links.

    The usual folders are the Hugging Face cache, the folder of models from packages, the working folder, `~/models`,
    the user's folders (`own_folders`), and the folders of LM Studio and llama.cpp. Unreadable folders are left out. A
    file with several names is listed under each name.
    """
    for folder, depth in list(_usual_folders()):
        yield from files_below(folder, depth)


def own_folders() -> list[Path]:
    """Return the folders in EDGESPEC_MODELS, existing or not."""
    named = []
    for name in filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)):
        with suppress(OSError, RuntimeError):  # the working folder is gone; there is no such user
            named.append(Path(name).expanduser().absolute())
    return named


def _usual_folders() -> Iterator[tuple[Path, int]]:
    """Yield each folder with the number of levels to search."""
    yield from ((repository_folder(name) / "snapshots", DEPTH) for name in cached_repositories())
    yield models_dir(), 1
    with suppress(OSError):  # it may have been removed
        here = Path.cwd()
        yield here, 0 if _holds_more_than_models(here) else DEPTH
    with suppress(RuntimeError):  # a user may have no home
        yield Path.home() / "models", DEPTH
    yield from ((folder, DEPTH) for folder in (*own_folders(), *lm_studio_folders(), *llama_cpp_folders()))


def _holds_more_than_models(folder: Path) -> bool:
    """Return whether a folder is the root of a disk or contains users' homes: most of its files are no models."""
    with suppress(OSError, RuntimeError):
        return folder.resolve() in (Path(folder.anchor), *Path.home().resolve().parents)
    return folder == Path(folder.anchor)


# --- names ------------------------------------------------------------------------------------------------------------


def name_of(path: Path, spec: str = "") -> str:
    """Return the shortest spec of this file: for bundled files and packages its name, for the hub's cache
    `owner/repo:QUANT`, for other programs their name after a prefix, such as `ollama:NAME:TAG`.

    `spec` is a known spec of the file. The names of other programs are then not read again, which would take a time
    that grows with the square of their number.
    """
    if program_of(spec):
        return spec
    file = os.path.realpath(path)
    for name, bundled in NAMES.items():
        if file == os.path.realpath(bundled):
            return name
    if package := packaged_at(path):
        return str(package)
    if elsewhere := spec_elsewhere(path):
        return elsewhere
    place = repository_of(path)
    if place is not None and _can_be_typed(place[0]):
        repository, name = place
        commit = path.absolute().relative_to(hub_cache()).parts[2]
        quant = quant_of(name)
        for revision in ("main", commit):
            for wanted in (HubSpec(repository, "", quant, revision), HubSpec(repository, name, revision=revision)):
                found = cached(wanted)
                if found is not None and os.path.realpath(found) == file and (wanted.quant or wanted.file):
                    return _short(wanted)
    return with_tilde(path)


def short_name(path: Path) -> str:
    """Return a model's short name: the catalogue's if it came under that name, else its file's."""
    name = name_of(path)
    return name if not is_path(name) and "/" not in name else path.name.removesuffix(".gguf")


def with_tilde(path: Path) -> str:
    """Return a path without the user's name."""
    try:
        return str(Path("~") / path.absolute().relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(path.absolute())


def short_spec(spec: str) -> str:
    """Return a model's name, or its path from the working folder or the home folder if it is in one of them."""
    path = Path(spec).expanduser()
    if not path.is_absolute():
        return spec
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return with_tilde(path)


def called(repository: str) -> str:
    """Return a repository's name without its owner and "-GGUF": several owners convert the same models."""
    return repository.rpartition("/")[2].lower().removesuffix("-gguf")


def entry_of(path: Path, entries: Mapping[str, CatalogueModel]) -> CatalogueModel | None:
    """Return the catalogue's entry for a model's file: by its package, its repository, also under another owner, or by
    the name of the file without its quantisation. None if there is no entry."""
    if package := packaged_at(path):
        return package.entry
    if place := repository_of(path):
        return _entry_called(place[0], entries)
    return _entry_called(stem_of(path.name), entries)


def entry_from(source: Source, entries: Mapping[str, CatalogueModel]) -> CatalogueModel | None:
    """Return the catalogue's entry for a model that is downloaded from this source; None if there is none."""
    return source.entry if isinstance(source, PackageSpec) else _entry_called(source.repository, entries)


def _entry_called(repository: str, entries: Mapping[str, CatalogueModel]) -> CatalogueModel | None:
    name = called(repository)
    named = [entry for entry in entries.values() if entry.repository and called(entry.repository) == name]
    of_owner = (entry for entry in named if entry.repository.lower() == repository.lower())
    return next(of_owner, next(iter(named), None))


def known_models() -> Iterator[tuple[str, Path | None]]:
    """Yield all specs except files, each with its file if that is here.

    They are the bundled ones, the catalogue, the hub's cache, and other programs' models.
    """
    yield from NAMES.items()
    with suppress(UsageError):
        yield from ((entry.name, file_of(entry)) for entry in catalogue().values())
    for repository in filter(_can_be_typed, cached_repositories()):
        files = cached_files(repository)
        names = list(files)
        for name in (*drafts_in(names), *models_in(names)):
            of_quant = HubSpec(repository, quant=quant_of(name))
            wanted = of_quant if selects(names, of_quant.quant, name) else HubSpec(repository, name)
            yield _short(wanted), whole_file(files, name)
    yield from files_elsewhere()


def file_of(entry: CatalogueModel) -> Path | None:
    """Return the file here that the name of an entry means: it may also be the name of another program's model."""
    if path := cached(source_of(entry)):
        return path
    elsewhere = find_elsewhere(entry.name)
    return elsewhere[1] if elsewhere else None


def known_names() -> Iterator[str]:
    """Yield all specs except files."""
    return (name for name, _ in known_models())


def _can_be_typed(repository: str) -> bool:
    """Return whether a repository has an owner: without one a spec is a name of the catalogue."""
    return "/" in repository


def _short(wanted: HubSpec) -> str:
    """Return the spec without "hf:" where that is clear: with a quantisation."""
    return str(wanted).removeprefix("hf:") if wanted.quant else str(wanted)


# --- hints ------------------------------------------------------------------------------------------------------------

HOW_TO_NAME_A_MODEL = "use a file (./model.gguf), a repository (hf:owner/name:Q4_K_M) or 'demo'"
MOST = 3  # suggestions


def hint_for_name(name: str) -> str:
    """Return the hint for a name that is neither in the catalogue nor a file.

    Raises UsageError for a catalogue with errors.
    """
    files = _similar(name, gguf_files())
    if files and _stem(name) == _stem(files[0].name):
        return _did_you_mean(map(_spec, files))
    # Other programs write the size of a model after a ":", in place of a quantisation.
    if known := _near(name.replace(":", "-")) or _near(name.partition(":")[0]):
        return f"{_did_you_mean(map(repr, known))} 'edgespec ls --catalog' lists the names"
    if files:
        return _did_you_mean(map(_spec, files))
    return f"{HOW_TO_NAME_A_MODEL}; 'edgespec ls --catalog' lists names"


def _near(name: str) -> list[str]:
    """Return known names like this one, the closest first. A draft head, which cannot be run, is only among them if its
    name is the closest."""
    found = difflib.get_close_matches(name.lower(), [*NAMES, *catalogue()], n=MOST)
    return [each for each in found if each == found[0] or each in PAIR or each not in NAMES]


def hint_for_file(spec: str, path: Path) -> str:
    """Return the hint for a path without a file. A bare name may mean a file in any of the folders with models."""
    beside = sorted(path.parent.glob("*.gguf"))
    if path.name == spec:
        similar = [_spec(each) for each in _similar(spec, [*beside, *gguf_files()])]
    else:
        folder = spec.removesuffix(path.name)
        similar = [folder + each.name for each in _similar(path.name, beside)]
    if similar:
        return _did_you_mean(similar)
    names = [each.name for each in beside]
    return f"GGUF files there: {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}" if names else ""


def _similar(name: str, files: Iterable[Path]) -> list[Path]:
    """Return the models among the files with this name, with or without .gguf, or else with a similar one."""
    by_name: dict[str, dict[Path, None]] = {}
    for path in files:
        if models_in([path.name]) and path.is_file():
            by_name.setdefault(_stem(path.name), {})[path.absolute()] = None
    wanted = _stem(name)
    names = [wanted] if wanted in by_name else difflib.get_close_matches(wanted, by_name, n=MOST)
    return [path for each in names for path in by_name[each]][:MOST]


def _stem(name: str) -> str:
    return name.lower().removesuffix(".gguf")


def _spec(path: Path) -> str:
    return short_spec(name_of(path))


def _did_you_mean(specs: Iterable[str]) -> str:
    return f"did you mean {' or '.join(specs)}?"
