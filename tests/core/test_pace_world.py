"""The measured policy in a simulated world: wrong saved costs and other programs may not make it slower than plain
decoding, and hardly slower than it is without them."""

from __future__ import annotations

import pytest
from pace_world import CURVES, DISTURBANCES, SAVED, TEXTS, speed, undisturbed

RUNS = [(curve, text, disturbance, saved)
        for curve in CURVES for text in TEXTS for disturbance in DISTURBANCES for saved in SAVED]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("first", [pytest.param(n, marks=[pytest.mark.long] if n else []) for n in range(13)])
def test_no_disturbance_makes_drafting_slower_than_plain_decoding(first: int) -> None:
    for curve, text, disturbance, saved in RUNS[first::13]:
        own = speed(curve, text, disturbance, saved)
        assert own > 0.92, (curve, text, disturbance, saved)
        assert own > 0.75 * undisturbed(curve, text), (curve, text, disturbance, saved)
