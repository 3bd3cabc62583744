"""Drafts made from the target itself: its first layers, or a copy with smaller weights. Made once, then cached."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from edgespec.errors import UsageError
from edgespec.files.paths import derived_file, make_room
from edgespec.llama.quantize import TYPES, quantize
from edgespec.models.pair.slice import slice_layers


def self_draft(source: Path, what: str, progress: Callable[[float], None] = lambda done: None) -> Path:
    """Return the file of the draft that `what` names; make a missing file. Raises UsageError, ModelFileError."""
    if not (what.isascii() and what.isdigit()) and what.upper() not in TYPES:
        types = ", ".join(TYPES)
        raise UsageError(f"self:{what} is not a draft", hint=f"use a number of layers (self:8) or a type: {types}")
    path = derived_file("drafts", source, what)
    if path.is_file():
        return path
    progress(0.0)
    make_room(
        path.parent,
        source.stat().st_size,
        no_place="there is no space for a draft in",
        no_room="a draft may not fit into",
        needs="it may need up to",
    )
    if what.isdigit():
        slice_layers(source, path, int(what), progress)
    else:
        quantize(source, path, what, again=True, progress=progress)
    return path
