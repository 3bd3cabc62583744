"""The draft heads that come with this program: each for the model that it was trained on, in any quantisation."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from edgespec.gguf_file.head_check import check_draft_file, head_mismatch
from edgespec.gguf_file.header import Header


def shipped_head(target: Header) -> Path | None:
    """The head for this target, if there is one."""
    heads = sorted(Path(str(files(__name__))).glob("*.gguf"))
    return next((path for path in heads if not head_mismatch(target, check_draft_file(path))), None)
