"""Models that a command needs and that are not on this machine: fetched once the user has agreed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from edgespec.cancel import CancelFlag
from edgespec.cli.interrupt import Interrupts
from edgespec.cli.output import Output
from edgespec.models.spec import NotFetchedError, resolve
from edgespec.settings import AUTO_DRAFT


def fetch_missing(ctx: click.Context, specs: Sequence[str | None], output: Output, *, yes: bool) -> None:
    """Fetch what these specs name and is not here, with the draft that the catalogue has for it.

    Raises NotFetchedError where nobody can be asked, or says no, and what fetching raises.
    """
    for spec in specs:
        if spec is None or spec == AUTO_DRAFT:
            continue
        try:
            resolve(spec)
        except NotFetchedError as missing:
            _fetch(ctx, spec, missing, output, yes=yes)


def _fetch(ctx: click.Context, spec: str, missing: NotFetchedError, output: Output, *, yes: bool) -> None:
    from edgespec.cli.pull import announce, fetch_item, items_of, lack_of_room, plan_item
    from edgespec.models.hub import is_offline

    can_ask = sys.stdin is not None and sys.stdin.isatty() and output.stderr_is_terminal
    if is_offline() or not (yes or can_ask):
        raise missing
    target, *drafts = items = items_of((spec,), None, with_drafts=True)
    for item in items:
        plan_item(item, output)
        announce(item, output)
    if target.error is not None:
        raise target.error
    lack = lack_of_room(items)
    for draft in drafts:
        draft.error = draft.error or lack
        if draft.error is not None:
            output.note(f"its draft cannot be fetched, so it goes without: {draft.error.what}")
    if not yes and not click.confirm("Fetch it?" if len(items) == 1 else "Fetch them?", default=True, err=True):
        raise missing
    cancel, interrupts = CancelFlag(), ctx.find_object(Interrupts) or Interrupts()
    with interrupts.cancelling(cancel):
        for item in items:
            fetch_item(item, output, cancel)
    interrupts.raise_if_received()
    if target.error is not None:
        raise target.error
