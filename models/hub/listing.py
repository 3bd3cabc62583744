"""The hub's listing of a repository, read with care: paths on this machine are made from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.models.hub.offers import Offer, offers
from edgespec.models.hub.requests import DownloadError, host
from edgespec.models.names.spec import stays_within

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

ETAG = "[0-9a-f]{40}|[0-9a-f]{64}"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. `etag`, the name of its content, is its SHA-256, or the SHA-1 of git if it is kept in git
    itself; it is empty, and the size 0, if the hub does not report them."""

    name: str
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class Repository:
    """The GGUF files of a repository by name, at a commit."""

    name: str
    commit: str
    files: dict[str, RemoteFile]

    def offers(self) -> list[Offer]:
        """Its models that can be downloaded, the smallest first."""
        return offers({name: file.size_bytes for name, file in self.files.items()})


def read_listing(about: ModelInfo, name: str) -> Repository:
    """A parsed listing, from which paths on this machine are made. Raises DownloadError."""
    files = {}
    for sibling in about.siblings or []:
        file = sibling.rfilename
        if not isinstance(file, str) or not file.lower().endswith(".gguf"):
            continue
        if not stays_within(file):
            raise DownloadError(f"{name} is refused", why=f"it lists a file called {file!r}")
        files[file] = RemoteFile(file, *_content(sibling))
    if not re.fullmatch("[0-9a-f]{40}", about.sha or ""):
        raise DownloadError(f"{host()} does not respond like a model hub", why="it gives no commit")
    return Repository(name, str(about.sha), files)


def _content(sibling: RepoSibling) -> tuple[int, str]:
    """Size and etag of a file, if reported."""
    size, etag = sibling.size, sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    if not isinstance(size, int) or size < 0 or not isinstance(etag, str):
        return 0, ""
    return (size, etag) if re.fullmatch(ETAG, etag) else (0, "")
