"""Download a model into the shared Hugging Face cache: several parts at once, resumable, each verified by its hash.

huggingface_hub 2.4 is used for addresses, its client and its cache's layout, but not for the transfer
(`hf_hub_download`): it deletes what came of an interrupted download, does not compute hashes, updates the branch before
the files are here, and cannot be cancelled while the network is silent. Here the received part stays in
`blobs/<etag>.incomplete`, and becomes `blobs/<etag>` when its hash is right; then it is linked as huggingface_hub does.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from edgespec.cancel import CancelFlag
from edgespec.files.paths import write_whole
from edgespec.models.hub import requests
from edgespec.models.hub.cache import commit_of, hub_cache, repository_folder
from edgespec.models.hub.disk import LOOK_S, DownloadCancelled, Progress, alone, disk_errors, etag_of, file_lock, link
from edgespec.models.hub.repository import Download, RemoteFile, is_whole, size_here
from edgespec.models.hub.requests import (
    DownloadError,
    OtherAnswerError,
    Patience,
    Tell,
    explained,
    headers,
    host,
    how_to_resume,
    http_error,
    session,
    timeout_s,
)
from edgespec.text.figures import size_of

CONNECTIONS = 3


def fetch(
    download: Download, progress: Callable[[Progress], None], cancel: CancelFlag, tell: Tell = lambda _: None
) -> Path:
    """Download what is missing and return the path of the model, for a split one that of the first part.

    `progress` is called from time to time and once at the end, `tell` with notes: waits and retries. Both are called in
    the caller's thread. Raises DownloadError, including DownloadCancelled once `cancel` is set; received parts stay on
    the disk.
    """
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
    deadline_s = time.monotonic() + 1  # a thread that waits for the network notices only when the network answers
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    job.pass_on(tell)
    progress(job.progress())
    if job.failures:
        raise job.failures[0]
    is_here = all(is_whole(download.place(file), file) for file in download.files)
    if cancel.is_set() and not is_here:
        here, whole = size_of(job.progress().here_bytes), size_of(download.size_bytes)
        raise DownloadCancelled(
            f"stopped: {here} of {whole} downloaded", hint=how_to_resume(download.wanted.repository)
        )
    if not is_here:
        raise DownloadError(
            f"{download.wanted} was deleted", why="another program deletes it", hint="download it again"
        )
    with disk_errors(hub_cache(), "HF_HOME"):
        _record_commit(download)
    return download.path


def _record_commit(download: Download) -> None:
    """Let the branch or tag refer to the commit. Until all of it was here, an older commit could be used."""
    repository, revision = download.wanted.repository, download.wanted.revision
    if commit_of(repository, revision) == download.commit:
        return
    folder = repository_folder(repository)
    ref = folder / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    # Not in `refs`, where every file counts as a branch; two threads may do this at once.
    written = folder / f"commit.{os.getpid()}.{threading.get_ident()}"
    try:
        write_whole(written, download.commit)
        written.replace(ref)
    finally:
        written.unlink(missing_ok=True)


class _Stopped(Exception):  # noqa: N818 - nothing went wrong
    """A file need not be continued."""


class _Job:
    """The files of one download, which several threads process."""

    def __init__(self, download: Download) -> None:
        self.download = download
        self.stopped = threading.Event()
        self.failures: list[Exception] = []
        self._todo = deque(download.files)
        self._here = {file.name: here for file, here in zip(download.files, download.here_bytes, strict=True)}
        self._transferred_bytes, self._done = 0, 0
        self._counting = threading.Lock()
        self._notes: deque[str] = deque()
        self._reported: set[str] = set()  # why requests were repeated

    def work(self) -> None:
        """Download files until none is left."""
        try:
            while not self.stopped.is_set() and (file := self._next()):
                self._fetch(file)
                with self._counting:
                    self._done += 1
        except _Stopped:
            return
        except Exception as error:
            self.failures.append(error)
            self.stopped.set()

    def progress(self) -> Progress:
        with self._counting:
            here, size_bytes = sum(self._here.values()), self.download.size_bytes
            is_verifying = here == size_bytes and self._done < len(self.download.files)
            step = f"checking the hash of {size_of(size_bytes)}" if is_verifying else ""
            return Progress(here, self._transferred_bytes, self._done, step, float(is_verifying))

    def pass_on(self, tell: Tell) -> None:
        while self._notes:
            tell(self._notes.popleft())

    def _next(self) -> RemoteFile | None:
        with self._counting:
            return self._todo.popleft() if self._todo else None

    def _fetch(self, file: RemoteFile) -> None:
        place, blob, partial = (each(file) for each in (self.download.place, self.download.blob, self.download.partial))
        if is_whole(place, file):
            return
        note = f"another program is downloading {file.name}: waiting for it"
        with (
            disk_errors(hub_cache(), "HF_HOME"),
            alone(
                file_lock(self.download.wanted.repository, file.etag),
                lambda: self._notes.append(note),
                self._check_stopped,
            ),
        ):
            is_new = not is_whole(blob, file) and not is_whole(place, file)
            if is_new:
                self._receive_verified(file, partial)
                partial.replace(blob)
            self._set_here(file, file.size_bytes)
            if not is_whole(place, file):
                link(blob, place, is_new=is_new)

    def _receive_verified(self, file: RemoteFile, partial: Path) -> None:
        """Complete `partial`, with the right hash; an earlier part that leads to another hash is downloaded again.

        Raises DownloadError, and removes the file, if the received content is wrong.
        """
        while True:
            is_resumed = size_here(partial) > 0
            self._receive_all(file, partial)
            if etag_of(partial, file.etag, self._check_stopped) == file.etag:
                return
            partial.unlink()
            if not is_resumed:
                raise DownloadError(
                    f"{file.name} was not downloaded correctly",
                    why=f"its hash differs from the one given by {host()}; it was removed",
                    hint="download it again; if that happens again, something between here and there changes it",
                )
            note = f"the partial download of {file.name} belongs to another file: starting from the beginning"
            self._notes.append(note)

    def _receive_all(self, file: RemoteFile, partial: Path) -> None:
        """Continue `partial` until it is as long as the file, pausing when the network does."""
        if size_here(partial) > file.size_bytes:
            partial.unlink()
        patience = Patience(requests.FETCHING_S, self._notes.append, self._reported)
        while (here := size_here(partial)) < file.size_bytes:
            error: Exception | None = None
            try:
                self._receive(file, partial, here)
            except (http_error(), OtherAnswerError) as caught:
                error = caught
            self._check_stopped()
            if size_here(partial) >= file.size_bytes:
                return
            error = error or ConnectionError("the download ended too early")
            if size_here(partial) > here:
                patience.renew()
            wait_s = patience.wait_s(error)
            if wait_s is None:
                raise explained(error, self.download.wanted) from error
            self.stopped.wait(wait_s)
            self._check_stopped()

    def _receive(self, file: RemoteFile, partial: Path, here: int) -> None:
        """Append the hub's content of the file from `here` on. Raises what httpx raises, and OSError.

        The address is requested each time, since the addresses that it redirects to expire. httpx sends the token to no
        other host.
        """
        from huggingface_hub import hf_hub_url

        request = headers() | ({"range": f"bytes={here}-"} if here else {})
        url = hf_hub_url(self.download.wanted.repository, file.name, revision=self.download.commit)
        with session().stream("GET", url, headers=request, timeout=timeout_s()) as response:
            response.raise_for_status()
            here = _first_byte(response.status_code, response.headers, file, here)
            partial.parent.mkdir(parents=True, exist_ok=True)  # somebody may have deleted it meanwhile
            with partial.open("ab") as received:
                received.truncate(here)
                self._set_here(file, here)
                for chunk in response.iter_raw():
                    self._check_stopped()
                    received.write(chunk)
                    received.flush()  # so that it survives this process
                    here += len(chunk)
                    self._set_here(file, here, len(chunk))
                    if here > file.size_bytes:
                        return

    def _check_stopped(self) -> None:
        if self.stopped.is_set():
            raise _Stopped

    def _set_here(self, file: RemoteFile, here: int, received: int = 0) -> None:
        with self._counting:
            self._here[file.name] = min(here, file.size_bytes)
            self._transferred_bytes += received


def _first_byte(status: int, headers: Mapping[str, str], file: RemoteFile, requested: int) -> int:
    """Return the offset of an answer in the file: the requested one, or 0.

    Raises OtherAnswerError if the answer is not a part of this file, but a login page for instance.
    """
    sent = headers.get("content-range", "") if status == 206 else headers.get("content-length", "")
    if status == 206 and sent.startswith(f"bytes {requested}-") and sent.endswith(f"/{file.size_bytes}"):
        return requested
    if status == 200 and sent == str(file.size_bytes):
        return 0
    raise OtherAnswerError(f"received {headers.get('content-type') or 'something else'} instead")
