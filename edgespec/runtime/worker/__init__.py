"""The runtime in a process of its own: whatever becomes of that process, the conversation survives it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from edgespec.cancel import CancelFlag
from edgespec.core.stats import Stats
from edgespec.errors import EdgespecError
from edgespec.events import Progress
from edgespec.runtime.backend import Backend
from edgespec.runtime.options import DraftingOptions, drafting_changes
from edgespec.runtime.worker.death import NoReplyError, Remedy, WorkerDiedError, remedies
from edgespec.runtime.worker.pipes import Pipes
from edgespec.settings import LoadSettings, Message, Request

if TYPE_CHECKING:
    from edgespec.core.policy.measured import PolicyVerdict

__all__ = ["LoadingStoppedError", "NoReplyError", "Remedy", "Worker", "WorkerDiedError", "remedies"]

AHEAD = 2  # requests that are sent for each that can be answered at a time


class LoadingStoppedError(EdgespecError):
    """The cancel flag was set before the model was loaded."""


class Worker(Backend):
    """A `Runtime` in a process of its own, with the same requests, events and errors.

    It loads before it returns, calls `progress` as a Runtime does, and stops when `cancel` is set: LoadingStoppedError.
    It may be asked from several threads; what asks the child waits for a forward pass if that is generating. A child
    that gives no sign of life for half a minute is ended. Once the child has died everything raises WorkerDiedError.
    `describe`, `settings`, `notes` and `stats` (of the last answer) are what the parent remembers, and always there. A
    script that makes one needs `if __name__ == "__main__":`, since its module is imported by the child too.
    """

    def __init__(
        self, settings: LoadSettings, progress: Progress | None = None, cancel: CancelFlag | None = None
    ) -> None:
        self.settings = settings
        self.notes: list[str] = []
        self._within_s = float("inf")
        self.loop: Pipes = Pipes(settings, progress or (lambda what, done: None), self.notes)
        try:
            loaded = self.loop.loaded(cancel or CancelFlag())
            if loaded is None:
                raise LoadingStoppedError(f"loading {settings.model} was cancelled")
        except BaseException:
            self.loop.kill()
            raise
        self.has_chat_template, self.settings, self._about = loaded

    @property
    def stats(self) -> Stats:
        """Those of the answer that ended last, empty while another one is generated."""
        return self.loop.stats

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked for anything."""
        pipes = self.loop
        return not pipes.is_closed and pipes.death is None and not wait([pipes.process.sentinel], timeout=0)

    def within(self, seconds: float) -> Worker:
        """The same worker, for a question to which nobody waits for a reply any longer: NoReplyError."""
        asked = copy(self)
        asked._within_s = seconds
        return asked

    def close(self) -> None:
        """Let the child save what it learnt and end, or end it; safe to call twice. Answers in the making end."""
        self.loop.close()

    # --- what a Runtime has ---------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """What is loaded, as plain data."""
        return dict(self._about)

    def draft_with(self, **changes: Unpack[DraftingOptions]) -> None:
        """Draft in another way from the next answer on, as `Runtime.draft_with` does. Raises UsageError."""
        self.settings, self._about = self._call("draft_with", **drafting_changes(changes))

    def pace_verdicts(self, request: Request) -> list[PolicyVerdict]:
        """Why drafters guess or rest on requests like this one; empty where no pace measures it."""
        verdicts: list[PolicyVerdict] = self._call("pace_verdicts", request)
        return verdicts

    def check_settings(self, request: Request) -> None:
        """Whether this can be meant for this model, whatever the prompt. Raises UsageError."""
        self._call("check_settings", request)

    def count(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt that these messages make."""
        return len(self._tokens(messages))

    def tokenize(self, request: Request) -> list[int]:
        """The prompt of a request as ids. Raises UsageError."""
        return list(self._call("prompts.of", request).tokens)

    def prompt_length(self, request: Request) -> int:
        """The number of tokens of a request's prompt, however many the context holds. Raises UsageError."""
        return len(self._call("prompts.tokenized", request).tokens)

    def token_text(self, token: int) -> str:
        """What one id stands for; a part of a character shows as U+FFFD."""
        return str(self._call("token_text", token))

    def render(self, request: Request) -> str:
        """The messages of a request as the model's chat template writes them. Raises UsageError."""
        return str(self._call("prompts.render", request))

    def token_ids(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """A text as ids. Raises UsageError."""
        return list(self._call("prompts.token_ids", text, add_special=add_special, parse_special=parse_special))

    def token_bytes(self, tokens: Sequence[int]) -> list[bytes]:
        """The bytes of each id. Raises UsageError."""
        return list(self._call("prompts.token_bytes", list(tokens)))

    def slots(self) -> list[dict[str, Any]]:
        """What each slot holds and does, as plain data."""
        return list(self._call("engine.scheduler.describe"))

    def prefix_cache(self) -> dict[str, int]:
        """What main memory keeps of prompts that have lost their slot, and what it was good for."""
        return dict(self._call("engine.scheduler.cache.describe"))

    def keep_state(self, messages: Sequence[Message], file: Path, most_bytes: int, within_s: float = 60.0) -> int:
        """Let the child write what its KV cache has of a chat, as `Runtime.keep_state`."""
        return int(self._call("kept_states.keep", self._tokens(messages), file, most_bytes, within_s))

    def recall_state(self, messages: Sequence[Message], file: Path) -> int:
        """Let the child read it, as `Runtime.recall_state`."""
        return int(self._call("kept_states.recall", self._tokens(messages), file))

    def forget(self) -> None:
        """Let the next answer find nothing in a cache that the last one has left."""
        self._call("forget")

    @property
    def room(self) -> int:
        return AHEAD * int(self._about["sequences"])

    def _tokens(self, messages: Sequence[Message]) -> list[int]:
        return list(self._call("prompts.tokens_of", list(messages)))

    def _call(self, name: str, *args: Any, **settings: Any) -> Any:
        """What the child's method of that name returns or raises."""
        return self.loop.call(name, args, settings, self._within_s)
