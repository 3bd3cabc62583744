"""What a chat does while nobody waits for it: a title for the chat, and its state on disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from edgespec.cancel import CancelFlag
from edgespec.chat.session import Session
from edgespec.chat.titles import ROOM, cleaned, title_request
from edgespec.errors import EdgespecError
from edgespec.history import Turn
from edgespec.settings import Message
from edgespec.text.thinking import without_thinking

TITLE_AFTER_S, KEPT_AFTER_S = 0.7, 10.0  # without anything to do
KEPT_WITHIN_S = 30.0  # less as soon as the model is asked for something
MOST_TURNS = 6  # behind which a chat keeps its first line as its title
WHOLE = ("stop", "length")

log = logging.getLogger(__name__)


class Idle:
    """Work in a thread of its own, from `begin` until it is done or to `stop`; it gives way to whatever comes."""

    def __init__(self, session: Session, *, makes_titles: bool = True) -> None:
        self._session, self._makes_titles = session, makes_titles
        self._tried: set[tuple[str, int]] = set()
        self._cancel, self._stopped = CancelFlag(), threading.Event()
        self.thread: threading.Thread | None = None
        self.has_title = False  # that is new

    def begin(self) -> None:
        """Nobody waits for anything now."""
        self.stop()
        session = self._session
        titled = (session.chat, list(session.turns), session.messages) if self._wants_title() else None
        if titled is None and not session.states.has_news:
            return
        self._cancel, self._stopped = CancelFlag(), threading.Event()
        self.thread = threading.Thread(
            target=self._work, args=(titled, self._cancel, self._stopped), name="idle", daemon=True
        )
        self.thread.start()

    def stop(self) -> None:
        """Somebody wants something: at once, and without waiting for this."""
        self._cancel.set()
        self._stopped.set()

    def _wants_title(self) -> bool:
        """Whether the chat has only its first line for a title, and the model can make one without losing anything."""
        session = self._session
        if not self._makes_titles or session.engine is None or session.chat is None:
            return False
        if not 1 < len(session.turns) <= MOST_TURNS:
            return False
        last, about = session.turns[-1], session.about
        is_free = about.get("can_cut") and not about.get("opens_thinking") and not session.model.server
        if not is_free or last.answer is None or last.answer.finish_reason not in WHOLE:
            return False
        return session.used + ROOM < session.context_size and (session.chat, len(session.turns)) not in self._tried

    def _work(
        self,
        titled: tuple[str, list[Turn], Sequence[Message]] | None,
        cancel: CancelFlag,
        stopped: threading.Event,
    ) -> None:
        try:
            if titled is not None and not stopped.wait(TITLE_AFTER_S):
                self._make_title(*titled, cancel)
            if not stopped.wait(KEPT_AFTER_S):
                self._session.keep_states(KEPT_WITHIN_S)
        except EdgespecError as error:
            log.debug("while idle: %s", error)
        except Exception:  # as of a store or a model that closes meanwhile; the screen has no place for it
            log.debug("while idle", exc_info=True)

    def _make_title(self, chat: str, turns: list[Turn], messages: Sequence[Message], cancel: CancelFlag) -> None:
        session = self._session
        if session.store.find(chat).title_by != "line":
            return
        said = " ".join(without_thinking(turn.content) for turn in turns)
        with session.model.watched() as engine:
            events = list(engine.submit(title_request(messages), cancel))
        if cancel.is_set():
            return
        self._tried.add((chat, len(turns)))
        is_whole = events[-1].finish_reason == "stop"
        title = cleaned("".join(event.text for event in events), said) if is_whole else ""
        log.debug("title of %s: %r", chat, title)
        if title and session.store.rename(chat, title, by="model"):
            if session.chat == chat:
                session.title = title
            self.has_title = True
