"""Drafts that a target makes of itself: its first layers, or a copy with smaller weights. Made once, then cached."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from edgespec.errors import UsageError
from edgespec.llama.quantize import TYPES, quantize
from edgespec.models.slice import slice_layers
from edgespec.paths import cache_dir

VERSION = 1


def check_self_draft(what: str) -> None:
    """Raises UsageError unless `what` is a number of layers or a type of weights."""
    if not (what.isascii() and what.isdigit()) and what.upper() not in TYPES:
        raise UsageError(
            f"self:{what} is no draft", hint=f"give a number of layers (self:8) or a type: {', '.join(TYPES)}"
        )


def self_draft(source: Path, what: str, progress: Callable[[float], None] = lambda done: None) -> Path:
    """The file of the draft that `what` says, made if it is not there. Raises UsageError, ModelFileError."""
    check_self_draft(what)
    stat = source.stat()
    facts = [VERSION, str(source.resolve()), stat.st_size, stat.st_mtime_ns, what.upper()]
    name = sha256(json.dumps(facts).encode()).hexdigest()[:16]
    path = cache_dir() / "drafts" / f"{source.stem}-{what.lower()}-{name}.gguf"
    if path.is_file():
        return path
    progress(0.0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        raise UsageError(f"a draft has no place in {path.parent}", why=error.strerror or str(error)) from error
    if free < stat.st_size:
        raise UsageError(
            f"a draft may not fit into {path.parent}",
            why=f"{free / 1e9:.1f} GB are free, and it may need up to {stat.st_size / 1e9:.1f}",
            hint="make room, or move the cache (EDGESPEC_HOME)",
        )
    if what.isdigit():
        slice_layers(source, path, int(what), progress)
    else:
        quantize(source, path, what, again=True, progress=progress)
    return path
