"""An answer in the making, kept while it comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from edgespec.core.stats import Stats
from edgespec.events import FinishReason, TokenEvent
from edgespec.settings import Message
from edgespec.store import Answer, Piece, Store, StoreError, Turn
from edgespec.store.data import key_of, valid_text

SAVED_EVERY_S = 0.5


def turn_of(chat: str, parent: str | None, role: str, content: str, answer: Answer | None = None) -> Turn:
    """A message as the store will have it."""
    content = valid_text(content)
    return Turn(key_of(parent or chat, role, content), parent, role, content, time.time(), answer)


class Recording:
    """An answer of `parent` in the making, from the first event on or from what had `begun`.

    A thread writes it to the store every half second, so that a killed program loses no more than that, and no token
    waits for the disk.
    """

    def __init__(
        self, store: Store, chat: str, parent: str | None, answer: Answer, begun: Turn | None, begun_ids: Sequence[int]
    ) -> None:
        self._store, self._chat, self._parent, self._answer = store, chat, parent, answer
        self._texts = [begun.content] if begun else []
        self._ids = list(begun_ids)
        self._pieces = [Piece(-1, begun.content)] if begun else []
        self._n_begun = len(self._ids)
        self._cut = False
        self.reason: str = "cancelled"
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
    def content(self) -> str:
        return "".join(self._texts)

    def take(self, event: TokenEvent) -> None:
        """What the model said next."""
        if event.id >= 0:
            self._ids.append(event.id)
            self._pieces.append(Piece(event.id, event.text, event.source, event.round))
        elif event.text:
            self._pieces.append(Piece(-1, event.text))
        self._texts.append(event.text)
        if event.finish_reason is not None:
            self.reason, self.segment, self._cut = event.finish_reason, event.stats, event.cut
            if self.stats is None:
                self.stats = event.stats
            elif event.stats is not None:
                self.stats.add(event.stats)

    def message(self) -> list[Message]:
        """What there is as a message to go on with."""
        return [Message("assistant", self.content, tuple(self._ids))] if self.content else []

    @property
    def context_used(self) -> int:
        return self.segment.prompt_tokens + self.segment.generated_tokens if self.segment else 0

    def end(self, write: Callable[[Callable[[], object]], None], first_sent: str) -> Turn | None:
        """Make it a turn, unless there is nothing of it."""
        self._ended.set()
        self._saver.join()
        row, content, pieces = self._row, self.content, list(self._pieces)
        if not content:
            if row is not None:
                write(lambda: self._store.drop(row))
            return None
        stats = self.stats.as_json() if self.stats else {}
        answer = replace(
            self._answer,
            finish_reason=self.reason,
            settings={**self._answer.settings, "first_sent": first_sent},
            stats=stats | {"context_used": self.context_used},
            ids=() if self._cut else tuple(self._ids),
        )
        write(lambda: self._store.finish(row, self._chat, self._parent, content, answer, pieces))
        return turn_of(self._chat, self._parent, "assistant", content, answer)

    def last_event(self) -> TokenEvent:
        return TokenEvent(-1, "", finish_reason=cast(FinishReason, self.reason), stats=self.stats)

    def _save(self) -> None:
        saved = 0
        while not self._ended.wait(SAVED_EVERY_S):
            n = len(self._pieces)
            if n == saved:
                continue
            content = "".join(self._texts)
            try:
                if self._row is None:
                    self._row = self._store.begin(self._chat, self._parent, self._answer)
                self._store.grow(self._row, content, self._ids[:], self._pieces[:n])
            except StoreError:  # the whole answer is written again at its end, and what fails then is told
                continue
            saved = n
