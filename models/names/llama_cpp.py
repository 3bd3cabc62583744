"""Models that llama.cpp downloaded into a cache of its own; by default it uses the hub's cache.

`LLAMA_CACHE` names a folder like the hub's cache. Earlier versions kept flat files, `OWNER_MODEL_FILE`, with a manifest
for each name, `manifest=OWNER=MODEL=TAG.json`, which names the file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import platformdirs

from edgespec.models.hub.cache import cached_files, cached_repositories, hub_cache
from edgespec.models.hub.quants import parts_of
from edgespec.models.names.repositories import Repositories

MAX_MANIFEST = 2**20  # bytes
_MANIFEST = re.compile(r"manifest=([^=]+)=([^=]+)=.*\.json")


def folders() -> list[Path]:
    """Return the cache, existing or not; see `fs_get_cache_directory` and `hf_cache` in llama.cpp."""
    with suppress(RuntimeError):  # a user may have no home
        usual = platformdirs.user_cache_path("llama.cpp", appauthor=False, opinion=False)
        folder = Path(os.environ.get("LLAMA_CACHE") or usual)
        return [folder] if folder != hub_cache() else []
    return []


def repositories() -> Repositories:
    """Yield all repositories with their GGUF files."""
    for folder in folders():
        for name in cached_repositories(folder):
            yield name, cached_files(name, cache=folder)
        found = dict[str, dict[str, Path]]()
        for repository, file, path in _flat_files(folder):
            found.setdefault(repository, {})[file] = path
        yield from found.items()


def _flat_files(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield the repository, the name there, and the path of each file that a manifest names."""
    for manifest in sorted(folder.glob("manifest=*.json")):
        if match := _MANIFEST.fullmatch(manifest.name):
            for file in parts_of(_file_of(manifest)):
                path = folder / f"{match[1]}_{match[2]}_{file}".replace("/", "_")
                if file.lower().endswith(".gguf") and "\\" not in file and path.is_file():
                    yield f"{match[1]}/{match[2]}", file, path


def _file_of(manifest: Path) -> str:
    """Return the name of the model's file in the repository, empty if the manifest has none."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        if manifest.stat().st_size <= MAX_MANIFEST:
            return str(json.loads(manifest.read_bytes())["ggufFile"]["rfilename"])
    return ""
