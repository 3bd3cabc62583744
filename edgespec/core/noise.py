"""Counter-based noise: a number for each seed, sample, position and token, independent of the order of calls.

A generator with a state would not do: the number of forward passes depends on the drafts, so the state at a position
would too, and drafts would change the text.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

BITS = 23  # (h + 0.5) / 2^23 is exact in float32 and never 0 or 1

Ids = npt.NDArray[np.integer]
Hashes = npt.NDArray[np.uint32]
_MASK = (1 << 64) - 1
_USUAL = 1 << 18  # few vocabularies are larger


class NoiseStream(IntEnum):
    """Independent sources of noise for one position. The numbers never change: a seed would give another text."""

    TOKEN = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    EXCLUDE = 4


def gumbel64(hashed: Hashes) -> npt.NDArray[np.float64]:
    """Return standard Gumbel noise, float64[n], of `hashes`: numbers in [-2.82, 16.64] that increase with the hash."""
    noise: npt.NDArray[np.float64] = -np.log(-np.log(_uniforms(hashed)))
    return noise


def uniform(key: tuple[int, int], token: int = 0) -> float:
    """Return one uniform number in (0, 1)."""
    return float(_uniforms(hashes(key, np.array([token])))[0])


def key(
    seed: int, sample: int, position: int, stream: NoiseStream = NoiseStream.TOKEN, step: int = 0
) -> tuple[int, int]:
    """Return two 32-bit words from all arguments; `position` is the index of the token to sample. Raises ValueError for
    a seed of more than 64 bits."""
    if not 0 <= seed <= _MASK:
        raise ValueError(f"seed must be from 0 to 2^64 - 1, not {seed}")
    state = _mix64(seed)
    for word in (sample, position, int(stream), step):
        state = _mix64(state + word)
    return state >> 32, state & 0xFFFFFFFF


def hashes(key: tuple[int, int], ids: int | Ids) -> Hashes:
    """Return a 32-bit hash for each id, uint32[n], all different.

    The ids are permuted twice, the first time without a key: otherwise the hashes of two keys would share patterns.
    """
    if isinstance(ids, int):
        scattered = _scattered(ids).copy()
    else:
        try:
            scattered = _scattered(_USUAL).take(ids)  # looking up a few ids is faster than permuting them
        except IndexError:
            scattered = ids.astype(np.uint32)
            _permute(scattered, (0, 0))
    _permute(scattered, key)
    return scattered


def least_hash(noise: float) -> int:
    """Return a hash below which every hash has less Gumbel noise than `noise`."""
    at = int(np.exp(-np.exp(-noise)) * (1 << BITS)) - 1
    return max(at, 0) << (32 - BITS)


@lru_cache(maxsize=4)
def _scattered(n: int) -> Hashes:
    scattered = np.arange(n, dtype=np.uint32)
    _permute(scattered, (0, 0))
    scattered.flags.writeable = False
    return scattered


def _permute(x: Hashes, key: tuple[int, int]) -> None:
    """Permute the 32-bit words in place: lowbias32 (Wellons, hash-prospector) with a key word before each round."""
    shifted = np.empty_like(x)
    for word, shift, multiplier in ((key[0], 16, 0x21F0AAAD), (key[1], 15, 0x735A2D97)):
        x ^= np.uint32(word)
        np.right_shift(x, shift, out=shifted)
        x ^= shifted
        x *= np.uint32(multiplier)
    np.right_shift(x, 15, out=shifted)
    x ^= shifted


def _uniforms(hashed: Hashes) -> npt.NDArray[np.float64]:
    uniforms: npt.NDArray[np.float64] = ((hashed >> np.uint32(32 - BITS)) + 0.5) / (1 << BITS)
    return uniforms


def _mix64(word: int) -> int:
    """One step of splitmix64 (Steele, Lea and Flood 2014)."""
    word = (word + 0x9E3779B97F4A7C15) & _MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)
