"""Retrieval from a corpus: what came behind the same tokens in texts that the user gave (REST, arXiv 2311.08252)."""

from __future__ import annotations

from collections.abc import Mapping

from edgespec.core.context_index import ContextIndex
from edgespec.core.continuation import Place, likely
from edgespec.drafters.base import Guessable
from edgespec.drafters.walk import WalkingDrafter


class CorpusDrafter(WalkingDrafter[list[Place]]):
    """Looks into an index that does not change."""

    name = "corpus"

    def __init__(self, index: ContextIndex) -> None:
        super().__init__()
        self.index = index

    def start(self, sequence: Guessable) -> list[Place]:
        return list(self.index.places(sequence.tokens))

    def law(self, place: list[Place], sequence: Guessable, most: int) -> Mapping[int, float]:
        return likely(place, most)

    def step(self, place: list[Place], token: int) -> list[Place]:
        return [one.behind(token) for one in place]
