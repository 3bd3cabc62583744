"""Ctrl-C: the first press stops the answer, the second one ends the program, also in the middle of native code.

Python runs a signal handler only when the main thread returns from a native call, which can take seconds while a model
is loaded or a long prompt is processed. But its C-level handler writes the signal's number to a file descriptor at once
(`signal.set_wakeup_fd`), so that a thread that reads the descriptor can act immediately.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from edgespec.files.unfinished import remove_unfinished

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))


class Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """The user stopped the program, and the message has been shown."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


class Interrupts:
    """The program's handling of SIGINT, SIGTERM and SIGHUP. `received` is the signal that stopped the answer."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._first: Callable[[], object] | None = None

    def install(self) -> None:
        """Handle the signals until the process ends."""
        if threading.current_thread() is not threading.main_thread():
            return
        reader, writer = os.pipe()
        if os.name == "posix":
            os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(reader,), name="signals", daemon=True).start()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored after nohup
                signal.signal(number, lambda *_: None)

    @contextmanager
    def calling(self, first: Callable[[], object]) -> Iterator[None]:
        """Within this block the first signal calls `first`, in another thread, instead of ending the process."""
        self._first = first
        try:
            with _echo.off():
                yield
        finally:
            self._first = None

    @contextmanager
    def prompting(self) -> Iterator[None]:
        """Within this block Ctrl-C raises KeyboardInterrupt, which line editors need."""
        watched = signal.set_wakeup_fd(-1)  # otherwise the thread would act on it, too
        before = {number: signal.signal(number, lambda number, frame: leave(number)) for number in SIGNALS}
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(watched, warn_on_full_buffer=False)

    def raise_if_received(self) -> None:
        """Raise Interrupted if a signal stopped the answer."""
        if self.received is not None:
            raise Interrupted(self.received)

    def resume(self) -> None:
        """Forget a Ctrl-C that stopped an answer: the next one stops the next answer. Raises Interrupted otherwise."""
        if self.received == signal.SIGINT:
            self.received = None
        self.raise_if_received()

    def _watch(self, reader: int) -> None:
        while data := os.read(reader, 64):
            for number in data:
                if number in SIGNALS:
                    self._handle(number)

    def _handle(self, number: int) -> None:
        if self._first is None or self.received is not None:
            leave(number)
        self.received = number
        if self._first is not None:
            self._first()


class _Echo:
    """The terminal's setting to print control characters: ^C would be in the middle of an answer."""

    is_off = False

    @contextmanager
    def off(self) -> Iterator[None]:
        """Within this block the terminal of stdin and stdout does not print ^C."""
        if all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
            self.is_off = self._change(on=False)
        try:
            yield
        finally:
            self.restore()

    def restore(self) -> None:
        if self.is_off:
            self.is_off = False
            self._change(on=True)

    def _change(self, *, on: bool) -> bool:
        """Change the setting. Return whether it was different."""
        with suppress(ImportError, OSError):
            import termios  # which Windows does not have

            if os.tcgetpgrp(0) != os.getpgrp():  # in the background, a change would stop the process
                return False
            with suppress(termios.error):
                attributes = termios.tcgetattr(0)
                before = attributes[3]
                attributes[3] = before | termios.ECHOCTL if on else before & ~termios.ECHOCTL
                termios.tcsetattr(0, termios.TCSANOW, attributes)
                return bool(attributes[3] != before)
        return False


_echo = _Echo()


def leave(number: int) -> None:
    """End the process immediately. All output has been flushed before."""
    remove_unfinished()
    _echo.restore()
    with suppress(OSError):  # the terminal may be gone
        if sys.stderr is not None and sys.stderr.isatty():
            os.write(2, b"\n")
    os._exit(128 + number)
