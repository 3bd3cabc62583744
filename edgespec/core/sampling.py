"""The sampling chain, from a row of logits to the candidates for the next token."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from edgespec.core.setting import Facts, SettingError, facts_of, setting

FloatRow = npt.NDArray[np.float32]
Indices = npt.NDArray[np.intp]
Side = Literal["left", "right"]
MILLION = 1e6  # the largest number of a setting: far beyond any use, and far below the largest float32


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """The settings of the sampling chain. Names, meanings and defaults are llama.cpp's.

    Raises SettingError for an invalid value.
    """

    # fmt: off
    temperature: float = setting(0.8, Facts("number", "Temperature. 0: always the most likely token.",
        least=0, must="0 or at least 1e-6", option="--temp", metavar="T", compared="always",
    ))
    top_k: int = setting(40, Facts("integer", "Sample from the N most likely tokens. 0: off.", compared="always"))
    top_p: float = setting(0.95, Facts("number",
        "Sample from the most likely tokens up to a total probability of P. 0: the most likely one. 1: off.",
        least=0, most=1, metavar="P", compared="always",
    ))
    min_p: float = setting(0.05, Facts("number",
        "Sample from tokens at least P times as likely as the most likely one. 0: off.",
        least=0, most=1, metavar="P", compared="always",
    ))
    typical_p: float = setting(1.0, Facts("number",
        "Locally typical sampling up to a total probability of P. 1: off.",
        least=0, is_open=True, most=1, metavar="P", advanced=True, compared="always",
    ))
    top_n_sigma: float = setting(-1.0, Facts("number",
        "Sample from tokens within N standard deviations of the highest logit. 0 or less: off.",
        option="--top-n-sigma --top-nsigma", metavar="N", advanced=True,
    ))
    xtc_probability: float = setting(0.0, Facts("number",
        "Chance of excluding the most likely tokens (XTC). 0: off.", least=0, most=1, metavar="P", advanced=True,
    ))
    xtc_threshold: float = setting(0.1, Facts("number",
        "XTC excludes tokens of probability P or more, except for the least likely of them. Above 0.5: off.",
        least=0, most=1, metavar="P", advanced=True,
    ))
    repeat_penalty: float = setting(1.0, Facts("number", "Penalty factor for repeated tokens. 1: off.",
        least=1 / MILLION, must="at least 1e-6", compared="always",
    ))
    repeat_last_n: int = setting(64, Facts("integer", "Number of last tokens that penalties apply to. 0: off, -1: all.",
        least=-1, must="-1 (all), 0 (off) or more", advanced=True, compared="always",
    ))
    presence_penalty: float = setting(0.0, Facts("number",
        "Subtract X from the logits of repeated tokens.", advanced=True, compared="always",
    ))
    frequency_penalty: float = setting(0.0, Facts("number",
        "Subtract X from a token's logit for each repetition.", advanced=True, compared="always",
    ))
    dry_multiplier: float = setting(0.0, Facts("number",
        "Penalty for tokens that continue a repetition (DRY): X * BASE^(repeated tokens - allowed). 0: off.",
        least=0, advanced=True,
    ))
    dry_base: float = setting(1.75, Facts("number",
        "BASE of the DRY penalty. Below 1: no penalty.", least=0, advanced=True,
    ))
    dry_allowed_length: int = setting(2, Facts("integer", "Repeated tokens that DRY allows.", least=0, advanced=True))
    dry_penalty_last_n: int = setting(64, Facts("integer",
        "Number of last tokens in which DRY looks for repetitions. 0: off, -1: all.",
        least=-1, must="-1 (all), 0 (off) or more", advanced=True,
    ))
    dry_sequence_breakers: tuple[str, ...] = setting(("\n", ":", '"', "*"), Facts("breakers",
        "Text across which DRY sees no repetition. none: no such text.",
        option="--dry-sequence-breaker", metavar="TEXT", shown='\\n, :, ", *', advanced=True,
    ))
    #: (token id, bias) pairs; a bias of -inf bans the token.
    logit_bias: tuple[tuple[int, float], ...] = setting((), Facts("biases",
        "Add BIAS to the logit of token ID. ID-inf bans the token.",
        option="-l --logit-bias", metavar="ID+BIAS|ID-BIAS", advanced=True, compared="always",
    ))
    # fmt: on

    def __post_init__(self) -> None:
        for name, facts in _NUMBERS.items():
            _check_number(name, facts, getattr(self, name))
        is_usable = self.temperature == 0 or self.temperature >= 1 / MILLION
        _require(is_usable, "temperature", _NUMBERS["temperature"].range, self.temperature)
        breakers = self.dry_sequence_breakers
        is_list = isinstance(breakers, list | tuple) and all(isinstance(text, str) for text in breakers)
        _require(is_list, "dry_sequence_breakers", "a list of texts", breakers)
        object.__setattr__(self, "dry_sequence_breakers", tuple(breakers))  # JSON has lists
        for token, bias in self.logit_bias:
            _require(token >= 0, "logit_bias", "about token ids of 0 or more", token)
            _require(abs(bias) <= MILLION or bias == -math.inf, "logit_bias", "at most a million, or -inf", bias)

    @property
    def penalizes(self) -> bool:
        """True if logits depend on which tokens came before."""
        strength = self.repeat_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        return self.repeat_last_n != 0 and strength

    @property
    def only_lowers(self) -> bool:
        """True if bias, penalties and DRY lower the logits of tokens of the text, and change no others."""
        strengths = self.presence_penalty, self.frequency_penalty, self.dry_multiplier, self.repeat_penalty - 1
        return not self.logit_bias and min(strengths) >= 0

    @property
    def uses_dry(self) -> bool:
        """True if logits depend on repetitions in the text before."""
        return self.dry_multiplier != 0 and self.dry_base >= 1 and self.dry_penalty_last_n != 0

    @property
    def uses_xtc(self) -> bool:
        """True if the most likely tokens are sometimes dropped."""
        return self.xtc_probability > 0 and self.xtc_threshold <= 0.5

    @property
    def takes_peak(self) -> bool:
        """True if the most likely token is always chosen. Only typical-p and XTC can drop this token."""
        return self.temperature == 0 and self.typical_p == 1 and not self.uses_xtc


_NUMBERS = {name: facts for name, facts in facts_of(SamplingSettings).items() if facts.kind in ("integer", "number")}


class Candidates(NamedTuple):
    """The remaining tokens. The distribution of the next token is the softmax of `logits`."""

    #: ascending; None for the whole vocabulary
    ids: Indices | None
    #: after temperature; -inf excludes a token
    logits: FloatRow


def apply_chain(
    row: FloatRow,
    settings: SamplingSettings,
    tokens: Sequence[int] = (),
    banned: Sequence[int] = (),
    *,
    excludes: bool = False,
) -> Candidates:
    """Apply the whole chain but DRY to a row of logits, float32[V], after the prefix `tokens`.

    Order and meaning are those of llama.cpp's common sampler: bias, penalties, DRY (`Sampler.adjusted`), top-n-sigma,
    top-k, typical-p, top-p, min-p, XTC, temperature. `excludes` is the outcome of XTC's chance. Every step keeps at
    least one token, and the lower ids of equal logits. `row` is not changed, but the candidates may share its memory.
    Raises ValueError if no logit is finite or a logit is NaN.
    """
    return draw_from(adjust(row, settings, tokens, banned), settings, excludes=excludes)


def adjust(row: FloatRow, settings: SamplingSettings, tokens: Sequence[int], banned: Sequence[int] = ()) -> FloatRow:
    """Apply the first half of the chain: bias and penalties. Returns `row` itself if there is nothing to change.

    Ids beyond the row are ignored, because the vocabulary of a draft model may be shorter.
    """
    window: Sequence[int] = ()
    if settings.penalizes and len(tokens):
        window = tokens if settings.repeat_last_n < 0 else tokens[-settings.repeat_last_n :]
        if min(window) < 0:  # images, which have no logits
            window = [token for token in window if token >= 0]
    if not (settings.logit_bias or len(banned) or len(window)):
        return row
    row = row.copy()
    for token, bias in settings.logit_bias:
        if token < len(row):
            row[token] += np.float32(bias)
    for token in banned:
        if token < len(row):
            row[token] = -np.inf
    if len(window):
        _penalize(row, settings, window)
    return row


def draw_from(row: FloatRow, settings: SamplingSettings, *, excludes: bool = False) -> Candidates:
    """Apply the second half of the chain to an adjusted row: truncation and temperature."""
    if settings.temperature == 0:
        candidates = Candidates(None, row) if settings.takes_peak else truncate(row, settings, excludes=excludes)
        best = np.array([peak(candidates.logits)])
        return Candidates(*_keep(candidates.ids, candidates.logits, best))
    candidates = truncate(row, settings, excludes=excludes)
    if settings.temperature == 1:
        return candidates
    return Candidates(candidates.ids, candidates.logits / np.float32(settings.temperature))


def truncate(row: FloatRow, settings: SamplingSettings, *, excludes: bool = False) -> Candidates:
    """Apply top-n-sigma, top-k, typical-p, top-p, min-p and XTC to an adjusted row, without temperature."""
    peak(row)
    ids: Indices | None = None
    logits = row
    if settings.top_n_sigma > 0:
        ids, logits = _keep(ids, logits, _within_sigmas(row, settings.top_n_sigma))
    if 0 < settings.top_k < len(logits):
        ids, logits = _keep(ids, logits, largest(logits, settings.top_k))
    if settings.typical_p < 1:
        kept = _typical(logits, settings.typical_p)
        ids, logits = _keep(ids, logits, kept)
    if settings.top_p < 1 or settings.min_p > 0:
        kept = _nucleus(logits, settings.top_p, settings.min_p)
        ids, logits = _keep(ids, logits, kept)
    if excludes:
        ids, logits = _keep(ids, logits, _unlikely(logits, settings.xtc_threshold))
    return Candidates(ids, logits)


def peak(row: FloatRow) -> int:
    """Return the index of the highest logit, the first of equals. Raises ValueError if no logit is finite."""
    best = int(row.argmax())  # the first NaN, if there is one
    if not math.isfinite(row[best]):
        raise ValueError(f"the model returned no finite logits: the best is {row[best]}")
    return best


def largest(values: FloatRow, k: int) -> Indices:
    """Return the indices of the k largest values, ascending, and the first of equal values. Skips -inf."""
    found = _at_least_kth(values, k)
    if len(found) > k:
        kept = values[found]
        kth = np.partition(kept, len(kept) - k)[len(kept) - k]
        best = (kept >= kth).nonzero()[0]
        if len(best) > k:  # drop the last of equal values
            ties, n_extra = (kept[best] == kth).nonzero()[0], len(best) - k
            best = np.delete(best, ties[-n_extra:])
        found = found[best]
    return found


def _at_least_kth(values: FloatRow, k: int) -> Indices:
    """Return the indices of a small superset of the k largest values.

    The values are arranged in n > k columns. The k-th largest maximum of a column is at most the k-th largest value, so
    all values below it are left out. Columns are interleaved because numpy computes maxima across rows 10 times as fast
    as along rows.
    """
    height = min(len(values) // (4 * k), 64)
    if height < 2:
        return (values > -np.inf).nonzero()[0]
    n_columns = len(values) // height
    maxima = values[: height * n_columns].reshape(height, n_columns).max(axis=0)
    maxima.partition(n_columns - k)
    bound = maxima[n_columns - k]
    found: Indices = (values >= bound if bound > -np.inf else values > bound).nonzero()[0]
    return found


def _penalize(row: FloatRow, settings: SamplingSettings, window: Sequence[int]) -> None:
    # np.unique is several times as slow for a usual window
    counts = {token: count for token, count in Counter(window).items() if token < len(row)}
    seen = np.array([*counts], np.intp)
    logits = row[seen]
    if settings.repeat_penalty != 1:
        repeat = np.float32(settings.repeat_penalty)
        logits = np.where(logits <= 0, logits * repeat, logits / repeat)
    frequencies = np.array([*counts.values()], np.float32) * np.float32(settings.frequency_penalty)
    row[seen] = logits - (frequencies + np.float32(settings.presence_penalty))


def _nucleus(logits: FloatRow, top_p: float, min_p: float) -> Indices:
    """Apply top-p and min-p. Both keep a head of the same ranking, so the faster min-p is applied first."""
    highest = logits.max()
    kept: Indices | None = None
    if min_p > 0:
        kept = (logits >= highest + np.float32(math.log(min_p))).nonzero()[0]
    if top_p < 1:
        weights = np.exp(logits - highest)
        mass = float(np.float32(top_p)) * float(weights.sum())
        head = weights if kept is None else weights[kept]
        ranks = logits if kept is None else logits[kept]
        leading = _shortest_head(ranks, head, mass, side="left")
        kept = leading if kept is None else kept[leading]
    assert kept is not None
    return kept


def _typical(logits: FloatRow, p: float) -> Indices:
    """Apply locally typical sampling (Meister et al. 2022, 2202.00666), which keeps tokens of typical surprise.

    These are the tokens whose surprise is nearest to the entropy. A probability that underflows to zero adds nothing to
    the entropy here; llama.cpp computes 0 log 0 = NaN.
    """
    log_p = logits - logits.max()
    weights = np.exp(log_p)
    total = weights.sum()
    log_p -= np.log(total)
    weights /= total
    possible = weights > 0
    entropy = -np.sum(weights[possible] * log_p[possible])
    nearness = np.where(possible, -np.abs(log_p + entropy), np.float32(-np.inf))
    return _shortest_head(nearness, weights, float(np.float32(p)), side="right")


def _within_sigmas(row: FloatRow, n: float) -> Indices:
    """Apply top-n-sigma (Tang et al. 2024, 2411.07641). Forbidden tokens do not count in the standard deviation."""
    possible = row if row.min() > -np.inf else row[row > -np.inf]
    kept: Indices = (row >= row.max() - np.float32(n) * possible.std()).nonzero()[0]
    return kept


def _unlikely(logits: FloatRow, threshold: float) -> Indices:
    """Apply XTC: drop all tokens of at least this probability, except for the least likely of them."""
    weights = np.exp(logits - logits.max())
    likely = ((weights >= np.float32(threshold) * weights.sum()) & (weights > 0)).nonzero()[0]
    if len(likely) < 2:
        return np.arange(len(logits))
    return np.delete(np.arange(len(logits)), np.delete(likely, logits[likely].argmin()))


def _shortest_head(ranks: FloatRow, weights: FloatRow, mass: float, side: Side) -> Indices:
    """Return the indices, ascending, of the fewest highest ranks whose weights reach `mass`, or exceed it ("right")."""
    if len(ranks) <= _FEW:
        head = _sorted_head(ranks, weights, mass, side)
        head.sort()
        return head
    leaders = largest(ranks, _FEW)
    if weights[leaders].sum(dtype=np.float64) > mass:
        return np.sort(leaders[_sorted_head(ranks[leaders], weights[leaders], mass, side)])
    # Bins instead of a full sort: all values in bins above the bin in which the mass is reached belong to the head.
    bins = np.minimum((ranks.max() - ranks) * _BINS_PER_NAT, _BINS - 1).astype(np.intp)
    reached = np.cumsum(np.bincount(bins, weights, _BINS))
    edge = min(int(np.searchsorted(reached, mass, side)), _BINS - 1)
    chosen = bins < edge
    before = float(reached[edge - 1]) if edge else 0.0
    at_edge = np.flatnonzero(bins == edge)
    chosen[at_edge[_sorted_head(ranks[at_edge], weights[at_edge], mass - before, side)]] = True
    return np.flatnonzero(chosen)


def _sorted_head(ranks: FloatRow, weights: FloatRow, mass: float, side: Side) -> Indices:
    order = (-ranks).argsort(kind="stable")
    reached = list(accumulate(weights[order].tolist()))
    return order[: (bisect_left if side == "left" else bisect_right)(reached, mass) + 1]


def _keep(ids: Indices | None, logits: FloatRow, kept: Indices) -> tuple[Indices, FloatRow]:
    return (kept if ids is None else ids[kept]), logits[kept]


_FEW = 256  # highest ranks to sort first; usually they reach the mass
_BINS, _BINS_PER_NAT = 4096, 128


def _check_number(name: str, facts: Facts, value: Any) -> None:
    """Raise SettingError unless the value is a number within the limits of its setting, and not too large."""
    kinds = (int, np.integer) if facts.kind == "integer" else (int, float, np.integer, np.floating)
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if facts.kind == "integer":
        _require(is_number, name, "a whole number", value)
    elif facts.most is None:
        _require(is_number and abs(value) <= MILLION, name, "a number of at most a million", value)
    else:
        _require(is_number, name, "a number", value)
    if not facts.allows(value):
        raise SettingError(name, f"{facts.range}, not {value}")


def _require(holds: bool, name: str, must: str, value: object) -> None:
    if not holds:
        raise SettingError(name, f"{must}, not {value}")
