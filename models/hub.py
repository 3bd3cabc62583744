"""The Hugging Face hub: what a repository holds, and which of its files a model is."""

from __future__ import annotations

import difflib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, TypeVar

from edgespec.errors import ModelNotFoundError
from edgespec.models.cache import cached_files, hub_cache, repository_folder
from edgespec.models.hub_requests import (
    DownloadError,
    explained,
    headers,
    host,
    http_error,
    kind,
    reason,
    timeout_s,
    wait_before_retry_s,
)
from edgespec.models.quants import choose, parts_of
from edgespec.models.spec import HubSpec, cached, check_unambiguous

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

Tell = Callable[[str], None]
Answer = TypeVar("Answer")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. `etag`, the name of its content, is the SHA-256 of it, or for one that is kept in git
    itself the SHA-1 that git gives it."""

    name: str
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class Repository:
    """The GGUF files of a repository by name, as they were at a commit."""

    name: str
    commit: str
    files: dict[str, RemoteFile]


@dataclass(frozen=True, slots=True)
class Download:
    """What is to be fetched for a model: its files, all parts of it in order, and how much of each is here already.

    `etags` are those of all GGUF files of the repository.
    """

    wanted: HubSpec
    commit: str
    files: tuple[RemoteFile, ...]
    here_bytes: tuple[int, ...]
    free_bytes: int
    etags: frozenset[str] = frozenset()

    @property
    def path(self) -> Path:
        """Where the model is, or will be: its first part."""
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

    def place(self, file: RemoteFile) -> Path:
        return repository_folder(self.wanted.repository) / "snapshots" / self.commit / file.name

    def blob(self, file: RemoteFile) -> Path:
        return repository_folder(self.wanted.repository) / "blobs" / file.etag

    def partial(self, file: RemoteFile) -> Path:
        return repository_folder(self.wanted.repository) / "blobs" / f"{file.etag}.incomplete"


def plan(wanted: HubSpec, tell: Tell = _logger.info) -> Download:
    """What has to be fetched for a model. Offline it is what is here, if all of it is.

    Raises ModelNotFoundError, DownloadError.
    """
    if is_offline():
        return _plan_offline(wanted)
    repository = look_up(wanted, tell)
    names = list(repository.files)
    if wanted.file and wanted.file not in names:
        near = difflib.get_close_matches(wanted.file, names, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"GGUF files there: {', '.join(names[:5]) or 'none'}"
        raise ModelNotFoundError(f"{repository.name} holds no file {wanted.file}", hint=hint)
    parts = parts_of(wanted.file or choose(names, wanted.quant, where=repository.name))
    missing = [part for part in parts if part not in names]
    if missing:
        raise ModelNotFoundError(
            f"{repository.name} holds only some parts of the model", why=f"{missing[0]} is missing"
        )
    files = tuple(repository.files[part] for part in parts)
    etags = frozenset(file.etag for file in repository.files.values())
    empty = Download(wanted, repository.commit, files, (), free_bytes(), etags)
    here = tuple(_here_bytes(empty, file) for file in files)
    return Download(wanted, repository.commit, files, here, empty.free_bytes, etags)


def look_up(wanted: HubSpec, tell: Tell = _logger.info) -> Repository:
    """The repository as it is at the wanted revision. Waits and asks again where the hub is busy, which it tells.

    Raises ModelNotFoundError, DownloadError.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # or the first request of a day is one about this machine
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    api = HfApi(library_name="edgespec")

    def ask() -> ModelInfo:
        return api.model_info(wanted.repository, revision=wanted.revision, files_metadata=True, timeout=timeout_s())

    try:
        return Repository(wanted.repository, *_listed(_answered(ask, wanted, tell), wanted))
    except HFValidationError as error:
        raise ModelNotFoundError(f"no repository is called {wanted.repository}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DownloadError(
            f"{host()} does not answer as a hub does", why=str(error), hint="is HF_ENDPOINT right?"
        ) from error


def check_access(download: Download, tell: Tell = _logger.info) -> None:
    """Ask whether the files may be fetched, which the listing of a gated repository does not tell.

    Nothing of them is fetched. Raises DownloadError.
    """
    missing = [file for file in download.files if not is_whole(download.place(file), file)]
    if not missing or is_offline():
        return
    from huggingface_hub import get_session, hf_hub_url

    url = hf_hub_url(download.wanted.repository, missing[0].name, revision=download.commit)

    def ask() -> None:
        answer = get_session().head(url, headers=headers(), timeout=timeout_s(), follow_redirects=False)
        if answer.is_error:  # a redirection is none: it leads to the content
            answer.raise_for_status()

    _answered(ask, download.wanted, tell)


def is_offline() -> bool:
    """Whether the network is not to be touched."""
    asked = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return asked.upper() in ("1", "ON", "YES", "TRUE")


def is_whole(path: Path, file: RemoteFile) -> bool:
    try:
        return path.stat().st_size == file.size_bytes
    except OSError:
        return False


def free_bytes() -> int:
    """The space that is left where the hub's files are kept."""
    folder = hub_cache()
    while not os.path.exists(folder):  # noqa: PTH110 - Path.exists raises for what may not be looked into
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _answered(ask: Callable[[], Answer], wanted: HubSpec, tell: Tell) -> Answer:
    """What the hub answers, asked again after a wait, which is told, where it is busy. Raises DownloadError,
    ModelNotFoundError."""
    for failures in count(1):
        try:
            return ask()
        except http_error() as error:
            wait_s = None if kind(error, "ConnectError") else wait_before_retry_s(error, failures)
            if wait_s is None:
                raise explained(error, wanted) from error
            tell(f"{reason(error)}: trying again in {wait_s:.0f} s")
            time.sleep(wait_s)
        except UnicodeEncodeError as error:
            raise DownloadError("the token cannot be sent", why="it is not ASCII", hint="is HF_TOKEN right?") from error
        except OSError as error:  # what huggingface_hub keeps in its folder is not to be read
            raise DownloadError("the token cannot be looked up", why=str(error), hint="is HF_HOME right?") from error
    raise AssertionError


# --- listings ---------------------------------------------------------------------------------------------------------


def _listed(about: ModelInfo, wanted: HubSpec) -> tuple[str, dict[str, RemoteFile]]:
    """The commit and the GGUF files of a listing, from which paths on this machine are made. Raises DownloadError."""
    files = {}
    for sibling in about.siblings or []:
        name = sibling.rfilename
        if not name.lower().endswith(".gguf"):
            continue
        if not _is_name(name):
            raise DownloadError(f"{wanted.repository} is refused", why=f"it lists a file called {name!r}")
        etag = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
        if not sibling.size or not etag or not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", etag):
            raise DownloadError(f"{host()} does not say what {name} holds", why="neither size nor hash of it is told")
        files[name] = RemoteFile(name, sibling.size, etag)
    if not re.fullmatch("[0-9a-f]{40}", about.sha or ""):
        raise DownloadError(f"{host()} does not answer as a hub does", why="it names no commit")
    return str(about.sha), files


def _is_name(name: str) -> bool:
    """Whether a name stays within the folder it is put into, on any system."""
    inside = {"", ".", ".."}.isdisjoint(name.split("/"))
    return inside and "\\" not in name and not PureWindowsPath(name).anchor and name.isprintable()


def _here_bytes(download: Download, file: RemoteFile) -> int:
    if is_whole(download.place(file), file) or is_whole(download.blob(file), file):
        return file.size_bytes
    try:
        here = download.partial(file).stat().st_size
    except OSError:
        return 0
    return here if here <= file.size_bytes else 0


def _plan_offline(wanted: HubSpec) -> Download:
    first = cached(wanted)
    if first is None:
        check_unambiguous(wanted)
        missing = wanted.file or _missing_part(wanted)
        which = f"{missing} of {wanted.repository}" if missing else str(wanted)
        why = "--offline or HF_HUB_OFFLINE forbids to fetch it"
        hint = f"without these: edgespec pull {wanted}"
        raise DownloadError(f"{which} is not on this machine", why=why, hint=hint)
    here = cached_files(wanted.repository, wanted.revision)
    first_name = next(name for name, path in here.items() if path == first)
    files = tuple(RemoteFile(name, here[name].stat().st_size, "") for name in parts_of(first_name))
    commit = first.relative_to(repository_folder(wanted.repository) / "snapshots").parts[0]
    return Download(wanted, commit, files, tuple(file.size_bytes for file in files), free_bytes())


def _missing_part(wanted: HubSpec) -> str:
    """The part of a split model that is not here, if others are."""
    here = cached_files(wanted.repository, wanted.revision)
    try:
        return next((part for part in parts_of(choose(list(here), wanted.quant)) if part not in here), "")
    except ModelNotFoundError:
        return ""
