"""Saves the state of a chat on disk while the user does nothing, so that the chat continues faster after a restart."""

from __future__ import annotations

import logging
import threading

from edgespec.chat.session import Session

KEPT_AFTER_S = 10.0  # without a message or command
KEPT_WITHIN_S = 30.0  # the longest time for saving; any request to the model ends it earlier

log = logging.getLogger(__name__)


class Idle:
    """Saves in a thread, between `begin` and `stop`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._stopped = threading.Event()
        self.thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start: the user has nothing to wait for."""
        self.stop()
        if not self._session.states.has_news:
            return
        self._stopped = threading.Event()
        self.thread = threading.Thread(target=self._work, args=(self._stopped,), name="idle", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Stop, without waiting for the end of the thread."""
        self._stopped.set()

    def _work(self, stopped: threading.Event) -> None:
        try:
            if not stopped.wait(KEPT_AFTER_S):
                self._session.keep_states(KEPT_WITHIN_S)
        except Exception:  # for example a model that is closed meanwhile; the chat works without the state
            log.debug("while idle", exc_info=True)
