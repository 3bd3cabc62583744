"""Deleting models from this machine: first what would go with them, then its removal."""

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

from edgespec.errors import EdgespecError, ModelNotFoundError, UsageError
from edgespec.models.cache import cached_files, cached_repositories, hub_cache, repository_folder, repository_of
from edgespec.models.offers import offers
from edgespec.models.placing import lock
from edgespec.models.quants import USUAL, choose, models_in, part_of, parts_of, quant_of
from edgespec.models.spec import BUNDLED, NAMES, HubSpec, NotFetchedError, hub_specs, is_path, resolve


@dataclass(frozen=True, slots=True)
class Going:
    """A file that is to go, as its user knows it; `remark` tells what is special.

    `repository` is that of the hub whose copy it is part of. `freed_bytes` is 0 where another name keeps the content.
    """

    path: Path
    repository: str
    freed_bytes: int
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Removal:
    """What deleting some models means: `files` for people, and `paths` in the order in which they are deleted."""

    files: tuple[Going, ...]
    paths: tuple[Path, ...]
    repositories: tuple[str, ...]

    @property
    def freed_bytes(self) -> int:
        return sum(file.freed_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A file of a repository that was not downloaded completely; which one is not written anywhere."""

    repository: str
    path: Path
    size_bytes: int


def plan_removal(specs: Sequence[str], *, unfinished_only: bool = False, whole: bool = False) -> Removal:
    """What goes with these models; with a file of the hub's cache also what was not downloaded completely beside it.

    `unfinished_only` takes just that of the repositories which `specs` name, and `whole` all models in them. Raises
    ModelNotFoundError for what is not here, UsageError for what is no model of the user's, EdgespecError for what
    cannot be deleted or is in use.
    """
    find = _unfinished_in if unfinished_only else _all_in if whole else _meant
    meant = [find(spec) for spec in dict.fromkeys(specs)]
    links = {path: repository for paths, repository in meant for path in paths}
    repositories = tuple(dict.fromkeys(repository for _, repository in meant if repository))
    files: list[Going] = []
    paths: list[Path] = []
    for path, repository in links.items():
        file, going = _going(path, repository, links)
        files.append(file)
        paths += going
    for repository in repositories:
        begun = unfinished(repository)
        files += [Going(each.path, repository, each.size_bytes, "not downloaded completely") for each in begun]
        paths += [*(each.path for each in begun), *_without_files(repository, links)]
    removal = Removal(tuple(files), tuple(dict.fromkeys(paths)), repositories)
    _check_writable(removal)
    _check_unused(removal)
    with _without_downloads(removal):
        return removal


def remove(removal: Removal) -> None:
    """Delete what is planned, and the folders that get empty. Raises EdgespecError."""
    gone = next((path for path in removal.paths if not os.path.lexists(path)), None)
    if gone is not None:
        raise EdgespecError(f"{gone} is gone meanwhile", why="nothing else was deleted", hint="give the command again")
    _check_unused(removal)
    with _without_downloads(removal):
        for path in removal.paths:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                hint = "close the program that has it open" if os.name == "nt" else ""
                raise EdgespecError(f"{path} cannot be deleted", why=error.strerror or str(error), hint=hint) from error
        for repository in removal.repositories:
            for folder, _, _ in os.walk(repository_folder(repository), topdown=False):
                with suppress(OSError):  # not empty
                    Path(folder).rmdir()


def unfinished(repository: str = "") -> list[Unfinished]:
    """What was begun to be downloaded, of one repository or of all."""
    found = []
    for name in [repository] if repository else cached_repositories():
        for path in sorted((repository_folder(name) / "blobs").glob("*.incomplete")):
            with suppress(OSError):  # finished meanwhile
                if path.is_file():
                    found.append(Unfinished(name, path, path.stat().st_size))
    return found


# --- what a spec means ------------------------------------------------------------------------------------------------


def _meant(spec: str) -> tuple[list[Path], str]:
    """The files of a model, all parts of it that are here, and the repository they are of."""
    try:
        path = _without_dots(resolve(spec).path.absolute())
    except NotFetchedError as error:
        return _remains(error), error.wanted.repository
    if path.parent.resolve() == BUNDLED.resolve():
        raise UsageError(f"'{spec}' is not deleted", why="the bundled pair is a part of edgespec")
    if not path.is_file() or path.suffix.lower() != ".gguf":
        raise UsageError(f"'{spec}' is not deleted", why="it is no GGUF file")
    place = repository_of(path)
    parts = (path.with_name(name) for name in parts_of(path.name))
    return [part for part in parts if part.is_file()], place[0] if place else ""


def _without_dots(path: Path) -> Path:
    """The same file, named so that one sees which it is; a link stays the link."""
    return path.parent.resolve() / path.name if ".." in path.parts else path


def _remains(missing: NotFetchedError) -> list[Path]:
    """The parts that are here of a model that is not whole. Raises ModelNotFoundError where there are none."""
    wanted = missing.wanted
    files = cached_files(wanted.repository, wanted.revision)
    split = [name for name in files if part_of(name)[1] > 1]
    if wanted.file:
        found = [files[name] for name in split if name in parts_of(wanted.file)]
    else:
        found = [files[name] for name in split if quant_of(name) == (wanted.quant or USUAL)]
    if not found:
        hint = "'edgespec ls' shows which are"
        if unfinished(wanted.repository):
            hint = f"to delete what is not downloaded completely: edgespec rm --unfinished {wanted.repository}"
        elif models_in(list(files)) and not wanted.file:
            _say_which(wanted, list(files))
        raise ModelNotFoundError(missing.what, why=missing.why, hint=hint)
    return found


def _say_which(wanted: HubSpec, names: list[str]) -> None:
    """Raises ModelNotFoundError with what there is, each as one types it; nothing where the quantisation is there."""
    where = f"{wanted.repository} on this machine"
    try:
        choose(names, wanted.quant, where=where)
    except ModelNotFoundError as error:
        here = offers(dict.fromkeys(names, 1))
        specs = (replace(wanted, quant=offer.quant, file="" if offer.quant else offer.file) for offer in here)
        which = f"name one of {', '.join(map(str, specs))}"
        hint = f"{which}; to delete all of them: edgespec rm --all {wanted.repository}"
        raise ModelNotFoundError(error.what, why=error.why, hint=hint) from None


def _all_in(spec: str) -> tuple[list[Path], str]:
    """The models of a repository, of all revisions. Raises UsageError, ModelNotFoundError."""
    if spec in NAMES or is_path(spec):
        raise UsageError(f"'{spec}' is no repository", hint="without --all one file is deleted")
    wanted = hub_specs(spec)[0]
    if wanted != HubSpec(wanted.repository) and "/" in spec:
        raise UsageError(
            f"'{spec}' names one model", why="--all deletes all of a repository", hint=f"give {wanted.repository}"
        )
    files = [path for path in _snapshot_files(wanted.repository) if path.suffix.lower() == ".gguf" and path.is_file()]
    if not files and not unfinished(wanted.repository):
        raise ModelNotFoundError(
            f"of {wanted.repository} nothing is on this machine", hint="'edgespec ls' shows what is"
        )
    return sorted(files), wanted.repository


def _unfinished_in(spec: str) -> tuple[list[Path], str]:
    if spec in NAMES:
        raise UsageError(f"'{spec}' is not deleted", why="the bundled pair is a part of edgespec")
    repository = hub_specs(spec)[0].repository
    if not unfinished(repository):
        raise ModelNotFoundError(f"of {repository} there is no unfinished download")
    return [], repository


# --- what goes with a file --------------------------------------------------------------------------------------------


def _going(path: Path, repository: str, links: dict[Path, str]) -> tuple[Going, list[Path]]:
    """A file, and with it the blob that it is a link to, if no other link needs that."""
    if not path.is_symlink():
        return Going(path, repository, path.stat().st_size), [path]
    blob = path.resolve()
    folder = repository_folder(repository).resolve()
    if not repository or blob.parent != folder / "blobs":
        return Going(path, repository, 0, f"a link, {blob} stays"), [path]
    others = (other for other in _snapshot_files(repository) if other not in links)
    if any(os.path.realpath(other) == str(blob) for other in others):
        return Going(path, repository, 0, "another revision keeps it"), [path]
    is_first = next(link for link in links if os.path.realpath(link) == str(blob)) == path
    # the blob first: where it cannot be deleted, the model stays
    return Going(path, repository, blob.stat().st_size if is_first else 0), [blob, path]


def _snapshot_files(repository: str) -> Iterator[Path]:
    for folder, _, names in os.walk(repository_folder(repository) / "snapshots"):
        yield from (Path(folder) / name for name in names)


def _without_files(repository: str, links: dict[Path, str]) -> Iterator[Path]:
    """What the cache notes about revisions of which no file is left: their branches, and files they do not have."""
    folder = repository_folder(repository)
    left = {path.relative_to(folder).parts[1] for path in _snapshot_files(repository) if path not in links}
    for reference in sorted(path for path in (folder / "refs").rglob("*") if path.is_file()):
        with suppress(OSError, ValueError):
            if reference.read_text(encoding="ascii").strip() not in left:
                yield reference
    for path in sorted(path for path in (folder / ".no_exist").rglob("*") if path.is_file()):
        if path.relative_to(folder).parts[1] not in left:
            yield path


# --- what stands in the way -------------------------------------------------------------------------------------------


def _check_writable(removal: Removal) -> None:
    for path in removal.paths:
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise EdgespecError(f"{path} cannot be deleted", why=f"{path.parent} may not be written")


def _check_unused(removal: Removal) -> None:
    """Windows deletes nothing that is in use by itself; other systems let the space be taken until the program ends."""
    if os.name == "nt":
        return
    files = {os.path.realpath(path) for path in removal.paths if not path.is_symlink()}
    for process in psutil.process_iter():
        command, used = _use_of(process)
        if files & used:
            why = f"process {process.pid} uses it, {command}"
            raise EdgespecError(f"{min(files & used)} is not deleted", why=why, hint="end that program first")


@contextmanager
def _without_downloads(removal: Removal) -> Iterator[None]:
    """Keeps downloads out of the repositories meanwhile. Raises EdgespecError where one runs: while it waits for the
    network, it has nothing but its lock."""
    with ExitStack() as locks:
        for repository in removal.repositories:
            for path in (hub_cache() / ".locks" / repository_folder(repository).name).glob("*.lock"):
                try:
                    locks.enter_context(lock(repository, path.stem).acquire(timeout=0))
                except Timeout as error:
                    raise EdgespecError(
                        f"nothing of {repository} is deleted",
                        why="a program fetches something of it",
                        hint="wait for it, or end that program first",
                    ) from error
                except OSError:  # another user's: whether it is held cannot be told
                    continue
        yield


def _use_of(process: psutil.Process) -> tuple[str, set[str]]:
    """What was typed to start a process, in short, and the files that it has open or mapped into its memory."""
    try:
        used = {file.path for file in process.open_files()}
        if hasattr(process, "memory_maps"):  # macOS has none
            used |= {part.path for part in process.memory_maps()}
        return shown_command(process.cmdline()), used
    except (psutil.Error, OSError):  # it has ended, or belongs to someone else
        return "", set()


def shown_command(words: Sequence[str]) -> str:
    """A command line as one knows it again: without the folders of the program, and without the Python it is run by."""
    command = list(words)
    if command and re.match(r"python[\d.]*(\.exe)?$", PurePath(command[0]).name, re.IGNORECASE):
        script = next((at for at, word in enumerate(command) if at > 0 and not word.startswith("-")), 0)
        command = command[script:]
    return shorten(shlex.join([PurePath(word).name for word in command[:1]] + command[1:]), 60, placeholder=" ...")
