"""The folders of edgespec's files: settings, cached measurements, and user data."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from hashlib import sha256
from itertools import count
from pathlib import Path

import platformdirs

from edgespec.errors import UsageError, told_as
from edgespec.files.unfinished import becoming
from edgespec.text.figures import size_of

DERIVED_VERSION = 1


def config_dir() -> Path:
    """Folder of the user's settings; it is created when something is written."""
    return _home("config") or platformdirs.user_config_path("edgespec", appauthor=False)


def cache_dir() -> Path:
    """Folder of files that can be made again, such as measurements."""
    return _home("cache") or platformdirs.user_cache_path("edgespec", appauthor=False)


def data_dir() -> Path:
    """Folder of the user's data."""
    return _home("data") or platformdirs.user_data_path("edgespec", appauthor=False)


def state_dir() -> Path:
    """Folder of what running programs keep about themselves."""
    return _home("state") or platformdirs.user_state_path("edgespec", appauthor=False)


def models_dir() -> Path:
    """Folder of models from packages; those of the hub are in the hub's own cache."""
    return data_dir() / "models"


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a file atomically, even if the power fails. Raises OSError."""
    with becoming(file) as scratch, scratch.open("wb") as opened:
        opened.write(content.encode() if isinstance(content, str) else content)
        opened.flush()
        os.fsync(opened.fileno())


def free_name(stem: str, suffix: str) -> Path:
    """Return the first of STEM.md, STEM-2.md and so on (with this suffix) that does not exist."""
    names = (Path(f"{stem}{f'-{number}' if number > 1 else ''}{suffix}") for number in count(1))
    return next(name for name in names if not name.exists())


def file_facts(file: Path) -> list[str | int]:
    """Return what identifies a file: its path, size in bytes and modification time. Raises OSError."""
    stat = file.stat()
    return [str(file.resolve()), stat.st_size, stat.st_mtime_ns]


def derived_file(folder: str, source: Path, what: str) -> Path:
    """Return the cache path for a model made from `source`; `what` names the way."""
    facts = [DERIVED_VERSION, *file_facts(source), what.upper()]
    name = sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return cache_dir() / folder / f"{source.stem}-{what.lower()}-{name}.gguf"


def make_room(folder: Path, n_bytes: float, what: str, hint: str = "") -> None:
    """Create a folder in the cache for `what`, of `n_bytes`. Raises UsageError if that fails."""
    with told_as(UsageError, f"cannot create {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
    if (free := free_in(folder)) < n_bytes:
        raise UsageError(
            f"{what} may not fit into {folder}",
            why=f"{size_of(free)} are free, and about {size_of(n_bytes)} are needed",
            hint=f"{hint}free some space, or move the cache (EDGESPEC_HOME)",
        )


def free_in(folder: Path) -> int:
    """Return the free bytes on the disk of `folder`, which may not exist yet."""
    for above in (folder, *folder.parents):
        with suppress(OSError):  # not there, or not to be looked into
            return shutil.disk_usage(above).free
    return 0


def is_writable(folder: Path) -> bool:
    """Return whether files can be created in `folder`, or the folder itself if it does not exist yet."""
    there = next((parent for parent in (folder, *folder.parents) if os.path.lexists(parent)), folder)
    return os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)  # noqa: PTH112 - Path.is_dir may raise


def check_writable(file: Path) -> None:
    """Raise UsageError for a file that cannot be written."""
    is_new = not file.exists()
    with told_as(UsageError, f"{file} cannot be written"):
        file.open("ab").close()
        if is_new:
            file.unlink()


def own_home() -> Path | None:
    """Return the folder of `EDGESPEC_HOME`, whose subfolders replace the system's folders; None if it is not set."""
    home = os.environ.get("EDGESPEC_HOME")
    return Path(home).expanduser().absolute() if home else None


def _home(subfolder: str) -> Path | None:
    home = own_home()
    return home / subfolder if home else None
