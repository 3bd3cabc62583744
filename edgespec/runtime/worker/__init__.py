"""A model in a worker process, so that the program survives a crash of llama.cpp."""

from __future__ import annotations

from copy import copy
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Unpack

from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.events import Progress
from edgespec.llm.info import ModelInfo
from edgespec.llm.model import DraftingOptions, Model, drafting_changes
from edgespec.llm.notes import Notes
from edgespec.models.names.spec import own_settings
from edgespec.runtime.worker.death import LoadingStoppedError, NoReplyError, Remedy, WorkerDiedError, remedies
from edgespec.runtime.worker.pipes import Pipes
from edgespec.settings import LoadSettings, Request

if TYPE_CHECKING:
    from edgespec.llama.model import LlamaModel

__all__ = ["LoadingStoppedError", "NoReplyError", "Remedy", "Worker", "WorkerDiedError", "remedies"]

AHEAD = 2  # requests that are sent for each slot


class Worker(Model):
    """A `Runtime` in a worker process, with the same requests, events and errors. `settings` may be a model's name.

    The constructor returns when the model is loaded, and raises LoadingStoppedError when `cancel` is set before. All
    methods may be called from several threads. Methods that ask the process wait for a forward pass if it is
    generating. A process that does not answer pings for half a minute is ended. After its death, methods raise
    WorkerDiedError; `info`, `settings`, `notes` and `stats` still work. A script that makes a Worker needs
    `if __name__ == "__main__":`, since the process imports the main module too.
    """

    def __init__(
        self,
        settings: LoadSettings | str,
        progress: Progress | None = None,
        cancel: CancelFlag | None = None,
        notes: Notes | None = None,
    ) -> None:
        settings = LoadSettings(settings) if isinstance(settings, str) else settings
        self.notes = Notes() if notes is None else notes
        self._within_s = float("inf")
        self.loop: Pipes = Pipes(settings, progress or (lambda what, done: None), self.notes)
        try:
            loaded: tuple[LoadSettings, ModelInfo] = self.loop.loaded(cancel or CancelFlag())
            self._settings, self._info = loaded
            self.own_settings = own_settings(settings.model)
        except BaseException:
            self.loop.kill()
            raise

    @property
    def stats(self) -> Stats:
        """The statistics of the answer that ended last; empty while another one is generated."""
        return self.loop.stats

    @property
    def is_alive(self) -> bool:
        """True if the process lives and is not closed."""
        pipes = self.loop
        return not pipes.is_closed and pipes.death is None and not wait([pipes.process.sentinel], timeout=0)

    def within(self, seconds: float) -> Worker:
        """Return this worker with a time limit for replies, after which calls raise NoReplyError."""
        asked = copy(self)
        asked._within_s = seconds
        return asked

    def close(self) -> None:
        """End all answers and the process, which saves its measurements first; safe to call twice."""
        self.loop.close()

    # --- what the process says ----------------------------------------------------------------------------------------

    def call(self, name: str, *args: object, **keywords: object) -> Any:
        return self.loop.call(name, args, keywords, self._within_s)

    def draft_with(self, **changes: Unpack[DraftingOptions]) -> None:
        self._settings, self._info = self.call("draft_with", **drafting_changes(changes))

    def check_settings(self, request: Request) -> None:
        """Raise UsageError if the model does not support the settings of a request, whichever prompt it has. A model
        that cannot generate has no such settings."""
        if not self.info.pooling:
            self.call("check_settings", request)

    def prompt_length(self, request: Request) -> int:
        """Return the number of tokens of a prompt, which may be more than the context holds. Raises UsageError."""
        return int(self.call("prompts.n_tokens", request))

    def open_vocabulary(self) -> LlamaModel:
        """Open the model without its weights in this process, for questions that must not wait for the worker."""
        from edgespec.llama.model import LlamaModel

        return LlamaModel.load_vocabulary(self.info.model)

    def slots(self) -> list[dict[str, Any]]:
        """Return the contents and the work of each slot, as plain data."""
        return list(self.call("engine.slots.describe"))

    def prefix_cache(self) -> dict[str, int]:
        """Return figures of the prefix cache, such as how often it was used."""
        return dict(self.call("engine.slots.cache.describe"))

    @property
    def room(self) -> int:
        return AHEAD * self.info.sequences
