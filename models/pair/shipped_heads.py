"""Bundled draft heads, each for one model in any quantisation."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from edgespec.gguf_file.head_check import head_mismatch, kind_of_head
from edgespec.gguf_file.header import Header, read_header
from edgespec.models.names.source import HEADS


def shipped_head(target: Header, kinds: Collection[str]) -> Path | None:
    """Return the file of a head for this target, of one of these kinds; None if there is none."""
    for file in sorted(HEADS.glob("*.gguf")):
        head = read_header(file)
        if kind_of_head(head) in kinds and not head_mismatch(target, head):
            return file
    return None
