"""`edgespec pull`: fetches models of the Hugging Face hub, or goes on with what was begun."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from edgespec.cancel import CancelFlag
from edgespec.cli.command import Command, Option
from edgespec.cli.common import JSON, QUIET, VERBOSE
from edgespec.cli.interrupt import Interrupts
from edgespec.cli.options import OFFLINE, with_options
from edgespec.cli.output import Output
from edgespec.cli.types import ModelSpec, Text
from edgespec.errors import EdgespecError, ModelNotFoundError, UsageError
from edgespec.figures import clock, rate, size_of
from edgespec.models.spec import NAMES, hub_specs, is_path, resolve

if TYPE_CHECKING:
    from edgespec.models.fetch import Progress
    from edgespec.models.hub import Download
    from edgespec.models.spec import HubSpec

SPEED_OVER_S = 5.0

OPTIONS = [
    click.option(
        "--revision", cls=Option, section="Model", config=False, type=Text(), metavar="REVISION",
        show_default="main", help="Branch, tag or commit of the repository.",
    ),
    click.option(
        "--no-draft", cls=Option, section="Model", config=False, is_flag=True,
        help="Leave out the draft model that comes with a name of the catalogue.",
    ),
    OFFLINE,
    click.option(
        "--dry-run", cls=Option, config=False, is_flag=True,
        help="Only say what would be fetched, whether it may be, and whether there is room.",
    ),
    JSON,
    QUIET,
    VERBOSE,
]  # fmt: skip


@dataclass(slots=True)
class Item:
    """One model to be fetched, and what became of it. `wanted` is None for what lies here anyway, at `path`."""

    spec: str
    wanted: HubSpec | None = None
    path: Path | None = None
    download: Download | None = None
    error: EdgespecError | None = None
    was_here: bool = False
    transferred_bytes: int = 0
    elapsed_s: float = 0.0
    is_done: bool = False


@click.command(cls=Command)
@click.argument("specs", metavar="MODEL...", nargs=-1, required=True, type=ModelSpec())
@lambda command: with_options(command, OPTIONS)
@click.pass_context
def pull(ctx: click.Context, /, specs: tuple[str, ...], **values: Any) -> None:
    """Fetch models from the Hugging Face hub.

    MODEL is a repository (hf:owner/name:Q4_K_M), a file in one (hf:owner/name/file.gguf), or a name of the catalogue
    (qwen2.5-7b), whose draft model comes along. A fetch that was stopped, by Ctrl-C or otherwise, goes on where it was.
    """
    output = Output(quiet=values["quiet"])
    output.log_to_stderr(verbose=values["verbose"])
    cancel, interrupts = CancelFlag(), ctx.find_object(Interrupts) or Interrupts()
    items = items_of(specs, values["revision"], with_drafts=not values["no_draft"])
    for item in items:
        plan_item(item, output)
        if not values["dry_run"]:
            announce(item, output)
    if lack := lack_of_room(items):
        for item in items:
            item.error = item.error or (None if item.was_here else lack)
    if not values["dry_run"]:
        with interrupts.cancelling(cancel):
            for item in items:
                fetch_item(item, output, cancel)
    if values["as_json"]:
        output.json({"models": [_about(item) for item in items]})
    else:
        for item in items:
            _show(item, output, dry_run=values["dry_run"])
    interrupts.raise_if_received()
    _raise_failures(items, output)


def items_of(specs: Sequence[str], revision: str | None, *, with_drafts: bool) -> list[Item]:
    """The models that are named, each once, with their drafts. Raises UsageError."""
    if revision and not {"", ".", ".."}.isdisjoint(revision.split("/")):
        raise UsageError(f"'{revision}' cannot be a revision", hint="give a branch, a tag or a commit")
    items: list[Item] = []
    for spec in dict.fromkeys(specs):
        try:
            if spec in NAMES or is_path(spec):
                items.append(_file_here(spec))
                continue
            target, *drafts = hub_specs(spec)
            target = replace(target, revision=revision) if revision else target
            for wanted in [target, *drafts[: int(with_drafts)]]:
                if wanted not in [item.wanted for item in items]:
                    items.append(Item(spec if wanted is target else str(wanted), wanted))
        except EdgespecError as error:
            items.append(Item(spec, error=error))
    return items


def _file_here(spec: str) -> Item:
    path = resolve(spec).path
    if not path.is_file():
        raise ModelNotFoundError(f"{spec} is no file")
    return Item(spec, path=path, was_here=True, is_done=True)


def plan_item(item: Item, output: Output) -> None:
    """Find out what has to be fetched; what keeps it from being fetched is in the item."""
    from edgespec.models.fetch import check_space
    from edgespec.models.hub import check_access, plan

    if item.wanted is None:
        return
    output.progress(f"looking for {item.spec}", None)
    try:
        item.download = plan(item.wanted, output.note)
        item.was_here, item.path = item.download.is_here, item.download.path
        check_space([item.download])
        check_access(item.download, output.note)
    except EdgespecError as error:
        item.error = error
    finally:
        output.end_progress()


def lack_of_room(items: Sequence[Item]) -> EdgespecError | None:
    """What to say where those that could be fetched one by one have no room together."""
    from edgespec.models.fetch import check_space

    try:
        check_space([item.download for item in items if item.download is not None and item.error is None])
    except EdgespecError as error:
        return error
    return None


def announce(item: Item, output: Output) -> None:
    """Say what will be fetched, if anything will."""
    if item.download is not None and not item.was_here and item.error is None:
        files, here = item.download.files, item.download.size_bytes - item.download.missing_bytes
        parts = f" and {len(files) - 1} more parts" if len(files) > 1 else ""
        of_it = f", {size_of(here)} of it here" if here else ""
        output.note(f"{item.spec} is {files[0].name}{parts}, {size_of(item.download.size_bytes)}{of_it}")


def fetch_item(item: Item, output: Output, cancel: CancelFlag) -> None:
    """Fetch what was planned; what comes of it is in the item."""
    from edgespec.models.fetch import DownloadCancelled, fetch

    if item.download is None or item.error is not None or cancel.is_set():
        return
    speed, started_s = Speed(), perf_counter()

    def tell(progress: Progress) -> None:
        item.transferred_bytes = progress.transferred_bytes
        speed.add(perf_counter(), progress.transferred_bytes)
        if item.download is not None and not item.was_here:
            output.progress(_line(item.download, progress, speed), progress.here_bytes / item.download.size_bytes)

    try:
        fetch(item.download, tell, cancel, output.note)
        item.is_done = True
    except DownloadCancelled as stopped:
        output.note(str(stopped))
    except EdgespecError as error:
        item.error = error
    finally:
        item.elapsed_s = perf_counter() - started_s
        output.end_progress()


class Speed:
    """Bytes a second, over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, n_bytes: int) -> None:
        self._seen.append((now_s, n_bytes))
        while now_s - self._seen[0][0] > SPEED_OVER_S and len(self._seen) > 2:
            self._seen.popleft()

    @property
    def bytes_per_s(self) -> float:
        (then_s, then), (now_s, now) = self._seen[0], self._seen[-1]
        return (now - then) / (now_s - then_s) if now_s > then_s else 0.0


def _line(download: Download, progress: Progress, speed: Speed) -> str:
    total = size_of(download.size_bytes)
    if progress.is_verifying:
        return f"checking the hash of {total}"
    n_files = len(download.files)
    file = f"file {min(progress.files_done + 1, n_files)} of {n_files}, " if n_files > 1 else ""
    here = size_of(progress.here_bytes)
    line = f"{file}{here} of {total}, {rate(speed.bytes_per_s / 1e6)} MB/s"
    if speed.bytes_per_s > 0:
        line += f", {clock((download.size_bytes - progress.here_bytes) / speed.bytes_per_s)} left"
    return line


def _show(item: Item, output: Output, *, dry_run: bool) -> None:
    if item.was_here:
        output.line(f"{item.spec}: already here\n  {item.path}")
    elif dry_run and item.download is not None:
        missing, free = size_of(item.download.missing_bytes), size_of(item.download.free_bytes)
        output.line(f"{item.spec}: {missing} to fetch, {free} free")
        for file in item.download.files:
            output.line(f"  {file.name}  {size_of(file.size_bytes)}")
    elif item.is_done and item.transferred_bytes == 0:
        output.line(f"{item.spec}: here now, without a transfer\n  {item.path}")
    elif item.is_done:
        took = f"{size_of(item.transferred_bytes)} fetched in {clock(item.elapsed_s)}"
        output.line(f"{item.spec}: {took}, hash verified\n  {item.path}")


def _about(item: Item) -> dict[str, Any]:
    """An item as JSON."""
    about: dict[str, Any] = {"spec": item.spec, "path": str(item.path) if item.path else None}
    if item.wanted is not None:
        about |= {"repository": item.wanted.repository, "revision": item.wanted.revision}
    if item.download is not None:
        about |= {
            "commit": item.download.commit,
            "files": [{"name": file.name, "size_bytes": file.size_bytes} for file in item.download.files],
            "size_bytes": item.download.size_bytes,
            "missing_bytes": item.download.missing_bytes,
            "free_bytes": item.download.free_bytes,
        }
    about |= {"already_here": item.was_here, "done": item.is_done, "transferred_bytes": item.transferred_bytes}
    return about | {"verified": item.is_done and not item.was_here, "error": str(item.error) if item.error else None}


def _raise_failures(items: list[Item], output: Output) -> None:
    """Raises the only failure there is, or after saying what failed one for all."""
    from edgespec.models.hub_requests import DownloadError

    failed = [item for item in items if item.error is not None]
    if len(items) == 1 and items[0].error is not None:
        raise items[0].error
    named: dict[str, list[str]] = {}
    for item in failed:
        named.setdefault(str(item.error), []).append(item.spec)
    for message, specs in named.items():  # what befalls all, such as no network, is said once
        output.error(message if message.startswith(specs[0]) else f"{', '.join(specs)}: {message}")
    if failed:
        raise DownloadError(f"{len(failed)} of {len(items)} models were not fetched")
