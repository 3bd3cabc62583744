"""Where edgespec keeps its own files: settings, things it measured and may forget, and data it must not lose."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import platformdirs

from edgespec.unfinished import becoming

log = logging.getLogger(__name__)


def config_dir() -> Path:
    """Folder of the user's settings; nothing here is created before something is written."""
    return _home("config") or platformdirs.user_config_path("edgespec", appauthor=False)


def cache_dir() -> Path:
    """Folder of what can be measured again."""
    return _home("cache") or platformdirs.user_cache_path("edgespec", appauthor=False)


def data_dir() -> Path:
    """Folder of what belongs to the user."""
    return _home("data") or platformdirs.user_data_path("edgespec", appauthor=False)


def read_cache(name: str) -> str | None:
    """What `write_cache` stored under `name`, or None if that cannot be read; "" where bytes were damaged."""
    try:
        return (cache_dir() / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except ValueError as error:  # no text: nothing that was written here
        log.debug("cache %s is no text: %s", name, error)
        return ""
    except OSError as error:
        log.debug("cache %s cannot be read: %s", name, error)
        return None


def write_cache(name: str, text: str) -> bool:
    """Store `text` under `name`, whole or not at all; False, and no error, where the cache cannot be written."""
    file = cache_dir() / name
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text)
    except OSError as error:
        log.debug("cache %s cannot be written: %s", name, error)
        return False
    return True


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a file as a whole or not at all. Raises OSError."""
    with becoming(file) as scratch:
        scratch.write_bytes(content.encode() if isinstance(content, str) else content)


def _home(subfolder: str) -> Path | None:
    """`EDGESPEC_HOME` overrides the system's folders with subfolders of one."""
    home = os.environ.get("EDGESPEC_HOME")
    return Path(home).expanduser() / subfolder if home else None
