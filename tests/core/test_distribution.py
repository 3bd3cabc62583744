"""Operations on distributions match tokens by id, because truncation may leave different tokens in each."""

from __future__ import annotations

import numpy as np
import pytest
from enumeration import some
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.distribution import Distribution
from edgespec.core.sampling import Candidates, SamplingSettings, apply_chain

TOKENS = 6


def dense(distribution: Distribution) -> list[float]:
    return [distribution.probability(token) for token in range(TOKENS)]


@st.composite
def distributions(draw: st.DrawFn) -> Distribution:
    """Generate distributions over some of the tokens, with zeros among the probabilities."""
    ids = sorted(draw(st.sets(st.integers(0, TOKENS - 1), min_size=1)))
    weights = draw(st.lists(st.integers(0, 5), min_size=len(ids), max_size=len(ids)).filter(any))
    return Distribution(np.array(ids), np.array(weights) / sum(weights))


def test_a_distribution_is_the_softmax_of_what_the_sampling_chain_leaves() -> None:
    row = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))
    settings = SamplingSettings(temperature=1, top_k=2, top_p=1, min_p=0)
    kept = Distribution.of(apply_chain(row, settings))
    assert kept.ids.tolist() == [1, 3]
    assert kept.p == pytest.approx([4 / 7, 3 / 7], abs=1e-7)
    cold = Distribution.of(apply_chain(row, SamplingSettings(temperature=0.5, top_k=0, top_p=1, min_p=0)))
    assert dense(cold) == pytest.approx([1 / 30, 16 / 30, 4 / 30, 9 / 30, 0, 0], abs=1e-6)
    assert dense(Distribution.of(apply_chain(row, SamplingSettings(temperature=0)))) == [0, 1, 0, 0, 0, 0]


def test_large_logits_and_forbidden_tokens_are_no_trouble() -> None:
    kept = Distribution.of(Candidates(None, np.array([-np.inf, 1e6, 1e6, -1e6], np.float32)))
    assert kept.p.tolist() == [0, 0.5, 0.5, 0]


@given(distributions())
@pytest.mark.slow
def test_a_token_beyond_the_distribution_has_no_probability(distribution: Distribution) -> None:
    assert sum(dense(distribution)) == pytest.approx(1)
    missing = set(range(-1, TOKENS + 2)) - set(distribution.ids.tolist())
    assert all(distribution.probability(token) == 0 for token in missing)


@given(distributions(), distributions(), st.sampled_from([1.0, 0.7, 0.0]))
@pytest.mark.slow
def test_the_residual_goes_by_token(p: Distribution, q: Distribution, scale: float) -> None:
    expected = np.maximum(scale * np.array(dense(p)) - np.array(dense(q)), 0)
    above = p.excess(q, scale)
    assert above.sum() == pytest.approx(expected.sum())
    rest = p.residual(q, scale)
    assert dense(rest) == pytest.approx(expected / expected.sum() if above.sum() > 0 else dense(p))


@given(distributions())
def test_where_nothing_is_left_the_residual_is_the_distribution_itself(distribution: Distribution) -> None:
    assert dense(distribution.residual(distribution)) == dense(distribution)
    assert dense(distribution.residual(Distribution.point(0), 0.0)) == dense(distribution)


def test_a_disjoint_distribution_leaves_the_residual_unchanged() -> None:
    p, q = some({0: 0.25, 3: 0.75}), some({1: 0.5, 5: 0.5})
    assert dense(p.residual(q)) == dense(p)
    assert p.excess(some({4: 1.0})).tolist() == [0.25, 0.75]


@given(distributions(), st.integers(0, TOKENS - 1))
def test_without_a_token_the_others_keep_their_proportions(distribution: Distribution, token: int) -> None:
    others = np.array(dense(distribution))
    others[token] = 0
    left = distribution.without(token)
    if others.sum() == 0:
        assert left is None
    else:
        assert left is not None
        assert dense(left) == pytest.approx(others / others.sum())
        assert left.ids.tolist() == sorted(left.ids.tolist())


def test_a_point_is_all_on_one_token() -> None:
    assert dense(Distribution.point(2)) == [0, 0, 1, 0, 0, 0]
    assert Distribution.point(2).without(2) is None
