"""How a downloaded file becomes part of the shared Hugging Face cache, as huggingface_hub does it."""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from edgespec.files.paths import write_whole
from edgespec.files.unfinished import becoming
from edgespec.models.hub.cache import commit_of, hub_cache, repository_folder
from edgespec.models.hub.repository import Download
from edgespec.models.hub.requests import DownloadError, how_to_resume

LOOK_S = 0.1  # between two looks whether a lock is free, or what else has happened

# filelock's word on file systems without locks, where it makes do with files
warnings.filterwarnings("ignore", message="flock not supported")


def lock(repository: str, etag: str) -> FileLock:
    """The lock of a repository's file, which huggingface_hub uses too; not acquired yet."""
    path = hub_cache() / ".locks" / repository_folder(repository).name / f"{etag}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path, mode=0o664)


@contextmanager
def alone(held: FileLock, waits: Callable[[], object], check: Callable[[], object]) -> Iterator[None]:
    """Within this block no other process works on what `held` guards. While one does, `check` is called again and
    again, and may raise; before that, once, `waits`."""
    told = False
    while True:
        try:
            held.acquire(timeout=LOOK_S)
            break
        except Timeout:
            if not told:
                waits()
            told = True
            check()
    try:
        yield
    finally:
        held.release()


def link(blob: Path, place: Path, *, is_new: bool) -> None:
    """Link the blob into the snapshot; without links a new one is moved there, and an older one, which other snapshots
    may use, is copied."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    try:
        place.symlink_to(os.path.relpath(blob, place.parent))
    except (OSError, NotImplementedError):
        if is_new:
            blob.replace(place)
            return
        with becoming(place) as scratch:
            shutil.copyfile(blob, scratch)


def remember_commit(download: Download) -> None:
    """Only now does the revision refer to this commit: until all of it was here, an older one could be used."""
    repository, revision = download.wanted.repository, download.wanted.revision
    if commit_of(repository, revision) == download.commit:
        return
    folder = repository_folder(repository)
    ref = folder / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    noted = folder / f"commit.{os.getpid()}"  # every file in refs, whatever its name, counts as a branch
    try:
        write_whole(noted, download.commit)
        noted.replace(ref)
    finally:
        noted.unlink(missing_ok=True)


@contextmanager
def disk_errors(download: Download) -> Iterator[None]:
    """Converts errors of the disk to DownloadError."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
            hint = f"free some space: {how_to_resume(download.wanted.repository)}"
            raise DownloadError(f"no space left for {hub_cache()}", hint=hint) from error
        if error.errno == errno.EFBIG:
            raise DownloadError(f"a file this large cannot be stored in {hub_cache()}", why=why,
                hint="set HF_HOME to a folder on another disk") from error  # fmt: skip
        raise DownloadError(
            f"{hub_cache()} is not writable", why=why, hint="set HF_HOME to a folder you own"
        ) from error
