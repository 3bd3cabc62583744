"""Downloads on the disk: progress, locks, hashes and links of files, and messages about the disk."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from edgespec.files.unfinished import becoming
from edgespec.models.hub.cache import hub_cache, repository_folder
from edgespec.models.hub.requests import DownloadError

LOOK_S = 0.1  # between two looks at a lock, or at the progress of a download

# filelock prints this warning on file systems without locks, where it uses files instead.
warnings.filterwarnings("ignore", message="flock not supported")


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a download.

    Attributes:
        here_bytes: Bytes that are on this machine.
        transferred_bytes: Bytes that came over the network this time.
        files_done: Complete files.
        step: The work on the received files, such as computing their hashes; empty while files are received.
        step_done: The progress of this step, 0 to 1.
    """

    here_bytes: int
    transferred_bytes: int
    files_done: int
    step: str = ""
    step_done: float = 0.0


class DownloadCancelled(DownloadError):  # noqa: N818 - nothing went wrong
    """The user stopped a download."""


def file_lock(repository: str, etag: str) -> FileLock:
    """The lock of a file in a repository, which huggingface_hub uses too; not acquired yet."""
    path = hub_cache() / ".locks" / repository_folder(repository).name / f"{etag}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path, mode=0o664)


@contextmanager
def alone(lock: FileLock, waits: Callable[[], object], check: Callable[[], object]) -> Iterator[None]:
    """Hold the lock within this block. If another process has it, call `waits` once, and `check`, which may raise,
    again and again."""
    is_first = True
    while True:
        try:
            lock.acquire(timeout=LOOK_S)
            break
        except Timeout:
            if is_first:
                waits()
            is_first = False
            check()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def disk_errors(folder: Path, variable: str) -> Iterator[None]:
    """Convert errors of the disk to DownloadError; `variable` can move the folder to another disk."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
            hint = "free some space: the same command resumes"
            raise DownloadError(f"no space left for {folder}", hint=hint) from error
        hint = f"set {variable} to a folder that you own, or on another disk"
        raise DownloadError(f"{folder} is not writable", why=error.strerror or str(error), hint=hint) from error


def link(blob: Path, place: Path, *, is_new: bool) -> None:
    """Link a blob of the cache into a snapshot.

    On systems without links a new blob is moved there, and an older one, which other snapshots may use, is copied.
    """
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


def etag_of(path: Path, etag: str, check: Callable[[], object]) -> str:
    """Compute the hash of a file of the hub in the form of `etag`: SHA-256, or the SHA-1 of a git blob.

    Calls `check`, which may raise, before each piece is hashed.
    """
    digest = hashlib.sha256()
    if len(etag) == 40:
        digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(1 << 20):
            check()
            digest.update(chunk)
    return digest.hexdigest()
