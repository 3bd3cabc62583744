"""Models that other clients use at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from edgespec.errors import UsageError
from edgespec.llm.model import DraftingOptions, Model, drafting_changes
from edgespec.settings import LoadSettings, Message


class SharedModel(Model):
    """A model that others use, too: each request has its own drafting settings, and the caches are left alone.

    Attributes:
        usual: the drafting settings of requests that have none.
    """

    usual: LoadSettings

    @property
    def drafting(self) -> dict[str, Any]:
        """The drafting settings that differ from the usual ones, as fields of a request."""
        usual, now = self.usual, self.settings
        wanted = {"spec_type": now.spec_type, "pace": now.pace, "draft_n_max": now.spec_draft_n_max}
        return {name: value for name, value in wanted.items() if value not in (None, getattr(usual, name))}

    def draft_with(self, **changes: Unpack[DraftingOptions]) -> None:
        """Change drafters or draft length from the next answer on; None keeps a setting. Raises UsageError for the
        width of trees, which all requests share."""
        wanted = drafting_changes(changes)
        if wanted.get("spec_tree", self.usual.spec_tree) != self.usual.spec_tree:
            raise UsageError("spec-tree is up to the server")
        self._settings = replace(self._settings, **wanted)

    def keep_state(
        self, messages: Sequence[Message], file: Path, most_bytes: int, within_s: float = 60.0, template: str = ""
    ) -> int:
        """Write nothing: the KV cache stays on the server."""
        return 0

    def recall_state(self, messages: Sequence[Message], file: Path, template: str = "") -> int:
        return 0

    def forget(self) -> None:
        """Do nothing: the cache of a server is for all its clients."""
