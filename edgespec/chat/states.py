"""Files with the KV cache of each chat: after a restart only new messages are processed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter

from edgespec.chat.model import ChatModel
from edgespec.errors import EdgespecError
from edgespec.files.paths import cache_dir, free_in
from edgespec.llm.model import Model
from edgespec.settings import Message

MOST_BYTES, FREE_SHARE = 4 << 30, 10  # the default limit: 4 GB, but at most a tenth of the free disk
KEPT_WITHIN_S = 3.0  # the longest time for saving when the program ends or loads another model
IDLE_S = 10.0  # without a message or command
KEPT_WHILE_IDLE_S = 30.0  # the longest time for saving meanwhile; any request to the model ends it earlier

log = logging.getLogger(__name__)


def states_folder() -> Path:
    """Return the folder with a file for each chat; all of them may be deleted at any time."""
    return cache_dir() / "chats"


def remove_states(chats: Iterable[str]) -> None:
    """Delete the files of these chats."""
    for chat in chats:
        with suppress(OSError):
            _file(chat).unlink()


class ChatStates:
    """Saves and restores the KV cache of the chats of a loaded model.

    `most_bytes` limits the size of all files (None: a default, 0: save nothing).
    """

    def __init__(self, most_bytes: int | None) -> None:
        if most_bytes is None:
            most_bytes = min(MOST_BYTES, free_in(states_folder()) // FREE_SHARE)
        self._most_bytes = most_bytes
        # Chats to save, the last used one at the end, each with its messages and the arguments of the chat template.
        self._unkept: dict[str, tuple[tuple[Message, ...], str]] = {}
        self._known: set[str] = set()  # chats that were restored, or answered
        self._removed: set[str] = set()
        self._lock = threading.Lock()  # saving and answering run in different threads
        self._idle: threading.Timer | None = None

    def answered(self, chat: str, messages: Sequence[Message], template: str = "") -> None:
        """Note that the KV cache has these messages, which end with an answer."""
        if self._most_bytes:
            with self._lock:
                self._unkept.pop(chat, None)
                self._unkept[chat] = tuple(messages), template

    def recall(self, engine: Model, chat: str, messages: Sequence[Message], template: str = "") -> None:
        """Restore the KV cache of a chat, before its first answer in this process."""
        if self._most_bytes and chat not in self._known and any(one.role == "assistant" for one in messages):
            engine.recall_state(messages, _file(chat), template)
        self._known.add(chat)

    def leave(self, chat: str) -> None:
        """Restore nothing before the next answer of a chat."""
        self._known.add(chat)

    def keep(self, engine: Model, within_s: float = KEPT_WITHIN_S) -> None:
        """Save the chats that have changed, the last used one first. Raises what the engine raises."""
        until_s = perf_counter() + within_s
        while left_s := max(0.0, until_s - perf_counter()):
            with self._lock:
                if not self._unkept:
                    return
                chat, kept = next(reversed(self._unkept.items()))
            messages, template = kept
            if engine.keep_state(messages, _file(chat), self._most_bytes, left_s, template) < 0:
                return
            with self._lock:
                if self._unkept.get(chat) is kept:  # no other answer came meanwhile
                    del self._unkept[chat]
                if chat in self._removed:
                    remove_states([chat])

    def keep_last(self, engine: Model | None) -> None:
        """Save the chats before a model is unloaded; errors are ignored."""
        if engine is not None:
            with suppress(EdgespecError):
                self.keep(engine)
        self._unkept, self._known = {}, set()

    def begin_idle(self, model: ChatModel) -> None:
        """The user has nothing to wait for: save the chats in a thread, unless `end_idle` is called before."""

        def keep() -> None:
            try:
                with model.watched() as engine:
                    self.keep(engine, KEPT_WHILE_IDLE_S)
            except Exception:  # for example a model that is closed meanwhile
                log.debug("the state of a chat is not saved", exc_info=True)

        self.end_idle()
        if self._unkept:
            self._idle = threading.Timer(IDLE_S, keep)
            self._idle.daemon = True
            self._idle.start()

    def end_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()

    def remove(self, chat: str) -> None:
        """Delete the file of a chat."""
        with self._lock:
            self._removed.add(chat)
            self._unkept.pop(chat, None)
        remove_states([chat])


def _file(chat: str) -> Path:
    return states_folder() / f"{chat}.kv"
