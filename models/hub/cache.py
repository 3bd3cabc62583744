"""The Hugging Face cache on disk, read without huggingface_hub, whose import takes half a second.

A repository has a folder with `refs` (the commit of each branch or tag) and `snapshots` (a folder for each commit, its
files links to blobs or the files themselves).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_PREFIX = "models--"


def hub_cache() -> Path:
    """The folder in which huggingface_hub keeps its downloads."""
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return _expanded(hub) if hub else _hub_home() / "hub"


def token_file() -> Path:
    """The file in which huggingface_hub keeps the user's token."""
    file = os.environ.get("HF_TOKEN_PATH")
    return _expanded(file) if file else _hub_home() / "token"


def is_offline() -> bool:
    """True if the network must not be used."""
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in ("1", "ON", "YES", "TRUE")


def repository_folder(repository: str, cache: Path | None = None) -> Path:
    """The folder of a repository in the hub's cache, or in another folder with this layout."""
    return (cache or hub_cache()) / f"{_PREFIX}{repository.replace('/', '--')}"


def cached_repositories(cache: Path | None = None) -> list[str]:
    """The repositories with a folder in the cache, in order."""
    try:
        folders = [folder.name for folder in (cache or hub_cache()).iterdir() if folder.name.startswith(_PREFIX)]
    except OSError:
        return []
    return sorted(map(_repository_called, folders))


def partial_files(repository: str) -> list[Path]:
    """The incomplete downloads of a repository."""
    return sorted(path for path in (repository_folder(repository) / "blobs").glob("*.incomplete") if path.is_file())


def partial_bytes(repository: str) -> int:
    """The size of the incomplete downloads of a repository."""
    return sum(path.stat().st_size for path in partial_files(repository))


def cached_files(repository: str, revision: str = "main", cache: Path | None = None) -> dict[str, Path]:
    """The GGUF files of a branch, tag or commit that are here, by their names in the repository."""
    folder = repository_folder(repository, cache)
    snapshot = folder / "snapshots" / (commit_of(repository, revision, cache) or revision)
    try:
        found = sorted(path for path in snapshot.rglob("*") if path.name.lower().endswith(".gguf") and path.is_file())
    except OSError:
        return {}
    return {path.relative_to(snapshot).as_posix(): path for path in found}


def commit_of(repository: str, revision: str, cache: Path | None = None) -> str:
    """The last known commit of a branch or tag; empty if unknown."""
    if re.fullmatch("[0-9a-f]{40}", revision):
        return revision
    try:
        commit = (repository_folder(repository, cache) / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    return commit if re.fullmatch("[0-9a-f]{40}", commit) else ""


def repository_of(path: Path) -> tuple[str, str] | None:
    """The repository of a file in the cache, and the file's name there; None for other files."""
    try:
        parts = path.absolute().relative_to(hub_cache()).parts
    except ValueError:
        return None
    if len(parts) < 4 or parts[1] != "snapshots" or not parts[0].startswith(_PREFIX):
        return None
    return _repository_called(parts[0]), "/".join(parts[3:])


def _repository_called(folder: str) -> str:
    return folder.removeprefix(_PREFIX).replace("--", "/", 1)


def _hub_home() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _expanded(os.environ.get("HF_HOME") or f"{caches}/huggingface")


def _expanded(path: str) -> Path:
    return Path(os.path.abspath(os.path.expandvars(os.path.expanduser(path))))  # noqa: PTH100, PTH111
