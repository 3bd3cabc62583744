"""Whether a file is the hub's: its content hash, computed anew."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from edgespec.models.hub.listing import RemoteFile
from edgespec.models.hub.placing import disk_errors
from edgespec.models.hub.repository import Download
from edgespec.models.hub.requests import DownloadError

CHUNK_BYTES = 1 << 20


def hash_of(path: Path, file: RemoteFile, read: Callable[[int], object]) -> str:
    """The etag of `path` as a copy of `file`. Calls `read` with the bytes of each piece before hashing."""
    digest = hashlib.sha256()
    if len(file.etag) == 40:
        digest = hashlib.sha1(f"blob {file.size_bytes}\0".encode(), usedforsecurity=False)  # git's blob hash
    return _digested(path, digest, read)


def sha256_of(path: Path, read: Callable[[int], object]) -> str:
    """The SHA-256 of a file. Calls `read` with the bytes of each piece before hashing."""
    return _digested(path, hashlib.sha256(), read)


def _digested(path: Path, digest: hashlib._Hash, read: Callable[[int], object]) -> str:
    with path.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            read(len(chunk))
            digest.update(chunk)
    return digest.hexdigest()


def examined(download: Download, read: Callable[[int], object]) -> Download:
    """The same download, with changed or damaged files as `damaged`. Calls `read` with the bytes of each piece. Raises
    DownloadError if the right content is unknown."""
    damaged = []
    for file, here_bytes in zip(download.files, download.here_bytes, strict=True):
        path = next((path for path in (download.place(file), download.blob(file)) if path.is_file()), None)
        if path is None or here_bytes < file.size_bytes:
            continue
        if not file.etag:
            why = "the hub's cache does not store its hash"
            raise DownloadError(f"{file.name} cannot be verified offline", why=why)
        with disk_errors(download):
            if hash_of(path, file, read) != file.etag:
                damaged.append(file)
    return replace(download, damaged=tuple(damaged))


def discard_damaged(download: Download) -> Download:
    """Delete what is damaged, so that it is downloaded again. Raises DownloadError."""
    with disk_errors(download):
        for file in download.damaged:
            download.place(file).unlink(missing_ok=True)
            download.blob(file).unlink(missing_ok=True)
    sizes = zip(download.files, download.here_bytes, strict=True)
    here = tuple(0 if file in download.damaged else here_bytes for file, here_bytes in sizes)
    return replace(download, here_bytes=here, damaged=())
