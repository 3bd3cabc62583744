"""Fetching a model into the shared Hugging Face cache: several parts at once, with resume, each verified by its hash.

huggingface_hub's own downloads begin anew when the process that began them is gone. Here what has come stays in
`blobs/<etag>.incomplete`, and becomes `blobs/<etag>` when its hash is right; then it is linked as huggingface_hub does.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from filelock import FileLock, Timeout

from edgespec.cancel import CancelFlag
from edgespec.figures import size_of
from edgespec.models.cache import hub_cache
from edgespec.models.hub import Download, RemoteFile, Tell, free_bytes, is_whole
from edgespec.models.hub_requests import (
    AGAIN,
    DownloadError,
    explained,
    headers,
    host,
    http_error,
    reason,
    timeout_s,
    wait_before_retry_s,
)
from edgespec.models.placing import disk_errors, link, lock_file, remember_commit, remove_old_partials
from edgespec.paths import is_writable

CONNECTIONS = 3
LOOK_S = 0.1  # between two looks at the cancel flag
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a download is: bytes that are here, and of these the ones that came over the network this time; files
    that are done; whether all has come and only hashes are still computed."""

    here_bytes: int
    transferred_bytes: int
    files_done: int
    is_verifying: bool


class DownloadCancelled(DownloadError):  # noqa: N818 - nothing went wrong
    """The user stopped a download."""


def fetch(
    download: Download, progress: Callable[[Progress], None], cancel: CancelFlag, tell: Tell = lambda _: None
) -> Path:
    """Fetch what is missing and return the path of the model, of a split one the first part's.

    `progress` is called every now and then and once at the end, `tell` with what may be worth a word: waits and
    retries. Both hear of it in the caller's thread. Raises DownloadError, and of these DownloadCancelled once `cancel`
    is set; what has come stays on the disk.
    """
    check_space([download])
    job = _Job(download)
    threads = [threading.Thread(target=job.work, daemon=True) for _ in range(min(CONNECTIONS, len(download.files)))]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not job.stopped.is_set():
        next(thread for thread in threads if thread.is_alive() or thread is threads[-1]).join(LOOK_S)
        job.pass_on(tell)
        progress(job.progress())
        if cancel.is_set():
            job.stopped.set()
    deadline_s = time.monotonic() + 1  # one that waits for the network may not hear of it sooner than that answers
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    job.pass_on(tell)
    progress(job.progress())
    if job.failures:
        raise job.failures[0]
    if cancel.is_set() and not download.is_here:
        here, whole = size_of(job.progress().here_bytes), size_of(download.size_bytes)
        raise DownloadCancelled(f"stopped: {here} of {whole} are here", hint=AGAIN)
    with disk_errors(download):
        remember_commit(download)
        remove_old_partials(download)
    return download.path


def check_space(downloads: Sequence[Download]) -> None:
    """Raises DownloadError where what is missing of all these has no place or no room."""
    missing_bytes = {
        download.blob(file): file.size_bytes - here_bytes
        for download in downloads
        for file, here_bytes in zip(download.files, download.here_bytes, strict=True)
    }
    free, needed = free_bytes(), sum(missing_bytes.values())
    if needed and not is_writable(hub_cache()):
        raise DownloadError(f"{hub_cache()} cannot be written", hint="set HF_HOME to a folder of yours")
    if needed > free:
        what = str(downloads[0].wanted) if len(downloads) == 1 else "all of them"
        raise DownloadError(
            f"there is not enough space for {what}",
            why=f"{size_of(needed)} are needed, and {size_of(free)} are free where {hub_cache()} is",
            hint="make room, take a smaller quantisation, or set HF_HOME to a folder on another disk",
        )


class _Stopped(Exception):  # noqa: N818 - nothing went wrong
    """There is no need to go on with a file."""


class _Job:
    """The files of one download, on which several threads work."""

    def __init__(self, download: Download) -> None:
        self.download = download
        self.stopped = threading.Event()
        self.failures: list[Exception] = []
        self._todo = deque(download.files)
        self._here = {file.name: here for file, here in zip(download.files, download.here_bytes, strict=True)}
        self._transferred_bytes, self._done = 0, 0
        self._counting = threading.Lock()
        self._said: SimpleQueue[str] = SimpleQueue()

    def work(self) -> None:
        """Fetch files until none is left."""
        try:
            while not self.stopped.is_set():
                self._fetch(self._todo.popleft())
                with self._counting:
                    self._done += 1
        except (IndexError, _Stopped):
            return
        except Exception as error:
            self.failures.append(error)
            self.stopped.set()

    def progress(self) -> Progress:
        with self._counting:
            here = sum(self._here.values())
            verifying = here == self.download.size_bytes and self._done < len(self.download.files)
            return Progress(here, self._transferred_bytes, self._done, verifying)

    def pass_on(self, tell: Tell) -> None:
        try:
            while True:
                tell(self._said.get_nowait())
        except Empty:
            return

    def _fetch(self, file: RemoteFile) -> None:
        place, blob, partial = (each(file) for each in (self.download.place, self.download.blob, self.download.partial))
        if is_whole(place, file):
            return
        with disk_errors(self.download):
            blob.parent.mkdir(parents=True, exist_ok=True)
            with self._alone(file):
                if not is_whole(blob, file) and not is_whole(place, file):
                    self._receive_all(file, partial)
                    self._verify(file, partial)
                    partial.replace(blob)
                self._set_here(file, file.size_bytes)
                if not is_whole(place, file):
                    link(blob, place)

    @contextmanager
    def _alone(self, file: RemoteFile) -> Iterator[None]:
        """Only one process at a time works on a file; huggingface_hub takes the same lock."""
        path = lock_file(self.download, file.etag)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock, told = FileLock(path, mode=0o664), False
        while True:
            try:
                lock.acquire(timeout=LOOK_S)
                break
            except Timeout:
                if not told:
                    self._said.put(f"another program fetches {file.name}: waiting for it")
                told = True
                self._check_stopped()
        try:
            yield
        finally:
            lock.release()

    def _receive_all(self, file: RemoteFile, partial: Path) -> None:
        """Go on with `partial` until it is as long as the file, with pauses where the network has some."""
        if _size(partial) > file.size_bytes:
            partial.unlink()
        failures = 0
        while (here := _size(partial)) < file.size_bytes:
            error: Exception | None = None
            try:
                self._receive(file, partial, here)
            except http_error() as caught:
                error = caught
            self._check_stopped()
            if _size(partial) >= file.size_bytes:
                return
            error = error or ConnectionError("it ended too early")
            failures = 1 if _size(partial) > here else failures + 1
            wait_s = wait_before_retry_s(error, failures)
            if wait_s is None:
                raise explained(error, self.download.wanted) from error
            self._said.put(f"{reason(error)}: trying again in {wait_s:.0f} s")
            self.stopped.wait(wait_s)
            self._check_stopped()

    def _receive(self, file: RemoteFile, partial: Path, here: int) -> None:
        """Append what the hub sends of the file from `here` on. Raises what httpx raises, and OSError.

        The address is asked for each time, since those it leads to expire. httpx sends the token to no other host.
        """
        from huggingface_hub import get_session, hf_hub_url

        carried = headers() | ({"range": f"bytes={here}-"} if here else {})
        url = hf_hub_url(self.download.wanted.repository, file.name, revision=self.download.commit)
        with (
            get_session().stream("GET", url, headers=carried, timeout=timeout_s()) as response,
            partial.open("ab") as received,
        ):
            response.raise_for_status()
            if response.status_code != 206:  # all of it comes, asked for or not
                received.truncate(0)
                here = 0
            self._set_here(file, here)
            for chunk in response.iter_raw():
                self._check_stopped()
                received.write(chunk)
                received.flush()  # so that it stays whatever happens to this process
                here += len(chunk)
                self._set_here(file, here, len(chunk))
                if here > file.size_bytes:
                    return

    def _verify(self, file: RemoteFile, partial: Path) -> None:
        """Read the file again. Raises DownloadError, and removes it, where it is not what it should be."""
        digest = hashlib.sha256()
        if len(file.etag) == 40:
            digest = hashlib.sha1(f"blob {file.size_bytes}\0".encode(), usedforsecurity=False)  # as git counts it
        with partial.open("rb") as received:
            while chunk := received.read(CHUNK_BYTES):
                self._check_stopped()
                digest.update(chunk)
        if digest.hexdigest() != file.etag:
            partial.unlink()
            raise DownloadError(
                f"what came as {file.name} is not that file",
                why=f"its hash is not the one that {host()} tells; it was removed",
                hint="fetch it again; if that happens again, something between here and there changes it",
            )

    def _check_stopped(self) -> None:
        if self.stopped.is_set():
            raise _Stopped

    def _set_here(self, file: RemoteFile, here: int, came: int = 0) -> None:
        with self._counting:
            self._here[file.name] = min(here, file.size_bytes)
            self._transferred_bytes += came


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
