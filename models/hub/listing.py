"""The contents of a repository, as the hub lists them: its GGUF files, and the models that can be downloaded.

The listing is read with care, since paths on this machine are made from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgespec.errors import ModelNotFoundError
from edgespec.models.hub.quants import choose, models_in, parts_of, quant_of
from edgespec.models.hub.requests import DownloadError, host
from edgespec.models.names.source import HubSpec, stays_within

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

ETAG = "[0-9a-f]{40}|[0-9a-f]{64}"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. `etag` is its SHA-256, or the SHA-1 of git if git itself keeps the file; it is empty, and
    the size 0, if the hub does not report them."""

    name: str
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class Offer:
    """A model of a repository: its file, or the first part of a split model, with the size of all parts. `quant` is
    empty if only the file's name selects the model."""

    file: str
    quant: str
    n_parts: int
    size_bytes: int

    def spec(self, wanted: HubSpec) -> HubSpec:
        """Return the spec that selects this model, in the repository and at the revision of `wanted`."""
        return replace(wanted, file="" if self.quant else self.file, quant=self.quant)


@dataclass(frozen=True, slots=True)
class Repository:
    """The GGUF files of a repository by name, at a commit."""

    name: str
    commit: str
    files: dict[str, RemoteFile]

    def offers(self) -> list[Offer]:
        """The models that can be downloaded, the smallest first."""
        return offers({name: file.size_bytes for name, file in self.files.items()})


def offers(sizes: Mapping[str, int]) -> list[Offer]:
    """Return the models among these files, whose sizes are in bytes, the smallest first.

    Models with missing parts or of unknown size (0) cannot be downloaded and are left out.
    """
    found = []
    for file in models_in(list(sizes)):
        parts = parts_of(file)
        if all(sizes.get(part) for part in parts):
            size_bytes = sum(sizes[part] for part in parts)
            found.append(Offer(file, _selecting_quant(file, list(sizes)), len(parts), size_bytes))
    return sorted(found, key=lambda offer: (offer.size_bytes, offer.file))


def _selecting_quant(file: str, names: list[str]) -> str:
    quant = quant_of(file)
    with suppress(ModelNotFoundError):
        if quant and choose(names, quant) == file:
            return quant
    return ""


def read_listing(about: ModelInfo, name: str) -> Repository:
    """Read the listing of a repository. Raises DownloadError."""
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
    """Return size and etag of a file, if reported."""
    size, etag = sibling.size, sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    if not isinstance(size, int) or size < 0 or not isinstance(etag, str):
        return 0, ""
    return (size, etag) if re.fullmatch(ETAG, etag) else (0, "")
