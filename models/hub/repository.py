"""Repositories of the Hugging Face hub: their models, which files of one a download needs, and what of them is here."""

from __future__ import annotations

import difflib
import logging
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.errors import ModelNotFoundError
from edgespec.models.hub import requests
from edgespec.models.hub.cache import is_offline, repository_folder
from edgespec.models.hub.quants import (
    choose,
    drafts_in,
    models_in,
    part_of,
    parts_of,
    quant_of,
    ranked_projectors,
    selects,
)
from edgespec.models.hub.requests import (
    DownloadError,
    Patience,
    Tell,
    check_endpoint,
    explained,
    headers,
    host,
    http_error,
    is_kind,
    search_page,
    session,
    timeout_s,
)
from edgespec.models.names.source import HubSpec, cached, stays_within
from edgespec.text.figures import size_of

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

_logger = logging.getLogger(__name__)
_ETAG = "[0-9a-f]{40}|[0-9a-f]{64}"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. `etag` is its SHA-256, or the SHA-1 of git if git itself keeps the file; both are empty
    if the hub does not report them, and offline."""

    name: str
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class Repository:
    """The GGUF files of a repository by name, at a commit, and the architecture of its models if the hub reports it."""

    name: str
    commit: str
    files: dict[str, RemoteFile]
    architecture: str = ""


@dataclass(frozen=True, slots=True)
class Download:
    """The download of a model from the hub.

    Attributes:
        files: All parts of the model, in order, then its projector if there is one.
        here_bytes: The number of bytes of each file that are here already.
        drafts: Files of the repository that by their names draft for this model; they are not a part of the download.
        architecture: The architecture of the repository's models; empty if the hub does not report it.
    """

    wanted: HubSpec
    commit: str
    files: tuple[RemoteFile, ...]
    here_bytes: tuple[int, ...]
    drafts: tuple[RemoteFile, ...] = ()
    architecture: str = ""

    @property
    def path(self) -> Path:
        """The place of the model on this machine: its first part."""
        return self.place(self.files[0])

    @property
    def is_here(self) -> bool:
        return all(is_whole(self.place(file), file) for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def missing_bytes(self) -> int:
        return self.size_bytes - sum(self.here_bytes)

    needed_bytes = missing_bytes  # the disk space that the download takes

    def place(self, file: RemoteFile) -> Path:
        return repository_folder(self.wanted.repository) / "snapshots" / self.commit / file.name

    def blob(self, file: RemoteFile) -> Path:
        return repository_folder(self.wanted.repository) / "blobs" / file.etag

    def partial(self, file: RemoteFile) -> Path:
        return repository_folder(self.wanted.repository) / "blobs" / f"{file.etag}.incomplete"


@dataclass(frozen=True, slots=True)
class DownloadChoice:
    """One way to download a model, by its `spec`.

    Attributes:
        quant: The quantisation; empty if only the name of the file selects the model.
        file: The file in the repository, of a split model the first part; empty if it was not looked up.
        size_bytes: The size of all parts.
    """

    spec: str
    quant: str
    size_bytes: int
    is_exact: bool = True
    file: str = ""
    n_parts: int = 1
    is_here: bool = False

    @property
    def size(self) -> str:
        """The size in words; empty if unknown (0)."""
        return shown_size(self.size_bytes, is_exact=self.is_exact)


def plan(wanted: HubSpec, tell: Tell = _logger.info) -> Download:
    """Return the download of a model. Raises ModelNotFoundError, DownloadError."""
    repository = look_up(wanted, tell)
    names = list(repository.files)
    if wanted.file and wanted.file not in names:
        near = difflib.get_close_matches(wanted.file, names, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"GGUF files there: {', '.join(names[:5]) or 'none'}"
        raise ModelNotFoundError(f"{repository.name} has no file {wanted.file}", hint=hint)
    parts = parts_of(wanted.file or choose(names, wanted.quant, where=repository.name))
    missing = [part for part in parts if part not in names]
    if missing:
        raise ModelNotFoundError(f"{repository.name} has only some parts of the model", why=f"{missing[0]} is missing")
    drafts = tuple(repository.files[name] for name in drafts_in(names) if name not in parts)
    projector = [] if "mmproj" in wanted.file.lower() else ranked_projectors(names)[:1]
    return replace(_download(wanted, repository, [*parts, *projector]), drafts=drafts)


def plan_gguf_head(wanted: HubSpec, quant: str, tell: Tell = _logger.info, *, has_models: bool = False) -> HubSpec:
    """Return the GGUF file to take of a draft head's repository: in Q8_0, which keeps the acceptance, else in the
    quantisation of its model, else the smallest. If the repository `has_models` too, it is a file that is named as a
    draft. Raises ModelNotFoundError, DownloadError."""
    files = look_up(wanted, tell).files
    names = drafts_in(list(files)) if has_models else models_in(list(files))
    whole = [name for name in names if part_of(name) == (1, 1)]
    if not whole:
        raise ModelNotFoundError(f"{wanted.repository} has no draft head in one file")
    order = ("Q8_0", quant)
    rank = {name: order.index(quant_of(name)) if quant_of(name) in order else len(order) for name in whole}
    return replace(wanted, file=min(whole, key=lambda name: (rank[name], files[name].size_bytes, name)))


def plan_head(wanted: HubSpec, tell: Tell = _logger.info) -> Download:
    """Return the download of a draft head as it was published. Raises ModelNotFoundError, DownloadError."""
    repository = look_up(wanted, tell, of_head=True)
    return _download(wanted, repository, sorted(repository.files))


def _download(wanted: HubSpec, repository: Repository, names: Sequence[str]) -> Download:
    files = tuple(repository.files[name] for name in names)
    for file in files:
        if not file.size_bytes:
            why = "it is empty" if file.etag else f"{host()} does not give its size and hash"
            raise DownloadError(f"{file.name} of {repository.name} cannot be downloaded", why=why)
    empty = Download(wanted, repository.commit, files, (), architecture=repository.architecture)
    return replace(empty, here_bytes=tuple(_here_bytes(empty, file) for file in files))


def look_up(wanted: HubSpec, tell: Tell = _logger.info, *, of_head: bool = False) -> Repository:
    """Return the repository at the requested revision, which has at least one model, or the files `of_head`.

    Waits and retries, with a note, if the hub is busy. Raises ModelNotFoundError, DownloadError.
    """
    if is_offline():
        hint = "'edgespec ls' shows what is downloaded"
        raise DownloadError(f"the contents of {wanted.repository} are not known offline", hint=hint)
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # or the first request of a day reports on this machine
    check_endpoint()
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    session()
    api = HfApi(token=False, headers=headers())  # these contain the token

    patience = Patience(requests.LOOKING_S, tell)
    try:
        while True:
            try:
                found = api.model_info(
                    wanted.repository, revision=wanted.revision, files_metadata=True, timeout=timeout_s()
                )
                return _read_listing(found, wanted.repository, of_head=of_head)
            except http_error() as error:
                wait_s = None if is_kind(error, "ConnectError") else patience.wait_s(error)
                if wait_s is None:
                    raise explained(error, wanted) from error
                time.sleep(wait_s)
    except HFValidationError as error:
        raise ModelNotFoundError(f"there is no repository {wanted.repository}") from error
    except (ValueError, KeyError, TypeError) as error:
        right = "; is HF_ENDPOINT right?" if os.environ.get("HF_ENDPOINT") else ""
        raise DownloadError(
            f"{host()} does not respond like a model hub",
            why="the response is not a list of files",
            hint=f"does this network require a login? Open a page in a browser, and try again{right}",
        ) from error


def choices_in(repository: Repository, spec: str, wanted: HubSpec) -> list[DownloadChoice]:
    """Return the models of a repository that can be downloaded, the smallest first: of known size, with all parts.

    A `spec` of the catalogue is kept, so that its draft is downloaded too.
    """
    names, found = list(repository.files), []
    for file in models_in(names):
        sizes = [repository.files[part].size_bytes if part in names else 0 for part in parts_of(file)]
        if all(sizes):
            quant = quant_of(file) if selects(names, quant_of(file), file) else ""
            short = str(replace(wanted, file="" if quant else file, quant=quant))
            if quant and "/" not in spec:
                short = f"{spec.partition(':')[0]}:{quant}"
            is_here = cached(replace(wanted, file=file, quant="")) is not None
            found.append(DownloadChoice(short, quant, sum(sizes), True, file, len(sizes), is_here))
    return sorted(found, key=lambda choice: (choice.size_bytes, choice.file))


def shown_size(n_bytes: int, *, is_exact: bool) -> str:
    """Return a size in words; empty for 0, which means unknown."""
    if not n_bytes:
        return ""
    if is_exact:
        return size_of(n_bytes)
    return f"~{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"~{n_bytes / 1e6:.0f} MB"


def is_whole(path: Path, file: RemoteFile) -> bool:
    return size_here(path) == file.size_bytes


def size_here(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it is not here."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_listing(about: ModelInfo, name: str, *, of_head: bool) -> Repository:
    """Read the listing of a repository: its GGUF files, or those of a published draft head.

    Raises ModelNotFoundError without a model, DownloadError for hostile names, ValueError without a commit.
    """
    files = {}
    for sibling in about.siblings or []:
        file = sibling.rfilename
        if not isinstance(file, str) or not (_is_of_head(file) if of_head else file.lower().endswith(".gguf")):
            continue
        if not stays_within(file):
            raise DownloadError(f"{name} is refused", why=f"it lists a file called {file!r}")
        files[file] = RemoteFile(file, *_content(sibling))
    if not re.fullmatch("[0-9a-f]{40}", about.sha or ""):
        raise ValueError("the answer names no commit")
    if of_head and not any(file.endswith(".safetensors") for file in files):
        raise ModelNotFoundError(f"{name} has no published draft head", why="there is no .safetensors file")
    if not of_head and not models_in(list(files)):
        hint = f"look for a repository with GGUF files: {search_page(name)}"
        raise ModelNotFoundError(f"{name} has no GGUF model", hint=hint)
    architecture = (about.gguf or {}).get("architecture")
    return Repository(name, str(about.sha), files, architecture if isinstance(architecture, str) else "")


def _is_of_head(file: str) -> bool:
    """Return whether a file is needed to convert a head. The pickle is one of the reasons to refuse it."""
    return file in ("config.json", "mask_embedding.pt") or ("/" not in file and file.endswith(".safetensors"))


def _content(sibling: RepoSibling) -> tuple[int, str]:
    """Return size and etag of a file, if reported."""
    size, etag = sibling.size, sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    if not isinstance(size, int) or size < 0 or not isinstance(etag, str):
        return 0, ""
    return (size, etag) if re.fullmatch(_ETAG, etag) else (0, "")


def _here_bytes(download: Download, file: RemoteFile) -> int:
    if is_whole(download.place(file), file) or is_whole(download.blob(file), file):
        return file.size_bytes
    here = size_here(download.partial(file))
    return here if here <= file.size_bytes else 0
