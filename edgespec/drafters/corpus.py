"""Retrieval from a corpus: drafts the tokens that followed the same last tokens in the user's texts (REST, arXiv
2311.08252)."""

from __future__ import annotations

from edgespec.core.index.context_index import ContextIndex
from edgespec.core.index.continuation import Place
from edgespec.drafters.base import DraftContext
from edgespec.drafters.walk import ContinuingDrafter


class CorpusDrafter(ContinuingDrafter):
    """Drafts from an index that does not change."""

    name = "corpus"

    def __init__(self, index: ContextIndex) -> None:
        super().__init__()
        self.index = index

    def start(self, sequence: DraftContext) -> list[Place]:
        return list(self.index.places(sequence.tokens))
