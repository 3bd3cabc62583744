"""The noise is uniform, independent in every key, and never changes between versions and platforms."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.noise import BITS, NoiseStream, gumbel64, hashes, key, least_hash, uniform

N = 100_000


def gumbel(seed: int, sample: int, position: int, ids: int | npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    return gumbel64(hashes(key(seed, sample, position), ids))


def test_golden_values() -> None:
    """The values may never change: a seed would give another text."""
    assert hashes(key(0, 0, 0), 4).tolist() == [675070423, 3637507375, 1126984882, 3327596227]
    assert hashes(key(1, 0, 0), 4).tolist() == [4263504182, 1396596961, 23911302, 1718823097]
    assert hashes(key(0, 1, 0), 4).tolist() == [395387726, 3394009483, 1727010044, 1026756318]
    assert hashes(key(0, 0, 1), 4).tolist() == [3883280059, 4175546143, 1609946527, 1683416441]
    assert hashes(key(2**64 - 1, 3, 100_000), 4).tolist() == [1822607221, 1595513818, 526318941, 3361408068]
    assert hashes(key(42, 1, 7, NoiseStream.RESIDUAL, 5), np.array([0, 151_935])).tolist() == [113515572, 2282002878]
    assert uniform(key(42, 1, 7, NoiseStream.ACCEPT, 5)) == pytest.approx(0.1951621174812317, abs=1e-15)
    assert gumbel(1, 0, 0, 4) == pytest.approx([4.9127078, -0.1163645, -1.6468982, 0.0879530], abs=2e-6)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**31 - 1))
def test_the_arrays_agree_with_plain_integer_arithmetic(seed: int, sample: int, position: int, id: int) -> None:
    x = id
    for words in ((0, 0), key(seed, sample, position)):
        for word, shift, multiplier in zip(words, (16, 15), (0x21F0AAAD, 0x735A2D97), strict=True):
            x ^= word
            x = (x ^ (x >> shift)) * multiplier & 0xFFFFFFFF
        x ^= x >> 15
    assert hashes(key(seed, sample, position), np.array([id])).tolist() == [x]


def test_any_ids_in_any_order_get_what_they_get_in_the_whole_vocabulary() -> None:
    ids = np.array([5, 99_999, 0, 5, 1_234], np.int32)
    assert gumbel(3, 0, 12, ids).tolist() == gumbel(3, 0, 12, N)[ids].tolist()


def test_noise_is_finite_at_both_ends_of_the_hash() -> None:
    ends = gumbel64(np.array([0, 0xFFFFFFFF], np.uint32))
    assert ends == pytest.approx([-np.log(24 * np.log(2)), 24 * np.log(2)], abs=1e-6)


@given(st.floats(-2, 16))
def test_every_hash_below_the_least_has_less_noise(noise: float) -> None:
    least = least_hash(noise)
    below = np.array([max(least - 1, 0)], np.uint32)
    assert least == 0 or gumbel64(below)[0] < noise
    above = np.array([min(least + (3 << (32 - BITS)), 0xFFFFFFFF)], np.uint32)
    assert gumbel64(above)[0] >= noise


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_has_64_bits(seed: int) -> None:
    with pytest.raises(ValueError, match="seed"):
        key(seed, 0, 0)


def test_noise_follows_the_gumbel_distribution() -> None:
    noise = np.concatenate([gumbel(9, 0, position, N) for position in range(10)])
    assert noise.mean() == pytest.approx(0.5772157, abs=5 * 1.2825 / 1e6**0.5)
    assert noise.var() == pytest.approx(np.pi**2 / 6, abs=0.015)
    below = [(noise < x).mean() for x in (-1.5, 0.0, 1.0, 3.0, 6.0)]
    assert below == pytest.approx([float(np.exp(-np.exp(-x))) for x in (-1.5, 0.0, 1.0, 3.0, 6.0)], abs=0.0025)


def over_ids() -> npt.NDArray[np.uint32]:
    return hashes(key(11, 0, 5), N)


@cache
def over_positions() -> npt.NDArray[np.uint32]:
    return np.concatenate([hashes(key(11, 0, position), np.array([77])) for position in range(10_000)])


@cache
def over_seeds() -> npt.NDArray[np.uint32]:
    return np.concatenate([hashes(key(seed, 0, 5), np.array([77])) for seed in range(10_000)])


@cache
def over_samples() -> npt.NDArray[np.uint32]:
    return np.concatenate([hashes(key(11, sample, 5), np.array([77])) for sample in range(10_000)])


@cache
def over_steps() -> npt.NDArray[np.uint32]:
    return np.concatenate([hashes(key(11, 0, 5, NoiseStream.ACCEPT, step), np.array([0])) for step in range(10_000)])


every_counter = pytest.mark.parametrize("series", [over_ids, over_positions, over_seeds, over_samples, over_steps])


@pytest.mark.slow
@every_counter
def test_uniform_along_every_counter(series: object) -> None:
    assert callable(series)
    for shift in (24, 16, 9):
        assert_chi_square(np.bincount((series() >> np.uint32(shift)) & np.uint32(0xFF), minlength=256))


@every_counter
def test_neighbours_along_every_counter_are_independent(series: object) -> None:
    assert callable(series)
    top = (series() >> np.uint32(28)).astype(np.int64)
    for n_unread in (1, 2, 64):
        assert_chi_square(np.bincount(top[:-n_unread] * 16 + top[n_unread:], minlength=256))


def test_arrays_of_neighbouring_keys_are_independent() -> None:
    keys = [key(5, 0, position) for position in range(6)]
    keys += [key(seed, 0, 0) for seed in (0, 1, 2, 3, 2**32, 2**63)]
    keys += [key(5, sample, 0) for sample in (1, 2)]
    keys += [key(5, 0, 0, stream, step) for stream in NoiseStream if stream != NoiseStream.TOKEN for step in (0, 1)]
    assert len(set(keys)) == len(keys)
    noise = [hashes(one, N) for one in keys]
    for first, second in pairwise(noise):
        joint = (first >> np.uint32(28)).astype(np.int64) * 16 + (second >> np.uint32(28))
        assert_chi_square(np.bincount(joint, minlength=256))
    correlation = np.corrcoef(np.array(noise, np.float64)) - np.eye(len(noise))
    assert np.abs(correlation).max() < 5 / N**0.5


@pytest.mark.slow
def test_no_array_is_a_rearrangement_of_another() -> None:
    """Two arrays share as many values as independent ones: the number has a Poisson distribution."""
    noise = [hashes(key(1, 0, position), N) for position in range(30)]
    shared = [len(np.intersect1d(first, second, assume_unique=True)) for first, second in pairwise(noise)]
    expected = N * N / 2**32
    assert np.mean(shared) == pytest.approx(expected, abs=5 * (expected / 29) ** 0.5)
    assert np.var(shared) == pytest.approx(expected, abs=1.2 * expected)


def test_hashes_of_one_array_never_collide() -> None:
    assert len(np.unique(hashes(key(1, 2, 3), N))) == N


def test_every_bit_of_an_id_moves_every_bit_of_the_noise() -> None:
    ids = np.arange(20_000)
    plain = hashes(key(8, 0, 1), ids)
    for bit in range(18):
        flips = plain ^ hashes(key(8, 0, 1), ids ^ (1 << bit))
        rates = [float(((flips >> np.uint32(out)) & np.uint32(1)).mean()) for out in range(9, 32)]
        assert 0.47 < min(rates) <= max(rates) < 0.53


@pytest.mark.slow
def test_uniforms_lie_inside_the_unit_interval_and_spread() -> None:
    draws = np.array([uniform(key(1, 0, position, NoiseStream.ACCEPT)) for position in range(10_000)])
    assert 0 < draws.min() < 0.001
    assert 0.999 < draws.max() < 1
    assert_chi_square(np.bincount((draws * 100).astype(np.int64), minlength=100))


def assert_chi_square(counts: npt.NDArray[np.integer]) -> None:
    """Assert that the counts fit a uniform distribution: chi-square within 5 standard deviations of its mean."""
    expected = counts.sum() / len(counts)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5
