"""Output that no part of the program waits for: a thread writes it."""

from __future__ import annotations

import errno
import io
import threading
from collections.abc import Callable
from typing import TextIO

READER_GONE = (errno.EPIPE, errno.EINVAL)  # Windows reports EINVAL
MOST_WAITING = 1 << 20  # characters; lines beyond are dropped
RETRY_S = 0.1  # between attempts to write to a full disk
END_S = 2.0  # for the last lines to be written


class BackgroundStream(io.TextIOBase):
    """A stream that never blocks and never fails: a thread writes to `stream`.

    Text that cannot be written now waits. If too much waits, further text is dropped until the rest has been written.
    Then the line `dropped(n)` reports the number of lost lines. `failed` is called with the reason of a failure. If the
    reader is gone, the reason is "", and nothing is written any more.
    """

    def __init__(self, stream: TextIO, dropped: Callable[[int], str], failed: Callable[[str], None]) -> None:
        stream.flush()
        self._stream, self._dropped, self._failed = stream, dropped, failed
        # The buffer would keep a part of a line that could not be written, and lose it or write it twice.
        self._raw = getattr(stream.buffer, "raw", stream.buffer)
        self._waiting: list[str] = []
        self._n_waiting = self._n_dropped = 0
        self._is_closing = self._is_gone = False
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        with self._changed:
            if self._n_dropped or self._n_waiting + len(text) > MOST_WAITING:
                self._n_dropped += text.count("\n")
            elif text and not self._is_gone:  # no text would end the thread
                self._waiting.append(text)
                self._n_waiting += len(text)
            self._changed.notify_all()
        return len(text)

    def close(self) -> None:
        """Write what waits, if that can be done soon."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(END_S)
        self._over.set()

    def _run(self) -> None:
        while text := self._next():
            self._put(text)
            with self._changed:
                self._n_waiting -= len(text)

    def _next(self) -> str:
        """Wait for text and return it; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._n_dropped or self._is_closing)
            if not self._waiting and self._n_dropped:
                self._waiting, self._n_dropped = [self._dropped(self._n_dropped)], 0
                self._n_waiting = len(self._waiting[0])
            text = "".join(self._waiting)
            self._waiting.clear()
        return text

    def _put(self, text: str) -> None:
        data, has_failed = text.encode(self.encoding, "backslashreplace"), False
        while data and not self._is_gone and not self._over.is_set():
            try:
                n_written = self._raw.write(data)
            except (OSError, ValueError) as error:  # ValueError: it was closed
                n_written, number = 0, getattr(error, "errno", None)
                self._is_gone = number is None or number in READER_GONE
                if self._is_gone or not has_failed:
                    has_failed = True
                    self._failed("" if self._is_gone else str(getattr(error, "strerror", "") or error))
            data = data[n_written or 0 :]
            if not n_written and not self._is_gone:
                self._over.wait(RETRY_S)
