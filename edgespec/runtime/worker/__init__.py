"""A model in a worker process, so that the program survives a crash of llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.events import Progress
from edgespec.runtime.backend import Backend
from edgespec.runtime.options import DraftingOptions, drafting_changes
from edgespec.runtime.worker.death import LoadingStoppedError, NoReplyError, Remedy, WorkerDiedError, remedies
from edgespec.runtime.worker.pipes import Pipes
from edgespec.settings import LoadSettings, Message, Request

if TYPE_CHECKING:
    from edgespec.core.policy.policy import PolicyVerdict
    from edgespec.llama.model import Model

__all__ = ["LoadingStoppedError", "NoReplyError", "Remedy", "Worker", "WorkerDiedError", "remedies"]

AHEAD = 2  # requests that are sent for each slot


class Worker(Backend):
    """A `Runtime` in a worker process, with the same requests, events and errors.

    The constructor returns when the model is loaded, and raises LoadingStoppedError when `cancel` is set before. All
    methods may be called from several threads. Methods that ask the process wait for a forward pass if it is
    generating. A process that does not answer pings for half a minute is ended. After its death, methods raise
    WorkerDiedError; `describe`, `settings`, `notes` and `stats` still work. A script that makes a Worker needs
    `if __name__ == "__main__":`, since the process imports the main module too.
    """

    def __init__(
        self, settings: LoadSettings, progress: Progress | None = None, cancel: CancelFlag | None = None
    ) -> None:
        self.settings = settings
        self.notes: list[str] = []
        self._within_s = float("inf")
        self.loop: Pipes = Pipes(settings, progress or (lambda what, done: None), self.notes)
        try:
            self.has_chat_template, self.settings, self._about = self.loop.loaded(cancel or CancelFlag())
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

    # --- what a Runtime has ---------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Return what is loaded, as plain data."""
        return dict(self._about)

    def draft_with(self, **changes: Unpack[DraftingOptions]) -> None:
        """Change the drafting from the next answer on, as `Runtime.draft_with` does. Raises UsageError."""
        self.settings, self._about = self._call("draft_with", **drafting_changes(changes))

    def pace_verdicts(self, request: Request) -> list[PolicyVerdict]:
        """Return why drafters are active or off for requests like this one, as `Runtime.pace_verdicts` does."""
        verdicts: list[PolicyVerdict] = self._call("pace_verdicts", request)
        return verdicts

    def check_settings(self, request: Request) -> None:
        """Raise UsageError if the model does not support the settings of a request, whichever prompt it has. A model
        that cannot generate has no such settings."""
        if not self._about["pooling"]:
            self._call("check_settings", request)

    def count(self, messages: Sequence[Message], template: str = "") -> int:
        """Return the number of prompt tokens of these messages."""
        return len(self._tokens(messages, template))

    def tokenize(self, request: Request) -> list[int]:
        """Return the prompt of a request as ids. Raises UsageError."""
        return list(self._call("prompts.ids", request))

    def prompt_length(self, request: Request) -> int:
        """Return the number of tokens of a prompt, which may be more than the context holds. Raises UsageError."""
        return int(self._call("prompts.n_tokens", request))

    def token_text(self, token: int) -> str:
        """Return the text of a token; a part of a character is U+FFFD."""
        return str(self._call("token_text", token))

    def render(self, request: Request) -> str:
        """Return the messages of a request as the chat template writes them. Raises UsageError."""
        return str(self._call("prompts.render", request))

    def token_ids(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return a text as ids. Raises UsageError."""
        return list(self._call("prompts.token_ids", text, add_special=add_special, parse_special=parse_special))

    def token_bytes(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the bytes of each id. Raises UsageError."""
        return list(self._call("prompts.token_bytes", list(tokens)))

    def open_vocabulary(self) -> Model:
        """Open the model without its weights in this process, for questions that must not wait for the worker."""
        from edgespec.llama.model import Model

        return Model.load_vocabulary(self._about["model"])

    def slots(self) -> list[dict[str, Any]]:
        """Return the contents and the work of each slot, as plain data."""
        return list(self._call("engine.scheduler.describe"))

    def prefix_cache(self) -> dict[str, int]:
        """Return figures of the prefix cache, such as how often it was used."""
        return dict(self._call("engine.scheduler.cache.describe"))

    def keep_state(
        self, messages: Sequence[Message], file: Path, most_bytes: int, within_s: float = 60.0, template: str = ""
    ) -> int:
        """Write the KV cache of a chat to a file, as `Runtime.keep_state` does."""
        return int(self._call("kept_states.keep", self._tokens(messages, template), file, most_bytes, within_s))

    def recall_state(self, messages: Sequence[Message], file: Path, template: str = "") -> int:
        """Load the KV cache of a chat from a file, as `Runtime.recall_state` does."""
        return int(self._call("kept_states.recall", self._tokens(messages, template), file))

    def forget(self) -> None:
        """Clear the KV caches."""
        self._call("forget")

    @property
    def room(self) -> int:
        return AHEAD * int(self._about["sequences"])

    def _tokens(self, messages: Sequence[Message], template: str) -> list[int]:
        return list(self._call("prompts.tokens_of", list(messages), template))

    def _call(self, name: str, *args: Any, **settings: Any) -> Any:
        """Call a method of the Runtime in the worker process, and return or raise what it does."""
        return self.loop.call(name, args, settings, self._within_s)
