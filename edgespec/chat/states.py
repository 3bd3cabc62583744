"""What the KV cache had of each chat, on disk: the next turn after a restart reads only what is new."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter

from edgespec.chat.answerer import Answerer
from edgespec.errors import EdgespecError
from edgespec.files.bounded_folder import BoundedFolder
from edgespec.files.paths import cache_dir, free_in
from edgespec.settings import Message

MOST_BYTES, FREE_SHARE = 4 << 30, 10  # of all chats, unless the user says so: no more than a tenth of the free disk
KEPT_WITHIN_S = 3.0  # at the end of a chat, or the next model waits for it


def states_folder() -> Path:
    """A file for each chat; all of them may be deleted at any time."""
    return cache_dir() / "chats"


def remove_states(chats: Iterable[str]) -> None:
    """Delete what the KV cache had of these chats."""
    folder = BoundedFolder(states_folder(), 0)
    for chat in chats:
        folder.remove(_file(chat))


class ChatStates:
    """Which chats of a loaded model have something to keep, and which were looked for. `most_bytes` bounds the files
    of all chats (None: choose, 0: keep none)."""

    def __init__(self, most_bytes: int | None) -> None:
        if most_bytes is None:
            most_bytes = min(MOST_BYTES, free_in(states_folder()) // FREE_SHARE)
        self._most_bytes = most_bytes
        self._unkept: dict[str, tuple[Message, ...]] = {}  # by chat, the last one at the end
        self._known: set[str] = set()
        self._removed: set[str] = set()
        self._lock = threading.Lock()  # what is idle keeps beside those who answer

    @property
    def has_news(self) -> bool:
        return bool(self._unkept)

    def answered(self, chat: str, messages: Sequence[Message]) -> None:
        """The model has read these messages, the last of which it wrote."""
        if self._most_bytes:
            with self._lock:
                self._unkept.pop(chat, None)
                self._unkept[chat] = tuple(messages)

    def recall(self, engine: Answerer, chat: str, messages: Sequence[Message]) -> None:
        """Let the engine have what it or another process had of this chat, the first time that it is asked."""
        if self._most_bytes and chat not in self._known and any(one.role == "assistant" for one in messages):
            engine.recall_state(messages, _file(chat))
        self._known.add(chat)

    def keep(self, engine: Answerer, within_s: float = KEPT_WITHIN_S) -> None:
        """Write what is new, the last chat first. Raises what the engine raises."""
        until_s = perf_counter() + within_s
        while left_s := max(0.0, until_s - perf_counter()):
            with self._lock:
                if not self._unkept:
                    return
                chat, messages = next(reversed(self._unkept.items()))
            if engine.keep_state(messages, _file(chat), self._most_bytes, left_s) < 0:
                return
            with self._lock:
                if self._unkept.get(chat) is messages:  # there was no other answer
                    del self._unkept[chat]
                if chat in self._removed:
                    remove_states([chat])

    def keep_last(self, engine: Answerer | None) -> None:
        """The same before a model goes, which nothing hinders."""
        if engine is not None:
            with suppress(EdgespecError):
                self.keep(engine)
        self.lost()

    def lost(self) -> None:
        """The model is gone."""
        self._unkept, self._known = {}, set()

    def remove(self, chat: str) -> None:
        """The chat was deleted."""
        with self._lock:
            self._removed.add(chat)
            self._unkept.pop(chat, None)
        remove_states([chat])


def _file(chat: str) -> Path:
    return states_folder() / f"{chat}.kv"
