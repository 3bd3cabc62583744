"""The thread that sends commands to a child process."""

from __future__ import annotations

import queue
import threading
from multiprocessing.connection import Connection
from typing import Any


class Sender:
    """Sends messages in order, in a thread.

    A pipe holds about 64 KB that are not read yet; so this thread waits for the child, and no caller does. The queue
    may be used by the garbage collector in the middle of another call.
    """

    def __init__(self, connection: Connection) -> None:
        self._unsent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_send, args=(connection, self._unsent), name="commands", daemon=True)
        self._thread.start()

    def put(self, message: Any) -> None:
        """Send a message after those that were put before it."""
        self._unsent.put(message)

    def close(self) -> None:
        """Close the connection after the last message."""
        self._unsent.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait until the connection is closed."""
        self._thread.join(timeout_s)


def _send(connection: Connection, unsent: queue.SimpleQueue[Any]) -> None:
    with connection:
        while (message := unsent.get()) is not None:
            try:
                connection.send(message)
            except OSError:  # the process has ended, which the reader of the other pipe notices
                return
