"""Sample one token from a row of logits and its prefix, for every verification rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.core.distribution import Distribution
from edgespec.core.dry import Breakers, Dry
from edgespec.core.noise import NoiseStream, gumbel64, hashes, key, least_hash, uniform
from edgespec.core.sampling import (
    Candidates,
    FloatRow,
    Indices,
    SamplingSettings,
    adjust,
    draw_from,
    largest,
    peak,
)


class SampledToken(NamedTuple):
    """The token at one position."""

    id: int
    #: log probability, if requested
    logprob: float | None = None
    #: (id, logprob) pairs, best first, if requested
    top_logprobs: tuple[tuple[int, float], ...] = ()
    #: how many tokens are at least as likely, for a token of the prompt
    rank: int | None = None


class NothingAllowedError(ValueError):
    """Bans and the constraint of an answer leave no token that may follow."""


class Constraint(Protocol):
    """A constraint of an answer, such as a grammar. The result of `allowed` depends on the prefix alone."""

    is_narrow: bool
    """True if few tokens are allowed, so that more drafts are accepted than without the constraint."""

    def allowed(self, tokens: Sequence[int]) -> NDArray[np.bool_] | None:
        """Return bool[V]: True for ids that may follow `tokens`, which are prompt and answer; None: all of them.

        Raises ValueError if this cannot be determined.
        """

    def forced(self, tokens: Sequence[int]) -> list[int]:
        """Return ids that most likely follow because nothing else is allowed, or none if there is a choice."""


class Sampler:
    """Samples tokens with noise that depends only on seed, sample, position and token id.

    The token is `argmax(logits / temperature + Gumbel noise)` over the candidates that the sampling chain keeps
    (2408.07978), which is a sample from the chain's distribution. A draft model that samples with the same noise tends
    to propose the target's token. Temperature 0 is the case without noise. Scores are float64; the lower id wins ties.

    `logprobs` requests the token's log probability and this number of alternatives. `banned` ids and tokens that
    `constraint` does not allow are never chosen. `first` is the noise position of the first token; it is not 0 if the
    beginning of a conversation was dropped. `keep` is a last step of the sampling chain, after temperature. `breakers`
    are the tokens of `settings.dry_sequence_breakers`.
    """

    def __init__(
        self,
        settings: SamplingSettings,
        seed: int,
        sample: int,
        n_vocab: int,
        logprobs: int | None = None,
        banned: Sequence[int] = (),
        first: int = 0,
        constraint: Constraint | None = None,
        keep: Callable[[Candidates], Candidates] | None = None,
        breakers: Breakers | None = None,
    ) -> None:
        key(seed, sample, 0)
        self.settings = settings
        self.seed = seed
        self.sample = sample
        self.n_vocab = n_vocab
        self.logprobs = logprobs
        self.banned = tuple(banned)
        self.first = first
        self.constraint = constraint
        bans = any(bias == -math.inf for _, bias in settings.logit_bias)
        forbidding = {
            "logit_bias": bans,
            "ignore_eos": bool(banned),
            "the constraint or bad_words": constraint is not None,
        }
        self._forbidding = [name for name, forbids in forbidding.items() if forbids]
        self._keep = keep
        self._dry = Dry(settings, breakers or {}) if settings.uses_dry else None

    @property
    def reads_prefix(self) -> bool:
        """True if the candidates depend on the previous tokens not only through the logits."""
        return self.settings.penalizes or self._dry is not None or self.constraint is not None

    @property
    def _keeps_new_peak(self) -> bool:
        """True if the highest logit stays the highest one, unless its token is in the text."""
        settings = self.settings
        is_free = self.constraint is None and not self.banned  # a constraint may be set in the middle of an answer
        return is_free and self.logprobs is None and settings.takes_peak and settings.only_lowers

    def choose(self, row: FloatRow, tokens: Sequence[int], position: int) -> SampledToken:
        """Choose the token that follows the prefix `tokens`; `row`, float32[V], holds the logits after this prefix.

        Raises ValueError if the row has no finite logit, or a NaN, and NothingAllowedError.
        """
        if self._keeps_new_peak and row.shape == (self.n_vocab,) and (best := peak(row)) not in tokens:
            return SampledToken(best)  # without the work of adjusting the row
        adjusted = self._checked(row, tokens)
        if self.settings.takes_peak:
            return self._choice(adjusted, peak(adjusted))
        return self._choice(adjusted, perturbed_best(self.candidates(adjusted, position), self.noise_key(position)))

    def noise_key(self, position: int, stream: NoiseStream = NoiseStream.TOKEN, step: int = 0) -> tuple[int, int]:
        """Return the key of the noise of a position (`core.noise.key`)."""
        return key(self.seed, self.sample, self.first + position, stream, step)

    def distribution(self, row: FloatRow, tokens: Sequence[int], position: int) -> Distribution:
        """Return the distribution of a row after the sampling chain. Raises ValueError like `choose`."""
        return Distribution.of(self.candidates(self._checked(row, tokens), position))

    def draw(self, distribution: Distribution, position: int, stream: NoiseStream, step: int) -> int:
        """Sample a token from a distribution with the noise of a stream."""
        with np.errstate(divide="ignore"):
            candidates = Candidates(distribution.ids, np.log(distribution.p).astype(np.float32))
        return perturbed_best(candidates, self.noise_key(position, stream, step))

    def report(self, row: FloatRow, tokens: Sequence[int], token: int) -> SampledToken:
        """Return a token that another rule chose, with the requested log probabilities."""
        if self.logprobs is None:
            return SampledToken(token)
        return self._choice(self._checked(row, tokens), token)

    def adjusted(self, row: FloatRow, tokens: Sequence[int]) -> FloatRow:
        """Apply the first half of the sampling chain: bias, penalties, DRY and constraint. A row may be shorter than
        V."""
        adjusted = adjust(row, self.settings, tokens, self.banned)
        if self._dry is not None:
            adjusted = self._dry.applied(adjusted, tokens, may_change=adjusted is not row)
        allowed = self.constraint.allowed(tokens) if self.constraint is not None else None
        return adjusted if allowed is None else np.where(allowed[: len(row)], adjusted, np.float32(-np.inf))

    def candidates(self, adjusted: FloatRow, position: int) -> Candidates:
        """Apply the second half of the sampling chain to a row that `adjusted` returned."""
        left = draw_from(adjusted, self.settings, excludes=self.excludes(position))
        return left if self._keep is None else self._keep(left)

    def excludes(self, position: int) -> bool:
        """Return the outcome of XTC's chance at a position. Target and drafters get the same outcome, which depends on
        nothing that was drafted: given the outcomes, every verification rule keeps the target's distribution."""
        settings = self.settings
        return settings.uses_xtc and uniform(self.noise_key(position, NoiseStream.EXCLUDE)) < settings.xtc_probability

    def _checked(self, row: FloatRow, tokens: Sequence[int]) -> FloatRow:
        if row.shape != (self.n_vocab,):
            raise ValueError(f"expected a row of {self.n_vocab} logits, not an array of shape {row.shape}")
        adjusted = self.adjusted(row, tokens)
        if self._forbidding and adjusted.max() == -np.inf and row.max() > -np.inf:
            raise NothingAllowedError(f"no token may follow: {' and '.join(self._forbidding)} forbid all of them")
        return adjusted

    def _choice(self, adjusted: FloatRow, token: int) -> SampledToken:
        """Add log probabilities: of the softmax after bias, penalties and mask, before truncation and temperature."""
        return SampledToken(token) if self.logprobs is None else with_logprobs(adjusted, token, self.logprobs)


class ReferenceSampler(Sampler):
    """Chooses the next token of a given text, to measure the gain of drafting on this text.

    The sampling is done too, because its time belongs to the measurement.
    """

    def __init__(self, sampler: Sampler, start: int, reference: Sequence[int]) -> None:
        vars(self).update(vars(sampler))
        self._start, self._reference = start, tuple(reference)

    def choose(self, row: FloatRow, tokens: Sequence[int], position: int) -> SampledToken:
        """Return the reference's token at `position`."""
        chosen = super().choose(row, tokens, position)
        at = position - self._start
        return chosen._replace(id=self._reference[at]) if at < len(self._reference) else chosen


def with_logprobs(row: FloatRow, token: int, n: int) -> SampledToken:
    """Return a token with its log probability in the softmax of a row, and the `n` most likely ones.

    Raises ValueError if the row has no finite logit, or a NaN.
    """
    normalizer = log_sum_exp(row)
    top = largest(row, n) if n else np.empty(0, np.intp)
    top = top[np.argsort(-row[top], kind="stable")]
    return SampledToken(
        token, float(row[token]) - normalizer, tuple((int(id), float(row[id]) - normalizer) for id in top)
    )


def of_prompt(row: FloatRow, token: int, n: int) -> SampledToken:
    """Return a token of a prompt with what the model predicted there, as `with_logprobs`, and its rank."""
    return with_logprobs(row, token, n)._replace(rank=int(np.count_nonzero(row > row[token])) + 1)


def perturbed_best(candidates: Candidates, noise_key: tuple[int, int]) -> int:
    """Return the candidate with the highest logit plus noise."""
    if candidates.ids is not None and len(candidates.ids) == 1:
        return int(candidates.ids[0])
    ids, scores = perturbed(candidates, noise_key, 1)
    return int(ids[scores.argmax()])


def perturbed_ranking(
    candidates: Candidates, noise_key: tuple[int, int], k: int
) -> tuple[list[int], NDArray[np.float64]]:
    """Return the k candidates with the highest logit plus noise, best first, and these scores.

    The result has fewer than k if there are fewer candidates. It is distributed like k samples without replacement from
    the candidates' distribution (Gumbel top-k, Kool et al. 2019).
    """
    ids, scores = perturbed(candidates, noise_key, k)
    order = (-scores).argsort(kind="stable")[:k]
    order = order[scores[order] > -np.inf]
    return [int(id) for id in ids[order]], scores[order]


def perturbed(candidates: Candidates, noise_key: tuple[int, int], k: int) -> tuple[Indices, NDArray[np.float64]]:
    """Return ids, ascending, and scores (logit plus noise) of some candidates, which include the k best."""
    ids: Indices = np.arange(len(candidates.logits)) if candidates.ids is None else candidates.ids
    logits = candidates.logits
    if len(logits) > _FEW:
        contenders = _contenders(candidates, noise_key, k)
        ids, logits = ids[contenders], logits[contenders]
    return ids, logits + gumbel64(hashes(noise_key, ids))


def _contenders(candidates: Candidates, noise_key: tuple[int, int], k: int) -> Indices:
    """Return indices of a few candidates that include the k best; k is at most `_FEW`.

    The k-th best score of the most likely candidates is a lower bound for the k best scores. A candidate that reaches
    the bound has a logit of at least the bound less _SPLIT, or noise of at least _SPLIT. The latter is decided by
    comparing hashes, without logarithms.
    """
    ids, logits = candidates.ids, candidates.logits
    likely = largest(logits, _FEW)
    if len(likely) < _FEW:
        return likely
    hashed = hashes(noise_key, len(logits) if ids is None else ids)
    bound = np.partition(logits[likely] + gumbel64(hashed[likely]), _FEW - k)[_FEW - k]
    least_logit = np.nextafter(np.float32(bound - _SPLIT), np.float32(-np.inf))
    return np.flatnonzero((logits >= least_logit) | (hashed >= np.uint32(least_hash(_SPLIT))))


def log_sum_exp(row: FloatRow) -> float:
    highest = row[peak(row)]
    return float(highest) + math.log(float(np.exp(row - highest).sum()))


_FEW = 1024  # scoring this many costs 30 us
_SPLIT = 5.0  # 0.7 % of the ids have more noise
