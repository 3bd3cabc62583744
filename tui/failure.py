"""The log of an unexpected error that ends the screen."""

from __future__ import annotations

import platform
import traceback
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from edgespec.errors import EdgespecError
from edgespec.files.paths import state_dir


def log_failure(error: BaseException) -> Path:
    """Write the traceback of an error, without the values of variables, to a file that only the user can read. Return
    the file. Raises OSError."""
    folder = state_dir() / "logs"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / f"chat-{datetime.now():%Y%m%d-%H%M%S-%f}.log"
    versions = ", ".join(f"{name} {version(name)}" for name in ("edgespec", "textual", "rich"))
    file.touch(0o600)
    file.write_text(
        f"{versions}, Python {platform.python_version()}, {platform.platform()}\n\n"
        + "".join(traceback.format_exception(error)),
        encoding="utf-8",
        errors="backslashreplace",
    )
    return file


def failed(error: BaseException, hint: str) -> EdgespecError:
    """Log an error, and return the one that is reported instead, without its message, which may contain the chat."""
    try:
        where = f"the details are in {log_failure(error)}"
    except OSError as unwritable:
        where = f"the details could not be written: {unwritable.strerror or unwritable}"
    return EdgespecError(f"the chat ended with an unexpected {type(error).__name__}", why=where, hint=hint)
