"""Models for jobs: in a worker process that is started again if it dies, or on servers or cluster nodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from edgespec.cancel import CancelFlag
from edgespec.cli.setup.models import show_notes
from edgespec.cli.terminal.output import Output
from edgespec.events import PROGRESS
from edgespec.llm.fleet import Fleet, Member, Recruits
from edgespec.llm.notes import Notes
from edgespec.runtime.worker import Worker
from edgespec.runtime.worker.restarted import RestartedWorker
from edgespec.settings import LoadSettings, Request


def open_worker(settings: LoadSettings, output: Output, cancel: CancelFlag, notes: Notes | None = None) -> Worker:
    """Load a model in a worker process, and show the progress. Raises the errors of loading."""

    def progress(what: str, done: float) -> None:
        if what != "prompt":  # there are many; the progress of the job is shown
            output.progress(PROGRESS[what].format(settings.model), done)

    with output.showing_progress():
        return Worker(settings, progress, cancel, notes)


def open_model(settings: LoadSettings, asked: Request, output: Output, cancel: CancelFlag) -> Fleet:
    """Load a model on this machine. Raises the errors of loading, and UsageError as `fleet_of` does."""
    notes = Notes()
    member = RestartedWorker(partial(open_worker, settings, output, cancel), cancel, notes)
    return fleet_of([member], asked, output, room=member.worker.room, notes=notes)


def fleet_of(
    members: Sequence[Member],
    asked: Request,
    output: Output,
    *,
    room: int = 0,
    kind: str = "",
    recruits: Recruits | None = None,
    notes: Notes | None = None,
) -> Fleet:
    """Return members as one model, whose notes are shown. Raises UsageError if the settings in `asked` are invalid for
    it."""
    fleet = Fleet(members, room, kind=kind, recruits=recruits, notes=notes)
    fleet.tell = partial(show_notes, fleet, output)
    try:
        fleet.check_settings(asked)
    except BaseException:
        show_notes(fleet, output)
        fleet.close()
        raise
    return fleet
