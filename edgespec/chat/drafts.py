"""The text in the input field, kept in a file while the program runs: so it outlives a process that is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from filelock import FileLock, Timeout

from edgespec.chat.conversation import UNSENT, Conversation
from edgespec.closable import Closable
from edgespec.files.paths import state_dir
from edgespec.files.unfinished import becoming
from edgespec.history import StoreError


def drafts_dir() -> Path:
    """Folder of the drafts of running programs."""
    return state_dir() / "drafts"


class KeptDraft(Closable):
    """A file with a draft and its chat. While the process lives, it holds the lock next to the file.

    Nothing is kept if the folder cannot be written.
    """

    def __init__(self) -> None:
        self._file = drafts_dir() / f"{token_hex(8)}.json"
        self._lock = FileLock(self._file.with_suffix(".lock"), mode=0o600)
        with suppress(OSError, Timeout):
            drafts_dir().mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock.acquire(timeout=0)

    def write(self, chat: str | None, text: str) -> None:
        """Keep a text; the chat is None before its first message."""
        if not self._lock.is_locked:
            return
        with suppress(OSError):
            if not text:
                self._file.unlink(missing_ok=True)
                return
            with becoming(self._file) as scratch:
                scratch.touch(0o600)
                scratch.write_text(json.dumps([chat, text]), encoding="utf-8")

    def close(self) -> None:
        """Remove the file: the text is saved elsewhere."""
        self.write(None, "")
        _release(self._lock)


def recover(conversation: Conversation) -> None:
    """Save what processes that were killed had not sent, for the next time that its chat is opened."""
    store = conversation.store
    for chat, text in _take_abandoned():
        if chat == conversation.chat:
            conversation.keep_unsent(_joined(conversation.take_unsent(), text))
            continue
        with suppress(StoreError):
            if chat is None:
                store.set_preference(UNSENT, _joined(store.preference(UNSENT), text))
            else:
                settings = dict(store.chat_settings(chat))
                store.save_settings(chat, settings | {UNSENT: _joined(settings.get(UNSENT), text)})


def _joined(*texts: object) -> str:
    return "\n\n".join(str(text) for text in texts if text)


def _take_abandoned() -> Iterator[tuple[str | None, str]]:
    """Yield the drafts of processes that were killed, with their chats, and remove them."""
    for file in sorted(drafts_dir().glob("*.json")):
        lock = FileLock(file.with_suffix(".lock"), mode=0o600)
        with suppress(OSError, Timeout, ValueError):  # it belongs to a running process, or cannot be read
            lock.acquire(timeout=0)
            chat, text = json.loads(file.read_text(encoding="utf-8"))
            yield chat, str(text)
            file.unlink(missing_ok=True)
        _release(lock)


def _release(lock: FileLock) -> None:
    """Give a lock back, and remove its file."""
    if lock.is_locked:
        lock.release()
        with suppress(OSError):
            Path(lock.lock_file).unlink(missing_ok=True)
