"""Saves a conversation: answers while they are generated, and writes that are repeated after the store has failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from edgespec.core.stats import Stats
from edgespec.events import FinishReason, TokenEvent
from edgespec.history import AnswerRecord, Store, StoreError, TokenRecord, Turn, UnknownChatError, UnwritableError
from edgespec.history.data import turn_of
from edgespec.settings import Message

SAVED_EVERY_S = 0.5
Write = Callable[[], object]


class Writes:
    """Ordered writes. Failed writes are kept and retried with the next write; `error` is the reason.

    `everything` returns the write that saves the open chat again if the store has lost it.
    """

    def __init__(self, everything: Callable[[], Write | None]) -> None:
        self._everything = everything
        self._waiting: list[Write] = []
        self._lock = threading.RLock()  # the screen writes while an answer is written
        self.error: StoreError | None = None

    def __len__(self) -> int:
        """Return the number of pending writes."""
        return len(self._waiting)

    def write(self, write: Write) -> None:
        """Run the pending writes, then this one."""
        with self._lock:
            self._waiting.append(write)
            self.retry()
            if isinstance(self.error, UnwritableError) and len(self._waiting) > 1:
                # Only the first pending write was tried. The others must change at least the copy in memory, which the
                # chat is read from.
                with suppress(StoreError):
                    write()

    def retry(self) -> None:
        """Run the pending writes."""
        with self._lock:
            rewritten, lost = False, None
            while self._waiting:
                try:
                    self._waiting[0]()
                except UnknownChatError as error:
                    again = None if rewritten else self._everything()
                    if again is not None:  # the file was replaced or the chat deleted: write the open chat again
                        rewritten = True
                        self._waiting.insert(0, again)
                        continue
                    lost = error  # the write belongs to another chat or branch, which is gone
                except StoreError as error:
                    self.error = error
                    return
                self._waiting.pop(0)
            self.error = lost


class Recording:
    """An answer below `parent` that is being generated, or continued from `begun`.

    A thread saves it every half second: if the program is killed, at most that much is lost, and no token waits for
    the disk.
    """

    def __init__(
        self,
        store: Store,
        chat: str,
        parent: str | None,
        answer: AnswerRecord,
        begun: Turn | None,
        begun_ids: Sequence[int],
    ) -> None:
        self._store, self._chat, self._parent, self._answer = store, chat, parent, answer
        self._ids = list(begun_ids)
        self._pieces = [TokenRecord(-1, begun.content)] if begun else []
        self._begun, self._n_begun = begun, len(self._ids)
        self._has_all_ids = begun is None or bool(begun_ids)  # whether `_ids` are the tokens of the whole text
        self.reason: str = "cancelled"
        self.calls: Sequence[tuple[int, int]] = ()  # where the text has calls of tools
        self.stats: Stats | None = None
        self.segment: Stats | None = None
        self._row: str | None = None
        self._ended = threading.Event()
        self._saver = threading.Thread(target=self._save, name="saving the answer", daemon=True)
        self._saver.start()

    @property
    def new_tokens(self) -> int:
        return len(self._ids) - self._n_begun

    @property
    def new_text(self) -> str:
        """The text after that of `begun`."""
        return self.content[len(self._begun.content) if self._begun else 0 :]

    @property
    def content(self) -> str:
        return "".join(piece.text for piece in self._pieces)

    def take(self, event: TokenEvent) -> None:
        """Add the next event."""
        if event.id >= 0:
            self._ids.append(event.id)
            self._pieces.append(TokenRecord(event.id, event.text, event.source, event.round))
        elif event.text:
            self._pieces.append(TokenRecord(-1, event.text))
        if event.finish_reason is not None:
            self.reason, self.segment = event.finish_reason, event.stats
            self._has_all_ids = self._has_all_ids and not event.cut
            if self.stats is None:
                self.stats = event.stats
            elif event.stats is not None:
                self.stats.add(event.stats)

    def message(self) -> list[Message]:
        """Return the answer so far, as a message to continue."""
        return [Message("assistant", self.content, self._known_ids)] if self.content else []

    @property
    def _known_ids(self) -> tuple[int, ...]:
        return tuple(self._ids) if self._has_all_ids else ()

    @property
    def context_used(self) -> int:
        return self.segment.prompt_tokens + self.segment.generated_tokens if self.segment else 0

    def end(self, write: Callable[[Callable[[], object]], None], first_sent: str) -> Turn | None:
        """Save the answer and return it as a turn; if nothing was generated, return the turn that was continued."""
        self._ended.set()
        self._saver.join()
        row, content, pieces = self._row, self.content, list(self._pieces)
        # A continued answer may have gained tokens without text (a part of a character), which are saved too.
        if not self.new_text and not (self._begun and self._has_all_ids and self.new_tokens):
            if row is not None:
                write(lambda: self._store.drop(row))
            return self._begun
        stats: Mapping[str, Any] = self.stats.as_json() if self.stats else {}
        if self._begun and self._begun.answer:  # keep the statistics of the longer part
            stats = max(self._begun.answer.stats, stats, key=lambda each: each.get("timings", {}).get("predicted_n", 0))
        about: dict[str, object] = {"first_sent": first_sent} | ({"calls": self.calls} if self.calls else {})
        answer = replace(
            self._answer,
            finish_reason=self.reason,
            settings={**self._answer.settings, **about},
            stats={**stats, "context_used": self.context_used},
            ids=self._known_ids,
        )
        write(lambda: self._store.finish(row, self._chat, self._parent, content, answer, pieces))
        return turn_of(self._chat, self._parent, "assistant", content, answer)

    def last_event(self) -> TokenEvent:
        return TokenEvent(-1, "", finish_reason=cast(FinishReason, self.reason), stats=self.stats)

    def _save(self) -> None:
        saved = 0
        while not self._ended.wait(SAVED_EVERY_S):
            if len(self._pieces) == saved:
                continue
            try:
                if self._row is None:
                    self._row = self._store.begin(self._chat, self._parent, self._answer)
                pieces = self._pieces[:]
                content = "".join(piece.text for piece in pieces)
                self._store.grow(self._row, content, pieces)
            except StoreError:  # the end of the answer writes it again, and reports a failure
                continue
            saved = len(pieces)
