"""Models for jobs: in a worker process that is started again if it dies, or on servers or cluster nodes."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep
from typing import TYPE_CHECKING

from edgespec.cancel import CancelFlag
from edgespec.cli.terminal.output import Output
from edgespec.closable import Closable
from edgespec.errors import GenerationError
from edgespec.events import PROGRESS
from edgespec.runtime.worker import Worker
from edgespec.runtime.worker.death import lost_workers
from edgespec.settings import LoadSettings, Request
from edgespec.text.figures import counted

if TYPE_CHECKING:
    from edgespec.remote.fleet import Fleet

PATIENCE_S, RETRY_S = 60.0, 1.0  # to reach RPC workers again


class OpenModel(Closable):
    """A model for a job, whose notes are shown once. Raises UsageError if the settings in `asked` are invalid for the
    model."""

    reopen: Callable[[GenerationError], Worker] | None = None

    def __init__(self, worker: Worker | Fleet, asked: Request, output: Output) -> None:
        self.worker, self._output = worker, output
        self.where: Callable[[], list[str]] = list  # the progress of a job names only other machines
        try:
            worker.check_settings(asked)
        except BaseException:
            self.close()
            raise

    def show_notes(self) -> None:
        """Show new notes."""
        for note in self.worker.notes.take():
            self._output.note(note)

    def close(self) -> None:
        self.show_notes()
        self.worker.close()


def members(fleet: Fleet, asked: Request, output: Output) -> OpenModel:
    """Return the model of servers or cluster nodes."""
    model = OpenModel(fleet, asked, output)
    fleet.tell = model.show_notes
    model.where = lambda: [counted(fleet.n_members, fleet.kind)]
    return model


class ReopenedModel(OpenModel):
    """A model in a worker process, which is started again if it dies. Raises also the errors of loading."""

    worker: Worker

    def __init__(self, settings: LoadSettings, asked: Request, output: Output, cancel: CancelFlag) -> None:
        self._settings, self._output, self._cancel = settings, output, cancel
        super().__init__(self._open(), asked, output)

    def _open(self) -> Worker:
        name, output = self._settings.model, self._output

        def progress(what: str, done: float) -> None:
            if what != "prompt":  # there are many; the progress of the job is shown
                output.progress(PROGRESS[what].format(name), done)

        with output.showing_progress():
            return Worker(self._settings, progress, self._cancel)

    def reopen(self, error: GenerationError) -> Worker:
        self._output.note(f"{error.line}; restarting it")
        self.close()
        until_s = monotonic() + PATIENCE_S
        while True:
            try:
                worker = self._open()
            except GenerationError as failed:
                if not lost_workers(self._settings, failed) or self._cancel.is_set() or monotonic() > until_s:
                    raise
                sleep(RETRY_S)
            else:
                self.worker = worker
                return worker
