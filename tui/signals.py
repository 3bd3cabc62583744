"""Signals that would leave the terminal as the screen has set it, or the screen blank."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.drivers.linux_driver import LinuxDriver


def handle_signals(driver: LinuxDriver, keep: Callable[[], object]) -> None:
    """Draw the screen again after the process was stopped, and restore the terminal on SIGQUIT after calling `keep`."""

    def resume() -> None:
        """Draw the screen again. Textual 8.2.8 knows only of stops by its own key: after another one it would start its
        threads twice, and leave the screen blank."""
        if driver._auto_restart and not driver._must_signal_resume:
            driver.suspend_application_mode()
            driver._must_signal_resume = True
        driver._sigcont_application()

    def quit() -> None:
        try:
            keep()
        finally:
            driver.suspend_application_mode()
            loop.remove_signal_handler(signal.SIGQUIT)
            os.kill(os.getpid(), signal.SIGQUIT)

    loop = asyncio.get_running_loop()
    # Between two callbacks: in the middle of one, they could wait for ever for a lock that is held there.
    loop.add_signal_handler(signal.SIGCONT, resume)
    loop.add_signal_handler(signal.SIGQUIT, quit)
