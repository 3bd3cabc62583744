"""Results in the cache folder, by name. A result that cannot be read or written is worked out again.

The first line of a file is the digest of the rest: a damaged file is not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256

from edgespec.files.optional_files import optional
from edgespec.files.paths import cache_dir, write_whole


def cache_name(folder: str, facts: Mapping[str, object]) -> str:
    """Return the name of a cached result in `folder` that holds as long as all of these facts hold."""
    return f"{folder}/{sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]}.json"


def read_cache(name: str) -> str | None:
    """Return what `write_cache` stored under `name`; None if it cannot be read."""
    file = cache_dir() / name
    with optional(file):
        digest, _, stored = file.read_bytes().partition(b"\n")
        if digest == sha256(stored).hexdigest().encode():
            return stored.decode(errors="replace")
    return None


def write_cache(name: str, text: str) -> None:
    """Store `text` under `name` atomically, if the cache can be written."""
    file = cache_dir() / name
    with optional(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, f"{sha256(text.encode()).hexdigest()}\n{text}")
