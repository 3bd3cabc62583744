"""How a file that was fetched becomes part of the shared Hugging Face cache, in the way of huggingface_hub."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from edgespec.models.cache import hub_cache, repository_folder
from edgespec.models.hub import Download
from edgespec.models.hub_requests import AGAIN, DownloadError


def link(blob: Path, place: Path) -> None:
    """Show the blob in the snapshot; where there are no links it moves there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    try:
        place.symlink_to(os.path.relpath(blob, place.parent))
    except (OSError, NotImplementedError):
        blob.replace(place)


def remember_commit(download: Download) -> None:
    """Only now does the revision stand for this commit: until all of it was here, an older one could be used."""
    revision = download.wanted.revision
    ref = repository_folder(download.wanted.repository) / "refs" / revision
    if revision == download.commit or (ref.is_file() and ref.read_text(encoding="ascii") == download.commit):
        return
    ref.parent.mkdir(parents=True, exist_ok=True)
    scratch = ref.with_name(f"{ref.name}.{os.getpid()}.tmp")
    scratch.write_text(download.commit, encoding="ascii")
    scratch.replace(ref)


def remove_old_partials(download: Download) -> None:
    """What is begun and no file of the main branch any more was of an older version of one."""
    if download.wanted.revision != "main" or not download.etags:
        return
    for partial in (repository_folder(download.wanted.repository) / "blobs").glob("*.incomplete"):
        if partial.stem in download.etags or not re.fullmatch("[0-9a-f]{64}", partial.stem):
            continue
        try:
            with FileLock(lock_file(download, partial.stem), timeout=0, mode=0o664):
                partial.unlink(missing_ok=True)
        except Timeout:
            continue


def lock_file(download: Download, etag: str) -> Path:
    return hub_cache() / ".locks" / repository_folder(download.wanted.repository).name / f"{etag}.lock"


@contextmanager
def disk_errors(download: Download) -> Iterator[None]:
    """Turns what the disk refuses into DownloadError."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
            raise DownloadError(f"there is no space left where {hub_cache()} is", hint=f"make room: {AGAIN}") from error
        if error.errno == errno.EFBIG:
            raise DownloadError(f"a file this large cannot be kept where {hub_cache()} is", why=why,
                hint="set HF_HOME to a folder on another disk") from error  # fmt: skip
        raise DownloadError(
            f"{hub_cache()} cannot be written", why=why, hint="set HF_HOME to a folder of yours"
        ) from error
