"""From a row of a draft model's logits to candidates for the next token.

Under the coupled rule they are ranked by logit plus the target's own noise, so that a model with the same distribution
ranks the target's choice first. Under rejection and block verification they are sampled without replacement from the
draft's distribution, with separate noise, and carry that distribution. Both apply the request's whole sampling chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from edgespec.core.distribution import Distribution
from edgespec.core.noise import Stream
from edgespec.core.sampler import Sampler, log_sum_exp, perturbed_ranking
from edgespec.core.sampling import Candidates, FloatRow, draw_from, largest, truncate


@dataclass(frozen=True, slots=True)
class DraftCandidate:
    """A candidate token, a raw estimate in (0, 1) that the target accepts it, and the distribution it was sampled from,
    if any."""

    token: int
    confidence: float
    distribution: Distribution | None = None


def draft_candidates(
    sampler: Sampler, row: FloatRow, tokens: Sequence[int], position: int, k: int, draw: int | None = None
) -> list[DraftCandidate]:
    """At most k candidates for the token after the prefix `tokens`, best first, from a draft model's `row`, float32[V].

    The draft's vocabulary may be padded to another length than the target's. With a number `draw`, candidates are
    sampled from the draft's distribution. The number must differ for every node of every draft of an answer, else the
    samples of one branch are correlated with another's. A sample's confidence does not depend on the sampled token:
    selecting by it would change the distribution.
    """
    adjusted = sampler.adjusted(row[: sampler.n_vocab], tokens)
    if sampler.settings.temperature == 0:
        return _likeliest(sampler, adjusted, k)
    candidates = draw_from(adjusted, sampler.settings)
    if draw is not None:
        return _draws(candidates, sampler.noise_key(position, Stream.DRAFT, draw), k)
    ids, scores = perturbed_ranking(candidates, sampler.noise_key(position), k + 1)
    return [DraftCandidate(id, _unsure(p)) for id, p in zip(ids[:k], _softmax(scores), strict=False)]


def weighed(sampler: Sampler, distribution: Mapping[int, float], position: int, k: int) -> list[DraftCandidate]:
    """At most k candidates from the probabilities of some tokens, best first.

    They are ranked with the target's own noise: where the distribution is the target's, its choice comes first.
    """
    if sampler.settings.temperature == 0 or len(distribution) < 2:
        ranked = sorted(distribution.items(), key=itemgetter(1), reverse=True)
        return [DraftCandidate(token, _unsure(p)) for token, p in ranked[:k]]
    ids = np.array(sorted(distribution))
    logits = np.log([distribution[int(id)] for id in ids])
    best, scores = perturbed_ranking(Candidates(ids, logits), sampler.noise_key(position), len(ids))
    known = sum(distribution.values())
    return [DraftCandidate(id, _unsure(known * p)) for id, p in zip(best[:k], _softmax(scores), strict=False)]


def _likeliest(sampler: Sampler, adjusted: FloatRow, k: int) -> list[DraftCandidate]:
    """The most likely tokens; typical-p alone can drop some of them."""
    left = Candidates(None, adjusted) if sampler.settings.typical_p == 1 else truncate(adjusted, sampler.settings)
    best = largest(left.logits, k)
    best = best[np.argsort(-left.logits[best], kind="stable")]
    p = np.exp(left.logits[best].astype(np.float64) - log_sum_exp(adjusted))
    ids = best if left.ids is None else left.ids[best]
    return [DraftCandidate(int(id), _unsure(confidence)) for id, confidence in zip(ids, p, strict=True)]


def _draws(candidates: Candidates, noise_key: tuple[int, int], k: int) -> list[DraftCandidate]:
    """Samples without replacement, each with the confidence of the most likely token not sampled before it."""
    found: list[DraftCandidate] = []
    whole = Distribution.of(candidates)
    distribution: Distribution | None = whole
    not_drawn = whole.p.copy()
    for id in perturbed_ranking(candidates, noise_key, k)[0]:
        if distribution is None:
            break
        found.append(DraftCandidate(id, _unsure(not_drawn.max()), distribution))
        not_drawn[whole.ids == id] = 0
        distribution = distribution.without(id)
    return found


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(scores - scores[0])
    p: NDArray[np.float64] = weights / weights.sum()
    return p


def _unsure(p: float) -> float:
    """Clamped to strictly between 0 and 1, also for a single candidate."""
    return min(max(float(p), 1e-6), 1 - 1e-6)
