"""A text for drafters, without a model."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgespec.core.draft import Draft
from edgespec.core.sampler import Sampler
from edgespec.core.sampling import SamplingSettings
from edgespec.drafters.base import Budget, Drafter

GREEDY = Sampler(SamplingSettings(temperature=0), 0, 0, 100)


@dataclass
class Text:
    tokens: list[int]
    slot: int = 0
    sampler: Sampler = field(default_factory=lambda: GREEDY)
    draws: bool = False
    is_draft_invariant: bool = True
    round: int = 0


def first_draft(drafter: Drafter, text: Text, budget: Budget) -> Draft:
    """The draft for a text whose answer has just begun."""
    drafter.begin(text)
    [draft] = drafter.propose([text], [budget])
    return draft
