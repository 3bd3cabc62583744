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
    """Where huggingface_hub keeps its downloads."""
    hub = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return _expanded(hub) if hub else _hub_home() / "hub"


def token_file() -> Path:
    """Where huggingface_hub keeps the user's token."""
    file = os.environ.get("HF_TOKEN_PATH")
    return _expanded(file) if file else _hub_home() / "token"


def repository_folder(repository: str) -> Path:
    return hub_cache() / f"{_PREFIX}{repository.replace('/', '--')}"


def cached_repositories() -> list[str]:
    """The repositories with a folder here, in order."""
    try:
        folders = [folder.name for folder in hub_cache().iterdir() if folder.name.startswith(_PREFIX)]
    except OSError:
        return []
    return sorted(map(_repository_called, folders))


def begun_files(repository: str) -> list[Path]:
    """A repository's incomplete downloads."""
    return sorted(path for path in (repository_folder(repository) / "blobs").glob("*.incomplete") if path.is_file())


def cached_files(repository: str, revision: str = "main") -> dict[str, Path]:
    """The GGUF files of a repository that are here, by their names in it: those of a branch, tag or commit."""
    folder = repository_folder(repository)
    snapshot = folder / "snapshots" / (commit_of(repository, revision) or revision)
    try:
        found = sorted(path for path in snapshot.rglob("*") if path.name.lower().endswith(".gguf") and path.is_file())
    except OSError:
        return {}
    return {path.relative_to(snapshot).as_posix(): path for path in found}


def commit_of(repository: str, revision: str) -> str:
    """The last known commit of a branch or tag; empty if unknown."""
    if re.fullmatch("[0-9a-f]{40}", revision):
        return revision
    try:
        commit = (repository_folder(repository) / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    return commit if re.fullmatch("[0-9a-f]{40}", commit) else ""


def repository_of(path: Path) -> tuple[str, str] | None:
    """The repository of a file of the cache, and its name there; None for other files."""
    try:
        parts = path.absolute().relative_to(hub_cache()).parts
    except ValueError:
        return None
    if len(parts) < 4 or parts[1] != "snapshots" or not parts[0].startswith(_PREFIX):
        return None
    return _repository_called(parts[0]), "/".join(parts[3:])


def _repository_called(folder: str) -> str:
    """The repository of a folder with this name."""
    return folder.removeprefix(_PREFIX).replace("--", "/", 1)


def _hub_home() -> Path:
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _expanded(os.environ.get("HF_HOME") or f"{caches}/huggingface")


def _expanded(path: str) -> Path:
    return Path(os.path.abspath(os.path.expandvars(os.path.expanduser(path))))  # noqa: PTH100, PTH111
