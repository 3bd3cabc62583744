"""A download from the Hugging Face hub: which files of a repository a model needs, and what of them is here."""

from __future__ import annotations

import difflib
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from edgespec.errors import ModelNotFoundError
from edgespec.models.hub import retries
from edgespec.models.hub.cache import cached_files, hub_cache, is_offline, repository_folder
from edgespec.models.hub.disk import disk_errors, etag_of
from edgespec.models.hub.listing import ETAG, Offer, RemoteFile, Repository, read_listing
from edgespec.models.hub.progress import Tell
from edgespec.models.hub.quants import choose, models_in, parts_of
from edgespec.models.hub.requests import (
    DownloadError,
    check_endpoint,
    explained,
    headers,
    host,
    http_error,
    is_kind,
    page_of,
    session,
    timeout_s,
    token,
)
from edgespec.models.hub.retries import Notes, Patience
from edgespec.models.names.source import HubSpec, cached, check_unambiguous

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

Answer = TypeVar("Answer")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Download:
    """The download of a model from the hub.

    Attributes:
        files: All parts of the model, in order.
        here_bytes: How much of each file is here already.
        offers: The other models of the repository.
        damaged: Files that are here with wrong content.
    """

    wanted: HubSpec
    commit: str
    files: tuple[RemoteFile, ...]
    here_bytes: tuple[int, ...]
    offers: tuple[Offer, ...] = ()
    damaged: tuple[RemoteFile, ...] = ()

    @property
    def path(self) -> Path:
        """The place of the model on this machine: its first part."""
        return self.place(self.files[0])

    @property
    def is_here(self) -> bool:
        return not self.damaged and all(is_whole(self.place(file), file) for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def missing_bytes(self) -> int:
        return self.size_bytes - sum(self.here_bytes) + sum(file.size_bytes for file in self.damaged)

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
    empty = Download(wanted, repository.commit, files, (), tuple(repository.offers()))
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
    api = HfApi(library_name="edgespec", token=token() or False)

    def ask() -> ModelInfo:
        return api.model_info(wanted.repository, revision=wanted.revision, files_metadata=True, timeout=timeout_s())

    try:
        return read_listing(_answered(ask, wanted, tell), wanted.repository)
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
        raise DownloadError(
            f"the contents of {wanted.repository} are not known offline", hint="'edgespec ls' shows what is downloaded"
        )
    repository = look_up(wanted, tell)
    _check_any_model(repository)
    return repository


def check_access(download: Download, tell: Tell = _logger.info) -> None:
    """Check access to the files, which the listing of a gated repository does not show. Downloads nothing.

    Raises DownloadError.
    """
    missing = [file for file in download.files if not is_whole(download.place(file), file)] + [*download.damaged]
    if not missing or is_offline():
        return
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(download.wanted.repository, missing[0].name, revision=download.commit)

    def ask() -> None:
        answer = session().head(url, headers=headers(), timeout=timeout_s(), follow_redirects=False)
        if answer.is_error:  # a redirection, which leads to the content, is no error
            answer.raise_for_status()

    _answered(ask, download.wanted, tell)


def examined(download: Download, read: Callable[[int], object]) -> Download:
    """Return the download, with damaged files as `damaged`. Calls `read` with the size of each piece that is read.

    Raises DownloadError if the right content is unknown.
    """
    damaged = []
    for file, here_bytes in zip(download.files, download.here_bytes, strict=True):
        path = next((path for path in (download.place(file), download.blob(file)) if path.is_file()), None)
        if path is None or here_bytes < file.size_bytes:
            continue
        if not file.etag:
            why = "the hub's cache does not store its hash"
            raise DownloadError(f"{file.name} cannot be verified offline", why=why)
        with disk_errors(hub_cache(), "HF_HOME"):
            if etag_of(path, file.etag, read) != file.etag:
                damaged.append(file)
    return replace(download, damaged=tuple(damaged))


def is_whole(path: Path, file: RemoteFile) -> bool:
    return size_here(path) == file.size_bytes


def size_here(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it is not here."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _chosen(repository: Repository, quant: str) -> str:
    """Return the file of a quantisation. Raises ModelNotFoundError, which lists the available ones."""
    _check_any_model(repository)
    try:
        return choose(list(repository.files), quant, where=repository.name)
    except ModelNotFoundError as error:
        sizes = f"their sizes: edgespec pull {repository.name} --list"
        raise type(error)(error.what, why=error.why, hint="; ".join(filter(None, (error.hint, sizes)))) from None


def _check_any_model(repository: Repository) -> None:
    if not models_in(list(repository.files)):
        page = f"{page_of('models')}?library=gguf&search={repository.name.rpartition('/')[2]}"
        raise ModelNotFoundError(
            f"{repository.name} has no GGUF model", hint=f"look for a repository with GGUF files: {page}"
        )


def _answered(ask: Callable[[], Answer], wanted: HubSpec, tell: Tell) -> Answer:
    """Return the hub's answer, after waits and retries if it is busy. Raises DownloadError, ModelNotFoundError."""
    patience, notes = Patience(retries.LOOKING_S), Notes(tell)
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
        check_unambiguous(wanted)
        missing = wanted.file or _missing_part(wanted)
        which = f"{missing} of {wanted.repository}" if missing else str(wanted)
        why = "--offline or HF_HUB_OFFLINE prevents the download"
        hint = f"without them: edgespec pull {wanted}"
        raise DownloadError(f"{which} is not on this machine", why=why, hint=hint)
    here = cached_files(wanted.repository, wanted.revision)
    first_name = next(name for name, path in here.items() if path == first)
    files = tuple(_file_here(name, here[name]) for name in parts_of(first_name))
    commit = first.relative_to(repository_folder(wanted.repository) / "snapshots").parts[0]
    return Download(wanted, commit, files, tuple(file.size_bytes for file in files))


def _file_here(name: str, path: Path) -> RemoteFile:
    """Describe a file of the cache: the name of the blob that it links to is its etag."""
    blob = path.resolve().name
    return RemoteFile(name, path.stat().st_size, blob if re.fullmatch(ETAG, blob) else "")


def _missing_part(wanted: HubSpec) -> str:
    """Return the part of a split model that is not here, if others are."""
    here = cached_files(wanted.repository, wanted.revision)
    try:
        return next((part for part in parts_of(choose(list(here), wanted.quant)) if part not in here), "")
    except ModelNotFoundError:
        return ""
