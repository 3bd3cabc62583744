"""How much work the parts of a comparison are, so that the time left can be told.

The unit is a byte of weights that goes through the processor for a token.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.bench.measure import WARM_UP_TOKENS

READING = 0.2  # of the time of a token that is generated, for one that is read
MEASURING_PASSES = 80  # tokens generated would take about as long


def window_units(size_bytes: int, window: Sequence[int]) -> float:
    """One window of a text, read by a file of that size."""
    return READING * size_bytes * len(window)


def preparation_units(size_bytes: int, n_modes: int) -> float:
    """What comes before the first answer of one load."""
    return float(size_bytes * (MEASURING_PASSES + WARM_UP_TOKENS * n_modes))


def answer_units(size_bytes: int, tokens: int) -> float:
    """One answer."""
    return float(size_bytes * tokens)
