"""Ctrl-C: the first press stops the answer, any other one leaves at once, also from the middle of native code.

Python runs a signal handler only when the main thread comes back from a native call, which a model load or a long
prompt can keep for seconds. Its C-level handler, though, writes the signal's number to a file descriptor at once
(`signal.set_wakeup_fd`), and a thread that waits there can act meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edgespec.unfinished import remove_unfinished

if TYPE_CHECKING:
    from edgespec.cancel import CancelFlag

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))


class Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """The user stopped the program, and it has said what there was to say."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


class Interrupts:
    """The program's answer to SIGINT and SIGTERM. `received` is the signal that stopped the answer."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._flag: CancelFlag | None = None

    def install(self) -> None:
        """Take the signals over, for the rest of the process."""
        if threading.current_thread() is not threading.main_thread():
            return
        reader, writer = os.pipe()
        if os.name == "posix":
            os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(reader,), name="signals", daemon=True).start()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # a program started by nohup stays deaf
                signal.signal(number, lambda *_: None)

    @contextmanager
    def cancelling(self, flag: CancelFlag) -> Iterator[None]:
        """Within this block the first signal sets `flag` instead of ending the process."""
        self._flag = flag
        try:
            yield
        finally:
            self._flag = None

    def raise_if_received(self) -> None:
        """Raise Interrupted if a signal stopped the answer."""
        if self.received is not None:
            raise Interrupted(self.received)

    def _watch(self, reader: int) -> None:
        while data := os.read(reader, 64):
            for number in data:
                if number in SIGNALS:
                    self._handle(number)

    def _handle(self, number: int) -> None:
        if self._flag is None or self.received is not None:
            _leave(number)
        self.received = number
        if self._flag is not None:
            self._flag.set()


def _leave(number: int) -> None:
    """End the process as it stands; output that is worth anything has been flushed."""
    remove_unfinished()
    if sys.stderr is not None and sys.stderr.isatty():
        os.write(2, b"\n")
    os._exit(128 + number)
