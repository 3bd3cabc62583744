"""The text in the input field, kept in a file while the program runs: so it outlives a process that is killed."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from filelock import FileLock, Timeout

from edgespec.chat.conversation import UNSENT, Conversation
from edgespec.closable import Closable
from edgespec.files.paths import state_dir
from edgespec.files.unfinished import becoming
from edgespec.history import StoreError, UnknownChatError
from edgespec.history.data import valid_text


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

    def close(self, *, is_saved: bool = True) -> None:
        """Remove the file if the text is saved elsewhere; otherwise leave it to the next program that starts."""
        if is_saved:
            self.write(None, "")
        _release(self._lock)


def recover(conversation: Conversation) -> None:
    """Save what processes that ended without saving it had not sent, for the next time that its chat is opened.

    A file whose text the store does not accept stays, as does one that holds something else.
    """
    paths = [*drafts_dir().glob("*.json"), *drafts_dir().glob("*.lock")]  # a lock may be left without a text
    for file in sorted({path.with_suffix(".json") for path in paths}):
        lock = FileLock(file.with_suffix(".lock"), mode=0o600)
        with suppress(OSError, Timeout):  # it belongs to a running process, or cannot be read
            lock.acquire(timeout=0)
            kept = _read(file) if file.exists() else None
            if kept is not None and _save(conversation, *kept):
                file.unlink(missing_ok=True)
        _release(lock)


def _read(file: Path) -> tuple[str | None, str] | None:
    """Return a chat, or None for a new one, and its text; None if the file holds something else. Raises OSError."""
    with suppress(ValueError, RecursionError):
        match json.loads(file.read_text(encoding="utf-8")):
            case [None | str() as chat, str() as text]:
                return chat, valid_text(text)
    return None


def _save(conversation: Conversation, chat: str | None, text: str) -> bool:
    """Add a text to what was not sent in a chat. Return False if the store does not accept it now."""
    if chat == conversation.saved_id:
        return conversation.keep_unsent(_joined(conversation.take_unsent(), text))
    store = conversation.store
    try:
        if chat is None:
            store.set_preference(UNSENT, _joined(store.preference(UNSENT), text))
        else:
            settings = dict(store.chat_settings(chat))
            store.save_settings(chat, settings | {UNSENT: _joined(settings.get(UNSENT), text)})
    except UnknownChatError:  # the chat was deleted, and its draft with it
        return True
    except StoreError:
        return False
    return True


def _joined(before: object, text: str) -> str:
    """Return both texts. A text may come twice: it was saved after all, or could be saved only in another file."""
    before = str(before or "")
    is_there = f"\n\n{text}\n\n" in f"\n\n{before}\n\n"
    return before if is_there else "\n\n".join(filter(None, (before, text)))


def _release(lock: FileLock) -> None:
    """Give a lock back, and remove its file."""
    if lock.is_locked:
        lock.release()
        with suppress(OSError):
            Path(lock.lock_file).unlink(missing_ok=True)
