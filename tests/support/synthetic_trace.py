"""Traces of runs that never took place, drawn from distributions that are known.

Whether the draft model predicts the token at a place of the text, having seen the text before it, is a property of the
place: a draft from a later start finds it again. After a wrong token its estimates are of a text that never came.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgespec.core.policy.calibration import Calibration
from edgespec.engine.trace import Guessed, Round, Trace

Floats = NDArray[np.float64]

FLAT = {1: 1.0, 2: 1.0, 4: 1.02, 8: 1.05, 17: 1.12}
STEEP = {1: 1.0, 2: 1.3, 4: 1.8, 8: 2.8, 17: 5.0}
JUMPY = {1: 1.0, 2: 1.05, 4: 1.1, 5: 1.6, 8: 1.65, 9: 2.2, 17: 2.3}


def honest(chances: Floats) -> Floats:
    return chances


def boastful(chances: Floats) -> Floats:
    """Promises too much: odds times five."""
    odds = 5 * chances / (1 - chances)
    return odds / (1 + odds)


def timid(chances: Floats) -> Floats:
    odds = chances / (1 - chances) / 5
    return odds / (1 + odds)


def blind(chances: Floats) -> Floats:
    """Knows how good it is, but not where."""
    return np.full_like(chances, 0.6)


def synthetic_trace(
    seed: int,
    alphas: list[float],
    *,
    step: float = 0.1,
    target: dict[int, float] = FLAT,
    confidence: Callable[[Floats], Floats] = honest,
    n_tokens: int = 2000,
    n_max: int = 16,
    concentration: float = 1.5,
    source: str = "draft",
    calibrated: bool = True,
) -> Trace:
    """An answer in equal parts, in each of which draft tokens are right with probabilities of mean `alphas[i]`. These
    probabilities are Beta distributions: the smaller the `concentration`, the more of them lie near 0 and 1. The
    confidences are calibrated by the text so far, if `calibrated`, as the drafter does it."""
    random = np.random.default_rng(seed)
    means = np.repeat(alphas, -(-n_tokens // len(alphas)))[:n_tokens]

    def chances_like(means: Floats) -> Floats:
        drawn = random.beta(concentration * means, concentration * (1 - means))
        return np.clip(drawn, 0.005, 0.995)

    chances = chances_like(means)
    right = random.random(n_tokens) < chances
    text = [int(token) for token in random.integers(0, 1000, n_tokens)]
    rounds = [Round(0, text[:1], 1, 1.0, [])]
    calibration = Calibration()
    for position in range(1, n_tokens):
        length = min(n_max, n_tokens - position - 1)
        ahead = right[position : position + length]
        matched = length if ahead.all() else int(ahead.argmin())
        on_path = min(matched + 1, length)
        seen = np.concatenate(
            [chances[position : position + on_path], chances_like(np.full(length - on_path, means[position]))]
        )
        tokens = text[position : position + matched] + [2000] * (length - matched)
        q = confidence(seen)
        entropy = -q * np.log(q) - (1 - q) * np.log(1 - q) + 3 * (1 - q)  # the other tokens share what is left
        raw, entropies = [float(p) for p in q], [float(nats) for nats in entropy]
        promised = [calibration.probability(p) for p in raw] if calibrated else raw
        if length:
            calibration.observe(raw[0], bool(right[position]))
        draft = Guessed(source, tokens, promised, raw, entropies, matched, 0, None, length, length * step)
        rounds.append(Round(position, text[position : position + 1], 1, 1.0, [draft]))
    costs = {"target": {str(width): seconds for width, seconds in target.items()}, "step": {source: step}}
    return Trace("greedy", 0.0, n_max, costs, {}, rounds)
