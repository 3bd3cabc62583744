"""Delete models from this machine: first list what would be deleted, then delete it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from textwrap import shorten

import psutil
from filelock import Timeout

from edgespec.errors import EdgespecError, ModelNotFoundError, UsageError, told_as
from edgespec.models.hub.cache import (
    begun_files,
    cached_files,
    cached_repositories,
    hub_cache,
    repository_folder,
    repository_of,
)
from edgespec.models.hub.offers import offers
from edgespec.models.hub.placing import lock
from edgespec.models.hub.quants import USUAL, choose, models_in, part_of, parts_of, quant_of
from edgespec.models.names.spec import BUNDLED, NAMES, HubSpec, NotFetchedError, is_path, resolve, sources
from edgespec.models.packages.wheels import (
    PackageSpec,
    checksum_of,
    package_lock,
    packaged_at,
    packaged_models,
    unfinished_files,
)


@dataclass(frozen=True, slots=True)
class Going:
    """A file to delete, as its user knows it; `remark` is a special property. `repository` is that of the hub whose
    copy it is part of. `freed_bytes` is 0 if another name keeps the content."""

    path: Path
    repository: str
    freed_bytes: int
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Removal:
    """What deleting some models means: `files` for people, and `paths` in the order of deletion."""

    files: tuple[Going, ...]
    paths: tuple[Path, ...]
    repositories: tuple[str, ...]
    packages: tuple[PackageSpec, ...] = ()

    @property
    def freed_bytes(self) -> int:
        return sum(file.freed_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An incompletely downloaded file of a repository; which one is not recorded. For a package `repository` is the
    model's name in the catalogue."""

    repository: str
    path: Path
    size_bytes: int


def plan_removal(specs: Sequence[str], *, unfinished_only: bool = False, whole: bool = False) -> Removal:
    """What is deleted with these models; with a file of the hub's cache also incomplete downloads beside it.

    `unfinished_only` selects only those of the repositories in `specs`, and `whole` all models in them. Raises
    ModelNotFoundError for what is not here, UsageError for what is not a user's model, EdgespecError for what cannot be
    deleted or is in use.
    """
    find = _unfinished_in if unfinished_only else _all_in if whole else _meant
    meant = [find(spec) for spec in dict.fromkeys(specs)]
    links = {path: owner if isinstance(owner, str) else "" for paths, owner in meant for path in paths}
    owners = dict.fromkeys(owner for _, owner in meant if owner)
    repositories = tuple(owner for owner in owners if isinstance(owner, str))
    packages = tuple(owner for owner in owners if isinstance(owner, PackageSpec))
    files: list[Going] = []
    paths: list[Path] = []
    for path, repository in links.items():
        file, going = _going(path, repository, links)
        files.append(file)
        paths += going
    for repository in repositories:
        begun = unfinished(repository)
        files += [Going(each.path, repository, each.size_bytes, "incomplete download") for each in begun]
        paths += [*(each.path for each in begun), *_without_files(repository, links)]
    for package in packages:
        begun = [Unfinished(package.name, path, path.stat().st_size) for path in unfinished_files(package)]
        files += [Going(each.path, package.name, each.size_bytes, "incomplete download") for each in begun]
        paths += [each.path for each in begun]
        paths += [note for path in links if os.path.lexists(note := checksum_of(path))]
    removal = Removal(tuple(files), tuple(dict.fromkeys(paths)), repositories, packages)
    _check_writable(removal)
    _check_unused(removal)
    with _without_downloads(removal):
        return removal


def remove(removal: Removal) -> None:
    """Delete what is planned, and empty folders. Raises EdgespecError."""
    gone = next((path for path in removal.paths if not os.path.lexists(path)), None)
    if gone is not None:
        raise EdgespecError(
            f"{gone} has disappeared meanwhile", why="nothing else was deleted", hint="repeat the command"
        )
    _check_unused(removal)
    with _without_downloads(removal):
        hint = "close the program that has it open" if os.name == "nt" else ""
        for path in removal.paths:
            with told_as(EdgespecError, f"{path} cannot be deleted", hint=hint):
                path.unlink(missing_ok=True)
        owned = [*map(repository_folder, removal.repositories), *(package.folder for package in removal.packages)]
        for top in owned:
            for folder, _, _ in os.walk(top, topdown=False):
                with suppress(OSError):  # not empty
                    Path(folder).rmdir()


def unfinished(repository: str = "") -> list[Unfinished]:
    """Incomplete downloads, of one repository or of all."""
    found = []
    for name in [repository] if repository else cached_repositories():
        for path in begun_files(name):
            with suppress(OSError):  # finished meanwhile
                found.append(Unfinished(name, path, path.stat().st_size))
    if not repository:
        packages = {model.folder: model for model in reversed(list(packaged_models()))}
        for package in packages.values():
            with suppress(OSError):
                found += [Unfinished(package.name, path, path.stat().st_size) for path in unfinished_files(package)]
    return found


# --- the spec --------------------------------------------------------------------------------------------------------


def _meant(spec: str) -> tuple[list[Path], str | PackageSpec]:
    """The files of a model, all parts of it that are here, and their repository or package."""
    try:
        path = _without_dots(resolve(spec).path.absolute())
    except NotFetchedError as error:
        if isinstance(error.wanted, PackageSpec):
            if error.wanted.path.is_file():  # not all of it
                return [error.wanted.path], error.wanted
            raise _not_here(error, error.wanted.name, has_begun=bool(unfinished_files(error.wanted))) from None
        return _remains(error, error.wanted), error.wanted.repository
    if path.parent.resolve() == BUNDLED.resolve():
        raise UsageError(f"'{spec}' is not deleted", why="the bundled pair is part of edgespec")
    if not path.is_file() or path.suffix.lower() != ".gguf":
        raise UsageError(f"'{spec}' is not deleted", why="it is not a GGUF file")
    place = repository_of(path)
    parts = (path.with_name(name) for name in parts_of(path.name))
    return [part for part in parts if part.is_file()], place[0] if place else packaged_at(path) or ""


def _without_dots(path: Path) -> Path:
    """The same file, without dots in its path; a link stays the link."""
    return path.parent.resolve() / path.name if ".." in path.parts else path


def _remains(missing: NotFetchedError, wanted: HubSpec) -> list[Path]:
    """The parts that are here of an incomplete model. Raises ModelNotFoundError if there are none."""
    files = cached_files(wanted.repository, wanted.revision)
    split = [name for name in files if part_of(name)[1] > 1]
    if wanted.file:
        found = [files[name] for name in split if name in parts_of(wanted.file)]
    else:
        found = [files[name] for name in split if quant_of(name) == (wanted.quant or USUAL)]
    if not found:
        has_begun = bool(unfinished(wanted.repository))
        if not has_begun and models_in(list(files)) and not wanted.file:
            _say_which(wanted, list(files))
        raise _not_here(missing, wanted.repository, has_begun=has_begun)
    return found


def _not_here(missing: NotFetchedError, name: str, *, has_begun: bool) -> ModelNotFoundError:
    hint = "'edgespec ls' lists the models"
    if has_begun:
        hint = f"to delete incomplete downloads: edgespec rm --unfinished {name}"
    return ModelNotFoundError(missing.what, why=missing.why, hint=hint)


def _say_which(wanted: HubSpec, names: list[str]) -> None:
    """Raises ModelNotFoundError that lists the specs here; returns if the quantisation is here."""
    where = f"{wanted.repository} on this machine"
    try:
        choose(names, wanted.quant, where=where)
    except ModelNotFoundError as error:
        here = offers(dict.fromkeys(names, 1))
        specs = (replace(wanted, quant=offer.quant, file="" if offer.quant else offer.file) for offer in here)
        which = f"choose one of {', '.join(map(str, specs))}"
        hint = f"{which}; to delete all of them: edgespec rm --all {wanted.repository}"
        raise ModelNotFoundError(error.what, why=error.why, hint=hint) from None


def _all_in(spec: str) -> tuple[list[Path], str | PackageSpec]:
    """The models of a repository, of all revisions, or of a package. Raises UsageError, ModelNotFoundError."""
    if spec in NAMES or is_path(spec):
        raise UsageError(f"'{spec}' is not a repository", hint="without --all, name one file")
    wanted = sources(spec)[0]
    if isinstance(wanted, PackageSpec):
        kept = sorted(wanted.folder.glob("*.gguf"))
        if not kept and not unfinished_files(wanted):
            raise ModelNotFoundError(
                f"nothing of {wanted.name} is on this machine", hint="'edgespec ls' lists the models"
            )
        return kept, wanted
    if wanted != HubSpec(wanted.repository) and "/" in spec:
        raise UsageError(
            f"'{spec}' is a single model",
            why="--all deletes all files of a repository",
            hint=f"use {wanted.repository}",
        )
    files = [path for path in _snapshot_files(wanted.repository) if path.suffix.lower() == ".gguf" and path.is_file()]
    if not files and not unfinished(wanted.repository):
        raise ModelNotFoundError(
            f"nothing of {wanted.repository} is on this machine", hint="'edgespec ls' lists what is downloaded"
        )
    return sorted(files), wanted.repository


def _unfinished_in(spec: str) -> tuple[list[Path], str | PackageSpec]:
    if spec in NAMES:
        raise UsageError(f"'{spec}' is not deleted", why="the bundled pair is part of edgespec")
    wanted = sources(spec)[0]
    owner: str | PackageSpec
    if isinstance(wanted, PackageSpec):
        owner, name, has_begun = wanted, wanted.name, bool(unfinished_files(wanted))
    else:
        owner = name = wanted.repository
        has_begun = bool(unfinished(name))
    if not has_begun:
        raise ModelNotFoundError(f"{name} has no incomplete download")
    return [], owner


# --- what goes with a file --------------------------------------------------------------------------------------------


def _going(path: Path, repository: str, links: dict[Path, str]) -> tuple[Going, list[Path]]:
    """A file, and its blob, if no other link needs that."""
    if not path.is_symlink():
        return Going(path, repository, path.stat().st_size), [path]
    blob = path.resolve()
    folder = repository_folder(repository).resolve()
    if not repository or blob.parent != folder / "blobs":
        return Going(path, repository, 0, f"a link, {blob} stays"), [path]
    others = (other for other in _snapshot_files(repository) if other not in links)
    if any(os.path.realpath(other) == str(blob) for other in others):
        return Going(path, repository, 0, "another revision uses it"), [path]
    is_first = next(link for link in links if os.path.realpath(link) == str(blob)) == path
    # the blob first: where it cannot be deleted, the model stays
    return Going(path, repository, blob.stat().st_size if is_first else 0), [blob, path]


def _snapshot_files(repository: str) -> Iterator[Path]:
    for folder, _, names in os.walk(repository_folder(repository) / "snapshots"):
        yield from (Path(folder) / name for name in names)


def _without_files(repository: str, links: dict[Path, str]) -> Iterator[Path]:
    """The cache's records about revisions without files: their branches, and files they do not have."""
    folder = repository_folder(repository)
    left = {path.relative_to(folder).parts[1] for path in _snapshot_files(repository) if path not in links}
    for reference in sorted(path for path in (folder / "refs").rglob("*") if path.is_file()):
        with suppress(OSError, ValueError):
            if reference.read_text(encoding="ascii").strip() not in left:
                yield reference
    for path in sorted(path for path in (folder / ".no_exist").rglob("*") if path.is_file()):
        if path.relative_to(folder).parts[1] not in left:
            yield path


# --- obstacles --------------------------------------------------------------------------------------------------------


def _check_writable(removal: Removal) -> None:
    for path in removal.paths:
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise EdgespecError(f"{path} cannot be deleted", why=f"{path.parent} is not writable")


def _check_unused(removal: Removal) -> None:
    """Windows deletes no file that is in use; on other systems its space stays occupied until the program ends."""
    if os.name == "nt":
        return
    files = {os.path.realpath(path) for path in removal.paths if not path.is_symlink()}
    for process in psutil.process_iter():
        command, used = _use_of(process)
        if files & used:
            why = f"process {process.pid} has it open: {command}"
            raise EdgespecError(f"{min(files & used)} is not deleted", why=why, hint="end that program first")


@contextmanager
def _without_downloads(removal: Removal) -> Iterator[None]:
    """Prevent downloads into the repositories meanwhile. Raises EdgespecError if one runs: while it waits for the
    network, it has only its lock."""
    held = [(package.name, package_lock(package)) for package in removal.packages]
    for repository in removal.repositories:
        paths = (hub_cache() / ".locks" / repository_folder(repository).name).glob("*.lock")
        held += [(repository, lock(repository, path.stem)) for path in paths]
    with ExitStack() as locks:
        for name, each in held:
            try:
                locks.enter_context(each.acquire(timeout=0))
            except Timeout as error:
                raise EdgespecError(
                    f"nothing of {name} was deleted",
                    why="a download from it is running",
                    hint="wait for it to finish, or end that program first",
                ) from error
            except OSError:  # another user's: whether it is held is unknown
                continue
        yield


def _use_of(process: psutil.Process) -> tuple[str, set[str]]:
    """The command that started a process, shortened, and the files that it has open or mapped."""
    try:
        used = {file.path for file in process.open_files()}
        if hasattr(process, "memory_maps"):  # macOS has none
            used |= {part.path for part in process.memory_maps()}
        return shown_command(process.cmdline()), used
    except (psutil.Error, OSError):  # it has ended, or belongs to someone else
        return "", set()


def shown_command(words: Sequence[str]) -> str:
    """A recognisable command line: without the folders of the program, and without the Python that runs it."""
    command = list(words)
    if command and re.match(r"python[\d.]*(\.exe)?$", PurePath(command[0]).name, re.IGNORECASE):
        script = next((at for at, word in enumerate(command) if at > 0 and not word.startswith("-")), 0)
        command = command[script:]
    return shorten(shlex.join([PurePath(word).name for word in command[:1]] + command[1:]), 60, placeholder=" ...")
