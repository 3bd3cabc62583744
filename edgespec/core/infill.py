"""The sampler for code completions: it merges candidates that begin alike, and prefers the end to unlikely tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgespec.core.sampling import Candidates

MOST_CANDIDATES = 256
LEAST_P = 0.2  # of a candidate after merging
END_WEIGHT = 3  # for each candidate


@dataclass(frozen=True, slots=True)
class Infill:
    """Keeps the candidates that llama.cpp's sampler `infill` keeps.

    Only end tokens are kept if their probability, multiplied by three and by the number of candidates, exceeds that of
    the other tokens. Otherwise tokens whose texts begin alike are merged, and tokens that are still unlikely are
    dropped.

    Attributes:
        text: The bytes of a token.
        is_end: True for tokens that end an answer.
        end: The token that is chosen if all others are too unlikely; None: the most likely one.
    """

    text: Callable[[int], bytes]
    is_end: Callable[[int], bool]
    end: int | None

    def __call__(self, candidates: Candidates) -> Candidates:
        """Return the candidates that are kept, at least one of them. Raises ValueError if there are too many."""
        if len(candidates.logits) > MOST_CANDIDATES:
            raise ValueError(f"infill chooses from at most {MOST_CANDIDATES} candidates")
        order = np.argsort(-candidates.logits, kind="stable")
        ids = [int(id) for id in (order if candidates.ids is None else candidates.ids[order])]
        p = np.exp((candidates.logits[order] - candidates.logits.max()).astype(np.float64))
        p /= p.sum()
        ends = np.array([self.is_end(id) for id in ids])
        if END_WEIGHT * p[ends].sum() * len(ids) > p[~ends].sum():
            return _of(candidates, order[ends])
        self._merge(ids, p)
        kept = (p >= LEAST_P) | ends
        n_texts = int((kept & ~ends).sum())
        if not n_texts:
            alone = ids[0] if self.end is None else self.end
            return Candidates(np.array([alone]), np.zeros(1, np.float32))
        p /= p[kept].sum()
        return _of(candidates, order[kept & ((p >= 1 / (n_texts + 1)) | ends)])

    def _merge(self, ids: list[int], p: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
        """Add the probability of the less likely of two tokens to the other one, if one of their texts begins with the
        other's."""
        texts = [self.text(id) for id in ids]
        places: dict[bytes, list[int]] = {}
        for place, text in enumerate(texts):
            places.setdefault(text, []).append(place)
        begun = [
            (short, long)
            for long, text in enumerate(texts)
            for length in range(1, len(text) + 1)
            for short in places.get(text[:length], ())
            if short != long
        ]
        for pair in sorted(begun):
            if p[pair[0]] and p[pair[1]]:
                less, more = sorted(pair, key=lambda place: (p[place], place != pair[1]))
                p[more] += p[less]
                p[less] = 0


def _of(candidates: Candidates, places: np.ndarray[tuple[int], np.dtype[np.intp]]) -> Candidates:
    kept = np.sort(places)
    return Candidates(kept if candidates.ids is None else candidates.ids[kept], candidates.logits[kept])
