"""Delete models from this machine: first list what would be deleted, then delete it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import Timeout

from edgespec.errors import EdgespecError, ModelNotFoundError, UsageError, did_you_mean, told_as
from edgespec.models.hub.cache import (
    cached_files,
    hub_cache,
    partial_files,
    repository_folder,
    repository_of,
)
from edgespec.models.hub.disk import file_lock
from edgespec.models.hub.package import package_lock
from edgespec.models.hub.quants import USUAL, choose, models_in, part_of, parts_of, quant_of
from edgespec.models.names.local import local_models
from edgespec.models.names.model_names import short_spec
from edgespec.models.names.other_programs import bare, keeper_of, spec_elsewhere
from edgespec.models.names.source import NAMES, HubSpec, PackageSpec, is_path, packaged_at
from edgespec.models.names.spec import NotFetchedError, resolve

LISTED = "'edgespec ls' lists the models"
Owner = str | PackageSpec  # a repository of the hub, or a package; "" for other files


@dataclass(frozen=True, slots=True)
class DeletedFile:
    """A file to delete, as its user knows it.

    Attributes:
        repository: The repository of the hub that it is from.
        freed_bytes: 0 if another name keeps the content, which `remark` then says.
        blob: The content that the file links to, if nothing else needs it.
    """

    path: Path
    repository: str
    freed_bytes: int
    remark: str = ""
    blob: Path | None = None


@dataclass(frozen=True, slots=True)
class Removal:
    """Files to delete, and the repositories and packages that they are from."""

    files: tuple[DeletedFile, ...]
    owners: tuple[Owner, ...]

    @property
    def freed_bytes(self) -> int:
        return sum(file.freed_bytes for file in self.files)


def plan_removal(specs: Sequence[str]) -> Removal:
    """Return the files to delete for these models, which include incomplete downloads of their repositories.

    Raises ModelNotFoundError for what is not here, UsageError for what is not a user's model.
    """
    found = [_model_files(spec) for spec in dict.fromkeys(specs)]
    links = {path: owner if isinstance(owner, str) else "" for paths, owner in found for path in paths}
    owners = tuple(dict.fromkeys(owner for _, owner in found if owner))
    files = [_with_blob(path, repository, links) for path, repository in links.items()]
    for owner in (owner for owner in owners if isinstance(owner, str)):
        begun = partial_files(owner)
        files += [DeletedFile(path, owner, path.stat().st_size, "incomplete download") for path in begun]
    return Removal(tuple(files), owners)


def remove(removal: Removal) -> None:
    """Delete what is planned, and repositories of which nothing is left. Raises EdgespecError."""
    with _without_downloads(removal.owners):
        for file in removal.files:
            if file.blob:  # it is deleted first: if that fails, the model stays
                _delete(file.blob)
            _delete(file.path)
        for owner in removal.owners:
            if isinstance(owner, PackageSpec):
                with suppress(OSError):  # not empty
                    owner.folder.rmdir()
            elif not any(_snapshot_files(owner)):
                shutil.rmtree(repository_folder(owner), ignore_errors=True)


def _delete(path: Path) -> None:
    hint = "close the program that has it open" if os.name == "nt" else ""
    with told_as(EdgespecError, f"{path} cannot be deleted", hint=hint):
        path.unlink(missing_ok=True)


# --- the spec --------------------------------------------------------------------------------------------------------


def _model_files(spec: str) -> tuple[list[Path], Owner]:
    """Return the files of a model, all parts of it that are here, and their repository or package."""
    try:
        path = resolve(spec).path.absolute()
    except NotFetchedError as error:
        if isinstance(error.wanted, HubSpec):
            return _remaining_parts(error, error.wanted), error.wanted.repository
        raise ModelNotFoundError(error.what, why=error.why, hint=LISTED) from None
    except ModelNotFoundError as error:
        if is_path(spec):
            raise
        near = did_you_mean(spec, [short_spec(model.spec) for model in local_models()])
        raise error.reworded(hint=near or LISTED) from None
    if ".." in path.parts:  # a link in the last place stays the link
        path = path.parent.resolve() / path.name
    if path.parent.resolve() in (each.parent.resolve() for each in NAMES.values()):
        raise UsageError(f"'{spec}' is not deleted", why="it is part of edgespec")
    if program := keeper_of(path):
        hint = program.removal.format(name=bare(spec_elsewhere(path)), path=path)
        raise UsageError(f"'{spec}' is not deleted", why=f"it belongs to {program.name}", hint=hint)
    if not path.is_file() or path.suffix.lower() != ".gguf":
        raise UsageError(f"'{spec}' is not deleted", why="it is not a GGUF file")
    place = repository_of(path)
    parts = [path.with_name(name) for name in parts_of(path.name)]
    return [part for part in parts if part.is_file()], place[0] if place else packaged_at(path) or ""


def _remaining_parts(missing: NotFetchedError, wanted: HubSpec) -> list[Path]:
    """Return the parts of an incomplete model that are here; none if only incomplete downloads are here.

    Raises ModelNotFoundError if nothing is here.
    """
    files, quant = cached_files(wanted.repository, wanted.revision), wanted.quant or USUAL
    split = [name for name in files if part_of(name)[1] > 1]
    found = [name for name in split if (name in parts_of(wanted.file) if wanted.file else quant_of(name) == quant)]
    if not found and not partial_files(wanted.repository):
        if models_in(list(files)) and not wanted.file:
            choose(list(files), wanted.quant, where=f"{wanted.repository} on this machine")  # the error lists them
        raise ModelNotFoundError(missing.what, why=missing.why, hint=LISTED)
    return [files[name] for name in found]


# --- what is deleted with a file --------------------------------------------------------------------------------------


def _with_blob(path: Path, repository: str, links: dict[Path, str]) -> DeletedFile:
    """Return a file to delete, with its blob if no other link needs the blob."""
    if not path.is_symlink():
        return DeletedFile(path, repository, path.stat().st_size)
    blob = path.resolve()
    if not repository or blob.parent != repository_folder(repository).resolve() / "blobs":
        return DeletedFile(path, repository, 0, f"a link, {blob} stays")
    others = (other for other in _snapshot_files(repository) if other not in links)
    if any(os.path.realpath(other) == str(blob) for other in others):
        return DeletedFile(path, repository, 0, "another revision uses it")
    is_first = next(link for link in links if os.path.realpath(link) == str(blob)) == path
    return DeletedFile(path, repository, blob.stat().st_size if is_first else 0, blob=blob)


def _snapshot_files(repository: str) -> Iterator[Path]:
    for folder, _, names in os.walk(repository_folder(repository) / "snapshots"):
        yield from (Path(folder) / name for name in names)


@contextmanager
def _without_downloads(owners: Sequence[Owner]) -> Iterator[None]:
    """Prevent downloads into the repositories within this block. Raises EdgespecError if a download is running."""
    held = []
    for owner in owners:
        if isinstance(owner, PackageSpec):
            held.append((str(owner), package_lock(owner)))
            continue
        paths = (hub_cache() / ".locks" / repository_folder(owner).name).glob("*.lock")
        held += [(owner, file_lock(owner, path.stem)) for path in paths]
    with ExitStack() as locks:
        for name, lock in held:
            try:
                locks.enter_context(lock.acquire(timeout=0))
            except Timeout as error:
                raise EdgespecError(
                    f"nothing of {name} was deleted",
                    why="a download from it is running",
                    hint="wait for it to finish, or end that program first",
                ) from error
            except OSError:  # another user's lock: whether it is held is unknown
                continue
        yield
