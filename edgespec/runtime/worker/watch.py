"""The thread that ends a child process which hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable

PING_S = 4.0
MISSED, MISSED_LOADING = 4, 29  # pings without an answer: a process that loads may read its libraries from a slow disk


class Watch:
    """Calls `give_up` if a process that was pinged sends nothing while a reader listens to it.

    The thread of the process that answers pings needs the interpreter, but not the engine: a long forward pass does not
    silence it. The time is counted in pings rather than read from a clock, so that a machine that was suspended, or a
    parent that was stopped, counts one at most. While there is no reader, this thread sleeps.
    """

    def __init__(self, ping: Callable[[], None], give_up: Callable[[], None]) -> None:
        self._ping, self._give_up = ping, give_up
        self._is_listened_to, self._has_ended = threading.Event(), threading.Event()
        self._n_heard = 0
        self.missed = MISSED_LOADING
        self.has_given_up = False
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def listen(self) -> None:
        """A reader waits for the next message from now on."""
        self._is_listened_to.set()

    def stop_listening(self, *, heard: bool) -> None:
        """The reader no longer waits. `heard`: a message arrived."""
        self._n_heard += heard
        if not self._has_ended.is_set():
            self._is_listened_to.clear()

    def close(self) -> None:
        """End the thread."""
        self._has_ended.set()
        self._is_listened_to.set()

    def _run(self) -> None:
        n_heard = n_missed = 0
        while not self._has_ended.is_set():
            self._is_listened_to.wait()
            if self._has_ended.wait(PING_S):
                return
            if self._n_heard != n_heard:
                n_heard, n_missed = self._n_heard, 0
            elif self._is_listened_to.is_set():
                n_missed += 1
                if n_missed > self.missed:
                    self.has_given_up = True
                    self._give_up()
                    return
                self._ping()
