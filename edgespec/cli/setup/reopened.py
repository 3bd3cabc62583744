"""A model for jobs that continue when its process dies."""

from __future__ import annotations

from time import monotonic, sleep

from edgespec.cancel import CancelFlag
from edgespec.cli.terminal.output import Output
from edgespec.closable import Closable
from edgespec.errors import GenerationError
from edgespec.events import PROGRESS
from edgespec.runtime.worker import Worker
from edgespec.runtime.worker.death import lost_workers
from edgespec.settings import LoadSettings, Request

PATIENCE_S, RETRY_S = 60.0, 1.0  # to reach RPC workers again


class ReopenedModel(Closable):
    """A model in a worker process, which is started again if it dies. Raises UsageError if the settings in `asked` are
    invalid for the model, and the errors of loading."""

    def __init__(self, settings: LoadSettings, asked: Request, output: Output, cancel: CancelFlag) -> None:
        self._settings, self._output, self._cancel = settings, output, cancel
        self._shown: set[str] = set()
        self.worker = self._open()
        try:
            self.worker.check_settings(asked)
        except BaseException:
            self.worker.close()
            raise

    def _open(self) -> Worker:
        name, output = self._settings.model, self._output

        def progress(what: str, done: float) -> None:
            if what != "prompt":  # there are many; the progress of the job is shown
                output.progress(PROGRESS[what].format(name), done)

        with output.showing_progress():
            return Worker(self._settings, progress, self._cancel)

    def reopen(self, error: GenerationError) -> Worker:
        self._output.note(f"{error.line}; restarting it")
        self.worker.close()
        until_s = monotonic() + PATIENCE_S
        while True:
            try:
                self.worker = self._open()
            except GenerationError as failed:
                if not lost_workers(self._settings, failed) or self._cancel.is_set() or monotonic() > until_s:
                    raise
                sleep(RETRY_S)
            else:
                return self.worker

    def where(self) -> list[str]:
        """Return nothing: the progress of a job names only other machines."""
        return []

    def show_notes(self) -> None:
        """Show new notes."""
        for note in self.worker.notes:
            if note not in self._shown:
                self._shown.add(note)
                self._output.note(note)

    def close(self) -> None:
        self.show_notes()
        self.worker.close()
