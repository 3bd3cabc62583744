"""With shared noise the first candidate tends to be the target's choice. With separate noise, candidates are samples
without replacement from the draft's distribution."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from enumeration import Chance, drawn, outcomes, surprise
from rows import GREEDY, OFF, frozen

from edgespec.core.candidates import draft_candidates
from edgespec.core.distribution import Distribution
from edgespec.core.sampler import Sampler
from edgespec.core.sampling import FloatRow, SamplingSettings

PENALIZED = replace(OFF, repeat_penalty=1.5, presence_penalty=0.3, logit_bias=((4, 1.0), (0, -np.inf)))
CHAINS = [
    OFF,
    GREEDY,
    SamplingSettings(),
    replace(OFF, temperature=1.7),
    replace(OFF, top_k=3, temperature=0.6),
    replace(OFF, top_p=0.7),
    replace(OFF, min_p=0.2),
    replace(OFF, typical_p=0.6),
    replace(GREEDY, typical_p=0.5),
    PENALIZED,
    replace(PENALIZED, temperature=0),
    replace(SamplingSettings(), repeat_penalty=1.2, repeat_last_n=2),
    replace(OFF, xtc_probability=0.5, xtc_threshold=0.05, top_n_sigma=2.0),
    replace(GREEDY, xtc_probability=0.5, xtc_threshold=0.05),
    replace(GREEDY, dry_multiplier=5.0, dry_allowed_length=1),
]


def make_rows() -> dict[str, FloatRow]:
    random = np.random.default_rng(5)
    return {
        "eight": frozen([1.0, 2.0, 0.5, 1.8, -1.0, 0.0, 2.2, -3.0]),
        "ties": frozen(np.round(random.normal(0, 2, 20_000))),
        "sure": frozen(np.where(np.arange(8_000) == 4_321, 40, random.normal(0, 1, 8_000))),
        "masked": frozen(np.where(random.random(3_000) < 0.95, -np.inf, random.normal(0, 2, 3_000))),
    }


ROWS = make_rows()


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("chain", CHAINS)
def test_a_model_that_drafts_for_itself_is_always_accepted(chain: SamplingSettings, name: str) -> None:
    row = ROWS[name]
    sampler = Sampler(chain, 6, 1, len(row), banned=[6])
    for position in range(10):
        chosen = sampler.choose(row, [1, 2, 2], position).id
        assert draft_candidates(sampler, row, [1, 2, 2], position, 1)[0].token == chosen
        assert draft_candidates(sampler, row, [1, 2, 2], position, 4)[0].token == chosen


@pytest.mark.parametrize("draw", [None, 3])
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("chain", CHAINS)
def test_siblings_differ_and_may_follow_and_come_best_first(
    chain: SamplingSettings, name: str, draw: int | None
) -> None:
    row = ROWS[name]
    sampler = Sampler(chain, 6, 0, len(row), banned=[6])
    for position in range(10):
        possible = sampler.distribution(row, [1, 2, 2], position)
        found = draft_candidates(sampler, row, [1, 2, 2], position, 5, draw)
        tokens = [candidate.token for candidate in found]
        assert len(set(tokens)) == len(tokens) >= 1
        assert all(0 < candidate.confidence < 1 for candidate in found)
        assert all(earlier.confidence >= later.confidence for earlier, later in pairwise(found))
        if chain.temperature > 0:
            assert len(found) == min(5, np.count_nonzero(possible.p))
            assert all(possible.probability(token) > 0 for token in tokens)


@pytest.mark.slow
def test_common_noise_couples_two_models() -> None:
    """Candidates match at least as often as (1 - TV) / (1 + TV) (2408.07978), and more often when confident."""
    random = np.random.default_rng(0)
    target, draft = (frozen(random.normal(0, 0.7, 200) + 3 * (np.arange(200) < 6)) for _ in range(2))
    sampler = Sampler(OFF, 1, 0, 200)
    distance = 0.5 * np.abs(sampler.distribution(target, [], 0).p - sampler.distribution(draft, [], 0).p).sum()
    hits, confidences = np.zeros(4_000, bool), np.zeros(4_000)
    for position in range(4_000):
        [candidate] = draft_candidates(sampler, draft, [], position, 1)
        confidences[position] = candidate.confidence
        hits[position] = candidate.token == sampler.choose(target, [], position).id
    assert hits.mean() > (1 - distance) / (1 + distance) - 0.03
    sure = confidences > np.median(confidences)
    assert hits[sure].mean() > hits[~sure].mean() + 0.1


def test_with_common_noise_more_candidates_match_more_often() -> None:
    random = np.random.default_rng(0)
    target, draft = (frozen(random.normal(0, 1.5, 50)) for _ in range(2))
    sampler = Sampler(OFF, 1, 0, 50)
    hits = np.zeros(3)
    for position in range(1_000):
        tokens = [candidate.token for candidate in draft_candidates(sampler, draft, [], position, 3)]
        chosen = sampler.choose(target, [], position).id
        hits += [token == chosen for token in tokens]
    assert hits[0] > 1.5 * hits[1] > 1.5 * hits[2] > 0


# --- temperature 0 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [None, 3])
def test_greedy_candidates_are_the_likeliest_with_their_probabilities(draw: int | None) -> None:
    row = frozen(np.log([0.05, 0.2, 0.05, 0.7]))
    found = draft_candidates(Sampler(GREEDY, 0, 0, 4), row, [], 0, 3, draw)
    assert [candidate.token for candidate in found] == [3, 1, 0]
    assert [candidate.confidence for candidate in found] == pytest.approx([0.7, 0.2, 0.05], abs=1e-6)
    assert [candidate.distribution for candidate in found] == [None] * 3


def test_greedy_candidates_with_typical_p_come_from_the_typical_tokens() -> None:
    row = frozen(np.log([0.4, *[0.06] * 10]))
    found = draft_candidates(Sampler(replace(GREEDY, typical_p=0.5), 0, 0, 11), row, [], 0, 2)
    assert [candidate.token for candidate in found] == [1, 2]
    assert [candidate.confidence for candidate in found] == pytest.approx([0.06, 0.06], abs=1e-6)


# --- samples --------------------------------------------------------------------------------------------------------


@pytest.mark.long(but=3)
@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("chain", [OFF, replace(OFF, top_k=3), replace(PENALIZED, temperature=0.8)])
def test_samples_are_without_replacement_from_the_distribution_of_the_chain(chain: SamplingSettings, k: int) -> None:
    row, prefix = frozen([1.0, 2.0, 0.5, 1.8, -1.0]), [1, 2, 2]
    distribution = Sampler(chain, 0, 0, 5).distribution(row, prefix, 3)
    joint = {
        tuple(token for token, _ in found): probability
        for found, probability in outcomes(lambda chance: drawn(k)(chance, distribution))
    }
    by_seed = [tokens_drawn(Sampler(chain, seed, 0, 5), row, prefix, k, step=1) for seed in range(1_000)]
    by_round = [tokens_drawn(Sampler(chain, 3, 0, 5), row, prefix, k, step) for step in range(1_000)]
    assert surprise(by_seed, joint) < 1
    assert surprise(by_round, joint) < 1


@pytest.mark.parametrize("chain", [OFF, SamplingSettings(), PENALIZED])
def test_a_sample_carries_the_distribution_given_the_samples_before_it(chain: SamplingSettings) -> None:
    row, prefix = frozen([1.0, 2.0, 0.5, 1.8, -1.0]), [1, 2, 2]
    sampler = Sampler(chain, 5, 0, 5)
    found = draft_candidates(sampler, row, prefix, 3, 5, 0)
    scripted = Chance([])
    expected = sampler.distribution(row, prefix, 3)
    for number, candidate in enumerate(found):
        assert candidate.distribution is not None
        if number:
            left = expected.without(found[number - 1].token)
            assert left is not None
            expected = left
        assert dense(candidate.distribution) == pytest.approx(dense(expected), abs=1e-12)
        assert scripted.draw(candidate.distribution) in candidate.distribution.ids  # a distribution: sums to one


def test_samples_are_independent_of_the_target_and_differ_by_step() -> None:
    row = frozen(np.zeros(1_000))
    sampler = Sampler(OFF, 1, 0, 1_000)
    draws = [tokens_drawn(sampler, row, [], 1, step)[0] for step in range(30)]
    assert len(set(draws)) > 25
    assert sampler.choose(row, [], 0).id not in draws
    assert draws == [tokens_drawn(sampler, row, [], 1, step)[0] for step in range(30)]


@pytest.mark.parametrize("chain", [OFF, SamplingSettings(), replace(OFF, top_k=3)])
def test_the_confidence_of_a_sample_does_not_depend_on_the_sampled_token(chain: SamplingSettings) -> None:
    """The confidence of the first sample depends only on the row, that of others also on the samples before."""
    row = ROWS["eight"]
    sampler = Sampler(chain, 1, 0, 8)
    found = [draft_candidates(sampler, row, [], 0, 3, step) for step in range(300)]
    assert len({first.token for first, *_ in found}) > 1
    assert len({first.confidence for first, *_ in found}) == 1
    for number in (1, 2):
        by_earlier: dict[tuple[int, ...], set[float]] = {}
        for siblings in found:
            earlier = tuple(candidate.token for candidate in siblings[:number])
            by_earlier.setdefault(earlier, set()).add(siblings[number].confidence)
        assert {len(confidences) for confidences in by_earlier.values()} == {1}
        assert len(by_earlier) < len(found)


@pytest.mark.parametrize("seed", range(5))
def test_rounding_does_not_change_the_order_of_confidences(seed: int) -> None:
    """Trees keep the more confident sibling. It must be the first, or dropping would depend on the sampled tokens."""
    row = frozen(np.random.default_rng(seed).normal(0, 0.5, 40))
    for step in range(200):
        found = draft_candidates(Sampler(OFF, seed, 0, 40), row, [], 0, 6, step)
        assert all(earlier.confidence >= later.confidence for earlier, later in pairwise(found))


# --- rows of other lengths, bad rows --------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [None, 3])
@pytest.mark.parametrize("chain", CHAINS)
def test_padding_of_the_drafts_vocabulary_changes_nothing(chain: SamplingSettings, draw: int | None) -> None:
    row = ROWS["eight"]
    padded = frozen([*row, 9.0, 9.0])
    sampler = Sampler(chain, 2, 0, 8)
    for position in range(5):
        plain, long = (draft_candidates(sampler, some, [1, 7], position, 3, draw) for some in (row, padded))
        assert [(candidate.token, candidate.confidence) for candidate in long] == [
            (candidate.token, candidate.confidence) for candidate in plain
        ]


@pytest.mark.parametrize("draw", [None, 3])
@pytest.mark.parametrize("chain", CHAINS)
def test_the_drafts_vocabulary_may_be_the_shorter_one(chain: SamplingSettings, draw: int | None) -> None:
    row = ROWS["eight"]
    sampler = Sampler(replace(chain, logit_bias=((4, 1.0), (11, 5.0))), 2, 0, 12, banned=[10])
    for position in range(5):
        found = draft_candidates(sampler, row, [1, 7, 9], position, 3, draw)
        assert {candidate.token for candidate in found} <= set(range(8))


@pytest.mark.parametrize("draw", [None, 3])
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_row_without_finite_logits_is_refused(chain: SamplingSettings, bad: float, draw: int | None) -> None:
    with pytest.raises(ValueError, match="no finite logits"):
        draft_candidates(Sampler(chain, 0, 0, 50), np.full(50, bad, np.float32), [], 0, 2, draw)


def tokens_drawn(sampler: Sampler, row: FloatRow, prefix: list[int], k: int, step: int) -> tuple[int, ...]:
    return tuple(candidate.token for candidate in draft_candidates(sampler, row, prefix, len(prefix), k, step))


def dense(distribution: Distribution) -> list[float]:
    return [distribution.probability(token) for token in range(8)]
