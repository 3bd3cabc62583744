"""Candidates for the next token from a row of a draft model's logits.

Under the coupled rule candidates are ranked by logit plus the noise that the target will use, so that a model with the
same distribution ranks the target's choice first. Under rejection and block verification candidates are sampled without
replacement from the draft's distribution, with separate noise, and carry this distribution. Both apply the request's
whole sampling chain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from edgespec.core.distribution import Distribution
from edgespec.core.noise import NoiseStream, gumbel64, hashes
from edgespec.core.sampler import Sampler, log_sum_exp, perturbed_ranking
from edgespec.core.sampling import Candidates, FloatRow, largest, truncate


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A candidate token."""

    token: int
    #: raw estimate in (0, 1) that the target accepts the token
    confidence: float
    #: the distribution that the token was sampled from, if any
    distribution: Distribution | None = None


def draft_candidates(
    sampler: Sampler, row: FloatRow, tokens: Sequence[int], position: int, k: int, draw: int | None = None
) -> list[DraftCandidate]:
    """Return at most k candidates for the token after the prefix `tokens`, best first.

    `row`, float32[V], is the draft model's; its vocabulary may be padded to another length than the target's. If `draw`
    is given, candidates are sampled from the draft's distribution. The number must differ for every node of every draft
    of an answer, because samples of branches would be correlated otherwise. The confidence of a sampled candidate does
    not depend on the sampled token: dropping tokens by such a confidence would bias the distribution of the text.
    """
    adjusted = sampler.adjusted(row[: sampler.n_vocab], tokens)
    if sampler.settings.temperature == 0:
        return _likeliest(sampler, adjusted, position, k)
    candidates = sampler.candidates(adjusted, position)
    if draw is not None:
        return _draws(candidates, sampler.noise_key(position, NoiseStream.DRAFT, draw), k)
    ids, scores = perturbed_ranking(candidates, sampler.noise_key(position), k + 1)
    return [DraftCandidate(id, unsure(p)) for id, p in zip(ids[:k], _softmax(scores), strict=False)]


def weighed(sampler: Sampler, distribution: Mapping[int, float], position: int, k: int) -> list[DraftCandidate]:
    """Return at most k candidates from the probabilities of some tokens, best first.

    The ranking uses the noise of the target: if the distribution is the target's, the target's choice is first.
    """
    weights, scale = {token: p for token, p in distribution.items() if p > 0}, 1.0
    if sampler.settings.temperature > 0 and len(weights) > 1:
        noise = gumbel64(hashes(sampler.noise_key(position), np.array([*weights]))).tolist()
        weights = {token: p * math.exp(g) for (token, p), g in zip(weights.items(), noise, strict=True)}
        scale = sum(distribution.values()) / sum(weights.values())
    ranked = sorted(weights.items(), key=itemgetter(1), reverse=True)
    return [DraftCandidate(token, unsure(scale * weight)) for token, weight in ranked[:k]]


def _likeliest(sampler: Sampler, adjusted: FloatRow, position: int, k: int) -> list[DraftCandidate]:
    """Return the most likely tokens that the sampling chain may choose."""
    settings, left = sampler.settings, Candidates(None, adjusted)
    if not settings.takes_peak:
        left = truncate(adjusted, settings, excludes=sampler.excludes(position))
    best = largest(left.logits, k)
    best = best[np.argsort(-left.logits[best], kind="stable")]
    p = np.exp(left.logits[best].astype(np.float64) - log_sum_exp(adjusted))
    ids = best if left.ids is None else left.ids[best]
    return [DraftCandidate(int(id), unsure(confidence)) for id, confidence in zip(ids, p, strict=True)]


def _draws(candidates: Candidates, noise_key: tuple[int, int], k: int) -> list[DraftCandidate]:
    """Sample without replacement. The confidence is the probability of the most likely token not yet sampled."""
    found: list[DraftCandidate] = []
    whole = Distribution.of(candidates)
    distribution: Distribution | None = whole
    not_drawn = whole.p.copy()
    for id in perturbed_ranking(candidates, noise_key, k)[0]:
        if distribution is None:
            break
        found.append(DraftCandidate(id, unsure(not_drawn.max()), distribution))
        not_drawn[whole.ids == id] = 0
        distribution = distribution.without(id)
    return found


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(scores - scores[0])
    p: NDArray[np.float64] = weights / weights.sum()
    return p


def unsure(p: float) -> float:
    """Clamp a probability to strictly between 0 and 1, because calibration takes its logit."""
    return min(max(float(p), 1e-6), 1 - 1e-6)
