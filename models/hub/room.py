"""Whether there is room for a download, and what of the same repository would fit."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.files.paths import is_writable
from edgespec.models.hub.cache import hub_cache
from edgespec.models.hub.repository import Download, free_bytes
from edgespec.models.hub.requests import DownloadError
from edgespec.models.names.spec import HubSpec
from edgespec.text.figures import size_of


def check_space(downloads: Sequence[Download]) -> None:
    """Raises DownloadError if what is missing of all these has no place or no room."""
    missing_bytes = {
        download.blob(file): file.size_bytes - here_bytes
        for download in downloads
        for file, here_bytes in zip(download.files, download.here_bytes, strict=True)
    }
    free, needed = free_bytes(), sum(missing_bytes.values())
    if needed and not is_writable(hub_cache()):
        raise DownloadError(f"{hub_cache()} is not writable", hint="set HF_HOME to a folder you own")
    if needed > free:
        what, instead = "all of them", ""
        if len(downloads) == 1:
            what, instead = str(downloads[0].wanted), _that_fits(downloads[0], free)
        raise DownloadError(
            f"there is not enough disk space for {what}",
            why=f"{size_of(needed)} needed, {size_of(free)} free in {hub_cache()}",
            hint=f"free some space, {instead}or set HF_HOME to a folder on another disk",
        )


def _that_fits(download: Download, free: int) -> str:
    """The largest smaller model of the repository that would fit, as a part of a hint."""
    fitting = [offer for offer in download.offers if offer.size_bytes <= min(free, download.size_bytes - 1)]
    if not fitting:
        return ""
    best = fitting[-1]
    name = HubSpec(download.wanted.repository, "" if best.quant else best.file, best.quant, download.wanted.revision)
    return f"use {best.quant or best.file} ({size_of(best.size_bytes)}: edgespec pull {name}), "
