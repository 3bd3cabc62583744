"""Signals that would leave the terminal as the screen has set it, or the screen blank."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.drivers.linux_driver import LinuxDriver


def handle_signals(driver: LinuxDriver, keep: Callable[[], object]) -> None:
    """Draw the screen again after the process was stopped, and restore the terminal on SIGQUIT after calling `keep`."""

    def resume(*_: Any) -> None:
        """Draw the screen again. Textual 8.2.8 knows only of stops by its own key: after another one it would start its
        threads twice, and draw nothing."""
        if driver._auto_restart and not driver._must_signal_resume:
            driver.suspend_application_mode()
            driver._must_signal_resume = True
        driver._sigcont_application()

    def quit(number: int, _: Any) -> None:
        try:
            keep()
        finally:
            driver.suspend_application_mode()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGCONT, resume)
    signal.signal(signal.SIGQUIT, quit)
