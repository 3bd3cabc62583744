"""From a row of logits and the prefix it follows to one token: the coupled rule, for target and draft model alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgespec.core.noise import gumbel64, hashes, key, least_hash
from edgespec.core.sampling import (
    Candidates,
    FloatRow,
    Ids,
    Indices,
    SamplingSettings,
    adjust,
    draw_from,
    largest,
    peak,
    truncate,
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The token at one position. `gap` is how far its score lies above the next best, inf for an only candidate.

    `logprob` and `top_logprobs`, (id, logprob) pairs, best first, are there when the chooser was asked for them.
    """

    id: int
    gap: float
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


class Chooser:
    """Chooses `argmax(logits / temperature + Gumbel noise)` over what the sampling chain leaves (2408.07978).

    That is a draw from the chain's law, and since the noise depends on seed, sample, position and token id alone, a
    draft model that chooses with the same noise tends to guess the target's token. Temperature 0 is the case without
    noise. Scores are float64; ties go to the lower id. `logprobs` asks for the token's log-probability and that many
    alternatives. `banned` ids are never chosen.
    """

    def __init__(
        self,
        settings: SamplingSettings,
        seed: int,
        sample: int,
        n_vocab: int,
        logprobs: int | None = None,
        banned: Sequence[int] = (),
    ) -> None:
        key(seed, sample, 0)
        self.settings = settings
        self.seed = seed
        self.sample = sample
        self.n_vocab = n_vocab
        self.logprobs = logprobs
        self.banned = tuple(banned)

    def choose(self, row: FloatRow, tokens: Sequence[int], position: int) -> Choice:
        """The token that follows the prefix `tokens`, of which `row`, float32[V], holds the logits.

        Log-probabilities are natural logarithms of the softmax after bias and penalties, before truncation and
        temperature. Raises ValueError when the row has no finite logit, or a NaN.
        """
        if row.shape != (self.n_vocab,):
            raise ValueError(f"a row of {self.n_vocab} logits is wanted, not one of shape {row.shape}")
        adjusted = adjust(row, self.settings, tokens, self.banned)
        token, gap = self._two_best(adjusted, position)
        if self.logprobs is None:
            return Choice(token, gap)
        normalizer = _log_sum_exp(adjusted)
        top = largest(adjusted, self.logprobs) if self.logprobs else np.empty(0, np.intp)
        top = top[np.argsort(-adjusted[top], kind="stable")]
        alternatives = tuple((int(id), float(adjusted[id]) - normalizer) for id in top)
        return Choice(token, gap, float(adjusted[token]) - normalizer, alternatives)

    def propose(self, row: FloatRow, tokens: Sequence[int], position: int) -> tuple[int, float]:
        """The token this row would choose, and a raw estimate in (0, 1) that another model chooses it too.

        The estimate is the logistic function of the gap; at temperature 0 it is the token's probability. A draft
        model's vocabulary may be padded to another length than the target's.
        """
        adjusted = adjust(row[: self.n_vocab], self.settings, tokens, self.banned)
        token, gap = self._two_best(adjusted, position)
        if self.settings.temperature == 0:
            confidence = math.exp(float(adjusted[token]) - _log_sum_exp(adjusted))
        else:
            confidence = 1 / (1 + math.exp(-gap))
        return token, min(max(confidence, _NEVER_SURE), 1 - _NEVER_SURE)

    def _two_best(self, adjusted: FloatRow, position: int) -> tuple[int, float]:
        if self.settings.temperature == 0:
            return _greedy(adjusted, self.settings)
        return perturbed_best(draw_from(adjusted, self.settings), key(self.seed, self.sample, position))


def perturbed_best(candidates: Candidates, noise_key: tuple[int, int]) -> tuple[int, float]:
    """The candidate with the highest logit plus noise, and its lead over the second; scores only those that may win."""
    ids: Ids | Indices | None = candidates.ids
    logits = candidates.logits
    if len(logits) > _FEW:
        contenders = _contenders(candidates, noise_key)
        ids, logits = (contenders if ids is None else ids[contenders]), logits[contenders]
    scores = logits + gumbel64(hashes(noise_key, len(logits) if ids is None else ids))
    best = int(scores.argmax())
    token = best if ids is None else int(ids[best])
    return token, float(scores[best]) - _highest_but(scores, best)


def _contenders(candidates: Candidates, noise_key: tuple[int, int]) -> Indices:
    """Indices of the few candidates among which the two best must be.

    The second best score of some likely candidates is a bound that both reach. Whoever does so has a logit of at least
    the bound less _SPLIT, or noise of at least _SPLIT, which a comparison of hashes tells without any logarithm.
    """
    ids, logits = candidates.ids, candidates.logits
    likely = largest(logits, _FEW)
    if len(likely) < _FEW:
        return likely
    hashed = hashes(noise_key, len(logits) if ids is None else ids)
    bound = np.partition(logits[likely] + gumbel64(hashed[likely]), _FEW - 2)[_FEW - 2]
    least_logit = np.nextafter(np.float32(bound - _SPLIT), np.float32(-np.inf))
    return np.flatnonzero((logits >= least_logit) | (hashed >= np.uint32(least_hash(_SPLIT))))


def _greedy(adjusted: FloatRow, settings: SamplingSettings) -> tuple[int, float]:
    if settings.typical_p == 1:  # no other step can drop the likeliest token
        best = peak(adjusted)
        return best, float(adjusted[best]) - _highest_but(adjusted, best)
    left = truncate(adjusted, settings)
    best = peak(left.logits)
    token = best if left.ids is None else int(left.ids[best])
    return token, float(left.logits[best]) - _highest_but(left.logits, best)


def _highest_but(scores: np.ndarray[tuple[int, ...], np.dtype[np.floating]], best: int) -> float:
    return max(float(scores[:best].max(initial=-np.inf)), float(scores[best + 1 :].max(initial=-np.inf)))


def _log_sum_exp(row: FloatRow) -> float:
    highest = row[peak(row)]
    return float(highest) + math.log(float(np.exp(row - highest).sum()))


_FEW = 1024  # scoring this many costs 30 us
_SPLIT = 5.0  # 0.7 % of the ids have more noise
_NEVER_SURE = 1e-6
