"""What comes out of a generation, token by token."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from edgespec.core.stats import Stats

Progress = Callable[[str, float], None]
"""Hears of what how much is done, 0 to 1."""

PROGRESS = {
    "loading": "loading {}",
    "making": "making a draft of {}",
    "rounding": "measuring rounding",
    "costs": "measuring passes",
    "prompt": "reading the prompt",
}
"""What is done, in words; the braces stand for the model."""

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token of an answer, or its end.

    `text` is complete UTF-8 only: bytes of an unfinished character, and text that may yet become a stop string, are
    held back and come with a later event. The last event has `id` -1, the rest of the text, `finish_reason`, `stats`,
    and tells whether the text was `cut` at a stop string, so that the tokens say more than it does.
    `logprob` is the natural logarithm of the token's probability after bias and penalties, before truncation and
    temperature; `top_logprobs` holds (id, logprob) pairs, best first. `source` names the drafter when `from_draft`.
    `round` counts target passes of this answer from 0, `proposed` tells how many drafted tokens that one verified;
    `gap` is how far the token's score lay above the second best's, and `near_tie` whether the measured rounding of
    kernels could have made it another token.
    """

    id: int
    text: str
    from_draft: bool = False
    source: str = ""
    round: int = 0
    proposed: int = 0
    gap: float = math.inf
    near_tie: bool | None = None
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None
    stats: Stats | None = None
    cut: bool = False
