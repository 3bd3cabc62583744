"""DRY ("don't repeat yourself"): a penalty on tokens that would continue a repetition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from edgespec.core.sampling import FloatRow, Indices, SamplingSettings

Breakers = Mapping[int, Sequence[tuple[int, ...]]]
"""The sequences of tokens that end a repetition: their first tokens, each with the tokens that may follow it. An empty
tuple says that the first token alone is such a sequence."""

LONGEST = 1024  # tokens of a repetition that count, so that a hostile text cannot take a second for each token
_LOG_OF_LARGEST = np.float32(88.7228391)  # of float32; a larger power would overflow
_RECENT = 64  # tokens at the end of a text that may change, because they are drafted
_NONE = np.empty(0, np.intp)
_SHORT = 256  # converting so few tokens is faster than comparing them


class Dry:
    """The penalty of llama.cpp's sampler `dry`, which was koboldcpp's.

    If the last n tokens of a text occur earlier in it, the token that followed them there is penalized by
    multiplier * base^(n - allowed length). Several threads may use it.
    """

    def __init__(self, settings: SamplingSettings, breakers: Breakers) -> None:
        self._settings, self._breakers = settings, breakers
        # The last entries are those of all larger ids.
        self._is_head, self._is_alone = np.zeros((2, max(breakers, default=-1) + 2), np.bool_)
        self._is_head[[*breakers]] = True
        self._is_alone[[head for head, tails in breakers.items() if () in tails]] = True
        base = settings.dry_base
        # llama.cpp does not limit the exponent of a base that is this close to 1.
        self._most = int(_LOG_OF_LARGEST / np.log(np.float32(base))) if base > 1.000001 else LONGEST
        self._held: tuple[list[int], Indices] = [], _NONE

    def applied(self, row: FloatRow, tokens: Sequence[int], *, may_change: bool = False) -> FloatRow:
        """Return the logits after the prefix `tokens`: `row` itself if no token is penalized, or if it `may_change`.
        Ids beyond it are ignored."""
        ids, penalty = self.penalties(tokens)
        n_inside = int(np.searchsorted(ids, len(row)))
        if not n_inside:
            return row
        if not may_change:
            row = row.copy()
        row[ids[:n_inside]] -= penalty[:n_inside]
        return row

    def penalties(self, tokens: Sequence[int]) -> tuple[Indices, FloatRow]:
        """Return the tokens to penalize after the prefix `tokens`, ascending, and how much to subtract from their
        logits."""
        ids = self._window(tokens)
        allowed = self._settings.dry_allowed_length
        limit = self._limit(ids) if len(ids) > allowed else -1
        lengths = _repeated(ids, min(limit, allowed + self._most, LONGEST)) if limit >= allowed else _NONE
        found = (lengths >= allowed).nonzero()[0]
        found = found[~self._is_alone.take(ids[found + 1], mode="clip")]
        if not len(found):
            return _NONE, _NONE.astype(np.float32)
        found = found[(-lengths[found]).argsort(kind="stable")]
        penalized, longest = np.unique(ids[found + 1], return_index=True)
        exponents = np.minimum(lengths[found[longest]] - allowed, self._most)
        powers = float(np.float32(self._settings.dry_base)) ** exponents.astype(np.float64)
        penalty = np.minimum(float(np.float32(self._settings.dry_multiplier)) * powers, np.finfo(np.float32).max)
        return penalized, penalty.astype(np.float32)

    def _window(self, tokens: Sequence[int]) -> Indices:
        """Return the tokens in which repetitions are looked for, without images."""
        last_n = self._settings.dry_penalty_last_n
        n = len(tokens) if last_n < 0 else min(last_n, len(tokens))
        if n <= _SHORT:
            ids: Indices = np.array(tokens[len(tokens) - n :], np.intp)
        else:
            known, held = self._held
            if tokens[: len(known)] != known:
                known, held = [], _NONE
            ids = np.concatenate([held, np.array(tokens[len(known) :], np.intp)])
            if len(tokens) - len(known) > 2 * _RECENT:
                self._held = [*tokens[:-_RECENT]], ids[:-_RECENT]
            ids = ids[len(ids) - n :]
        return ids[ids >= 0] if len(ids) and ids.min() < 0 else ids

    def _limit(self, ids: Indices) -> int:
        """Return the number of tokens after the last breaker: a repetition is not longer than that."""
        n = len(ids)
        heads: list[int] = self._is_head.take(ids, mode="clip").nonzero()[0].tolist()
        for at in reversed(heads):
            tails = self._breakers[int(ids[at])]
            found = [len(tail) for tail in tails if [*tail] == ids[at + 1 : at + 1 + len(tail)].tolist()]
            if found:
                return n - 1 - at - max(found)
        return n


def _repeated(ids: Indices, most: int) -> npt.NDArray[np.intp]:
    """Return for each token but the last one how many tokens up to it equal the last tokens of all, at most `most`."""
    lengths = np.zeros(len(ids) - 1, np.intp)
    ends = (ids[:-1] == ids[-1]).nonzero()[0]
    length = 0
    while length < most and len(ends):
        length += 1
        lengths[ends] = length
        ends = ends[ends >= length]
        ends = ends[ids[ends - length] == ids[-1 - length]]
    return lengths
