"""Download the models that a command needs, after asking."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from edgespec.cancel import CancelFlag
from edgespec.cli.call import Call
from edgespec.cli.terminal.output import Output
from edgespec.models.names.spec import NotFetchedError, resolve
from edgespec.settings import AUTO_DRAFT, LoadSettings
from edgespec.text.figures import size_of

if TYPE_CHECKING:
    from edgespec.models.hub.pulling import Item


Ask = Callable[[str], bool]


def confirmed(question: str) -> bool:
    """Ask the user a question whose default answer is yes."""
    return click.confirm(question, default=True, err=True)


def fetch_models(
    call: Call, settings: LoadSettings, *, modes: Sequence[str] = (), ask: Ask = confirmed
) -> LoadSettings:
    """Download the models that these settings need, or that these modes of a benchmark need.

    Returns the settings, without a draft model if the default draft could not be downloaded. Raises as `fetch_missing`
    does.
    """
    named = None if settings.draft_model == AUTO_DRAFT else settings.draft_model
    drafts_of = [settings.model] if named is None and uses_draft(settings, modes) else []
    drafts = [named] if named else []
    has_all = fetch_missing(call, [settings.model, *drafts], drafts_of=drafts_of, drafts=drafts, ask=ask)
    others = settings.without_draft
    return settings if has_all or others == "none" else replace(settings, spec_type=others)


def uses_draft(settings: LoadSettings, modes: Sequence[str] = ()) -> bool:
    """Return whether a draft model, not a head, is used with these settings or in one of these modes. Raises
    UsageError."""
    if modes:
        from edgespec.bench.modes import parse_mode, possible_drafters

        possible = possible_drafters(settings, ["draft"])
        return any("draft" in parse_mode(mode, possible).drafters for mode in modes)
    return settings.uses_draft and "draft" in settings.drafters


def fetch_missing(
    call: Call,
    specs: Sequence[str | None],
    *,
    yes: bool = False,
    drafts_of: Collection[str] = (),
    drafts: Collection[str] = (),
    ask: Ask = confirmed,
) -> bool:
    """Download the missing models among `specs`, and the catalogue's drafts of the models in `drafts_of`.

    The question calls the models in `drafts` drafts; `yes` asks none, as `--yes` does. Returns whether all models exist
    now: a draft that fails is not an error. Raises NotFetchedError if the user declines or cannot be asked, and the
    errors of downloading.
    """
    missing: dict[str, NotFetchedError] = {}
    for spec in filter(None, specs):
        try:
            resolve(spec)
        except NotFetchedError as error:
            missing[spec] = error
    if not missing:
        return True
    from edgespec.models.hub.cache import is_offline
    from edgespec.models.hub.pulling import fetch_items, items_of, missing_bytes, plan_all, without_failed

    output, yes = call.output, yes or call.values["yes"]
    refusal = next(iter(missing.values()))
    can_ask = sys.stdin is not None and sys.stdin.isatty() and output.stderr_is_terminal
    if is_offline() or not (yes or can_ask):
        raise refusal
    items = items_of(list(missing), drafts_of=drafts_of)
    possible = plan_all(items, output)
    coming = [item for item in possible if not item.was_here]
    if not yes and missing_bytes(coming) and not ask(_question(coming, drafts)):
        with_drafts = [target.spec for item in coming for target in item.targets]
        if with_drafts:
            refusal.hint += f", or without its draft: edgespec pull {with_drafts[0]} --no-draft"
        raise refusal
    cancel = CancelFlag()
    with call.interrupts.cancelling(cancel):
        fetch_items(possible, output, cancel)
    tell_stopped(possible, output)
    call.interrupts.raise_if_received()
    return without_failed(possible, output) == items


def tell_stopped(items: Sequence[Item], output: Output) -> None:
    """Show which downloads were stopped by Ctrl-C."""
    for item in items:
        if item.stopped:
            output.control("\r\x1b[K")  # the terminal has written ^C after the line to erase
            output.note(item.stopped)


def _question(items: Sequence[Item], drafts: Collection[str]) -> str:
    """Return the question, which names the models, their sizes and the free space."""
    from edgespec.models.hub.pulling import free_bytes, missing_bytes
    from edgespec.models.memory.fit import fit_of, needed_by_size, room_bytes

    downloads = {item.spec: item.download for item in items if item.download is not None}
    named = []
    for item in items:
        role = "its draft" if item.is_draft else "the draft" if item.spec in drafts else "the model"
        size = f" ({size_of(downloads[item.spec].missing_bytes)})" if len(items) > 1 else ""
        named.append(f"{role} {item.spec}{size}")
    missing, free = size_of(missing_bytes(items)), size_of(free_bytes(items))
    needed, room = needed_by_size(sum(download.size_bytes for download in downloads.values())), room_bytes()
    fit = f"; {fit_of(needed, room)}" if needed > room else ""
    return f"Download {' and '.join(named)}, {missing} ({free} free{fit})?"
