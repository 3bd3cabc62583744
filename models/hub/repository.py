"""Repositories of the Hugging Face hub: their models, which files of one a download needs, and what of them is here."""

from __future__ import annotations

import difflib
import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from edgespec.errors import ModelNotFoundError
from edgespec.models.hub import progress as waiting
from edgespec.models.hub.cache import cached_files, is_offline, repository_folder
from edgespec.models.hub.progress import Notes, Patience, Tell
from edgespec.models.hub.quants import choose, models_in, parts_of, quant_of
from edgespec.models.hub.requests import (
    DownloadError,
    check_endpoint,
    explained,
    headers,
    host,
    http_error,
    is_kind,
    missing_offline,
    search_page,
    session,
    timeout_s,
)
from edgespec.models.names.source import HubSpec, cached, stays_within

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

Answer = TypeVar("Answer")

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
        """Return the models that can be downloaded, the smallest first: of known size, with all parts."""
        found = []
        for file in models_in(list(self.files)):
            sizes = [self.files[part].size_bytes if part in self.files else 0 for part in parts_of(file)]
            if all(sizes):
                selecting = _chosen_or_none(list(self.files), quant_of(file)) == file
                found.append(Offer(file, quant_of(file) if selecting else "", len(sizes), sum(sizes)))
        return sorted(found, key=lambda offer: (offer.size_bytes, offer.file))


@dataclass(frozen=True, slots=True)
class Download:
    """The download of a model from the hub.

    Attributes:
        files: All parts of the model, in order.
        here_bytes: How much of each file is here already.
    """

    wanted: HubSpec
    commit: str
    files: tuple[RemoteFile, ...]
    here_bytes: tuple[int, ...]

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

    @property
    def needed_bytes(self) -> int:
        """The disk space that the download takes."""
        return self.missing_bytes

    def place(self, file: RemoteFile) -> Path:
        return repository_folder(self.wanted.repository) / "snapshots" / self.commit / file.name

    def blob(self, file: RemoteFile) -> Path:
        return repository_folder(self.wanted.repository) / "blobs" / file.etag

    def partial(self, file: RemoteFile) -> Path:
        return repository_folder(self.wanted.repository) / "blobs" / f"{file.etag}.incomplete"


def plan(wanted: HubSpec, tell: Tell = _logger.info) -> Download:
    """Return the download of a model; offline it describes the complete model that is here.

    Raises ModelNotFoundError, DownloadError.
    """
    if is_offline():
        return _plan_offline(wanted)
    repository = look_up(wanted, tell)
    names = list(repository.files)
    if wanted.file and wanted.file not in names:
        near = difflib.get_close_matches(wanted.file, names, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"GGUF files there: {', '.join(names[:5]) or 'none'}"
        raise ModelNotFoundError(f"{repository.name} has no file {wanted.file}", hint=hint)
    parts = parts_of(wanted.file or _chosen(repository, wanted.quant))
    missing = [part for part in parts if part not in names]
    if missing:
        raise ModelNotFoundError(f"{repository.name} has only some parts of the model", why=f"{missing[0]} is missing")
    files = tuple(repository.files[part] for part in parts)
    for file in files:
        if not file.size_bytes:
            why = "it is empty" if file.etag else f"{host()} does not give its size and hash"
            raise DownloadError(f"{file.name} of {repository.name} cannot be downloaded", why=why)
    empty = Download(wanted, repository.commit, files, ())
    return replace(empty, here_bytes=tuple(_here_bytes(empty, file) for file in files))


def look_up(wanted: HubSpec, tell: Tell = _logger.info) -> Repository:
    """Return the repository at the requested revision. Waits and retries, with a note, if the hub is busy.

    Raises ModelNotFoundError, DownloadError.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # or the first request of a day reports on this machine
    check_endpoint()
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    session()
    api = HfApi(token=False, headers=headers())  # these contain the token

    def ask() -> ModelInfo:
        return api.model_info(wanted.repository, revision=wanted.revision, files_metadata=True, timeout=timeout_s())

    try:
        return _read_listing(_answered(ask, wanted, tell), wanted.repository)
    except HFValidationError as error:
        raise ModelNotFoundError(f"there is no repository {wanted.repository}") from error
    except (ValueError, KeyError, TypeError) as error:
        right = "; is HF_ENDPOINT right?" if os.environ.get("HF_ENDPOINT") else ""
        raise DownloadError(
            f"{host()} does not respond like a model hub",
            why="the response is not a list of files",
            hint=f"does this network require a login? Open a page in a browser, and try again{right}",
        ) from error


def look_at_offers(wanted: HubSpec, tell: Tell = _logger.info) -> Repository:
    """Return the repository of a model, which has at least one. Raises ModelNotFoundError, DownloadError."""
    if is_offline():
        hint = "'edgespec ls' shows what is downloaded"
        raise DownloadError(f"the contents of {wanted.repository} are not known offline", hint=hint)
    repository = look_up(wanted, tell)
    _check_any_model(repository)
    return repository


def check_access(download: Download, tell: Tell = _logger.info) -> None:
    """Check access to the files, which the listing of a gated repository does not show. Downloads nothing.

    Raises DownloadError.
    """
    missing = [file for file in download.files if not is_whole(download.place(file), file)]
    if not missing or is_offline():
        return
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(download.wanted.repository, missing[0].name, revision=download.commit)

    def ask() -> None:
        answer = session().head(url, headers=headers(), timeout=timeout_s(), follow_redirects=False)
        if answer.is_error:  # a redirection, which leads to the content, is no error
            answer.raise_for_status()

    _answered(ask, download.wanted, tell)


def is_whole(path: Path, file: RemoteFile) -> bool:
    return size_here(path) == file.size_bytes


def size_here(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it is not here."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read_listing(about: ModelInfo, name: str) -> Repository:
    """Read the listing of a repository. Raises DownloadError for hostile names, ValueError without a commit."""
    files = {}
    for sibling in about.siblings or []:
        file = sibling.rfilename
        if not isinstance(file, str) or not file.lower().endswith(".gguf"):
            continue
        if not stays_within(file):
            raise DownloadError(f"{name} is refused", why=f"it lists a file called {file!r}")
        files[file] = RemoteFile(file, *_content(sibling))
    if not re.fullmatch("[0-9a-f]{40}", about.sha or ""):
        raise ValueError("the answer names no commit")
    return Repository(name, str(about.sha), files)


def _content(sibling: RepoSibling) -> tuple[int, str]:
    """Return size and etag of a file, if reported."""
    size, etag = sibling.size, sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    if not isinstance(size, int) or size < 0 or not isinstance(etag, str):
        return 0, ""
    return (size, etag) if re.fullmatch(_ETAG, etag) else (0, "")


def _chosen(repository: Repository, quant: str) -> str:
    """Return the file of a quantisation. Raises ModelNotFoundError, which lists the available ones."""
    _check_any_model(repository)
    try:
        return choose(list(repository.files), quant, where=repository.name)
    except ModelNotFoundError as error:
        sizes = f"their sizes: edgespec pull {repository.name} --list"
        raise type(error)(error.what, why=error.why, hint="; ".join(filter(None, (error.hint, sizes)))) from None


def _chosen_or_none(names: list[str], quant: str) -> str | None:
    with suppress(ModelNotFoundError):
        return choose(names, quant) if quant else None
    return None


def _check_any_model(repository: Repository) -> None:
    if not models_in(list(repository.files)):
        hint = f"look for a repository with GGUF files: {search_page(repository.name)}"
        raise ModelNotFoundError(f"{repository.name} has no GGUF model", hint=hint)


def _answered(ask: Callable[[], Answer], wanted: HubSpec, tell: Tell) -> Answer:
    """Return the hub's answer, after waits and retries if it is busy. Raises DownloadError, ModelNotFoundError."""
    patience, notes = Patience(waiting.LOOKING_S), Notes(tell)
    while True:
        try:
            return ask()
        except http_error() as error:
            wait_s = None if is_kind(error, "ConnectError") else patience.wait_s(error)
            if wait_s is None:
                raise explained(error, wanted) from error
            notes.retrying(error, wait_s, patience)
            time.sleep(wait_s)


def _here_bytes(download: Download, file: RemoteFile) -> int:
    if is_whole(download.place(file), file) or is_whole(download.blob(file), file):
        return file.size_bytes
    here = size_here(download.partial(file))
    return here if here <= file.size_bytes else 0


# --- offline ----------------------------------------------------------------------------------------------------------


def _plan_offline(wanted: HubSpec) -> Download:
    first = cached(wanted)
    if first is None:
        raise missing_offline(str(wanted))
    here = cached_files(wanted.repository, wanted.revision)
    first_name = next(name for name, path in here.items() if path == first)
    files = tuple(RemoteFile(name, here[name].stat().st_size, "") for name in parts_of(first_name))
    commit = first.relative_to(repository_folder(wanted.repository) / "snapshots").parts[0]
    return Download(wanted, commit, files, tuple(file.size_bytes for file in files))
