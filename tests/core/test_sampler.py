"""Choices are repeatable samples from the chain's distribution, and pruning never changes a choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from enumeration import Joint, some, surprise
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from rows import GREEDY, OFF, frozen

from edgespec.core.noise import NoiseStream, gumbel64, hashes, key
from edgespec.core.sampler import Sampler, perturbed_best, perturbed_ranking
from edgespec.core.sampling import Candidates, FloatRow, SamplingSettings, apply_chain

LARGE = 151_936

CHAINS = [
    OFF,
    SamplingSettings(),
    replace(OFF, temperature=1.7),
    replace(OFF, top_k=3, temperature=0.6),
    replace(OFF, top_p=0.7),
    replace(OFF, min_p=0.2),
    replace(OFF, typical_p=0.6),
    replace(OFF, repeat_penalty=1.5, presence_penalty=0.3, logit_bias=((4, 1.0), (0, -np.inf))),
    replace(OFF, top_n_sigma=1.0),
]


def make_rows() -> dict[str, FloatRow]:
    random = np.random.default_rng(5)
    return {
        "normal": frozen(random.normal(0, 2.5, LARGE)),
        "flat": frozen(random.normal(0, 0.1, 20_000)),
        "equal": frozen(np.zeros(20_000)),
        "peaky": frozen(random.normal(0, 2, 50_001) + 25 * (random.random(50_001) < 2e-4)),
        "one winner": frozen(np.where(np.arange(8_000) == 4_321, 40, random.normal(0, 1, 8_000))),
        "masked": frozen(np.where(random.random(30_000) < 0.95, -np.inf, random.normal(0, 2, 30_000))),
        "ties": frozen(np.round(random.normal(0, 2, 40_000))),
    }


ROWS = make_rows()


@pytest.mark.long(but=2)
@pytest.mark.slow
@pytest.mark.parametrize("chain", CHAINS)
def test_choices_follow_the_distribution_of_the_chain(chain: SamplingSettings) -> None:
    row = frozen([1.0, 2.0, 0.5, 1.8, -1.0, 0.0, 2.2, -3.0])
    prefix = [1, 6, 6]
    sampler = Sampler(chain, seed=4, sample=0, n_vocab=8)
    draws = 8_000
    counts = np.bincount([sampler.choose(row, prefix, position).id for position in range(draws)], minlength=8)
    expected = draws * distribution(apply_chain(row, chain, prefix), 8)
    assert counts[expected == 0].sum() == 0
    likely = expected > 0
    chi_square = float(((counts - expected)[likely] ** 2 / expected[likely]).sum())
    freedom = int(likely.sum()) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5 + 4


@pytest.mark.parametrize("vary", ["seed", "sample"])
@pytest.mark.slow
def test_the_distribution_holds_along_seeds_and_samples_too(vary: str) -> None:
    row = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    draws = 6_000
    ids = np.zeros(draws, np.int64)
    for i in range(draws):
        seed, sample = (i, 0) if vary == "seed" else (9, i)
        ids[i] = Sampler(OFF, seed, sample, 3).choose(row, [], 2).id
    assert np.bincount(ids) / draws == pytest.approx([0.5, 0.3, 0.2], abs=0.025)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("chain", [OFF, replace(OFF, temperature=0.8), replace(OFF, min_p=1e-4), SamplingSettings()])
def test_pruning_equals_brute_force(name: str, chain: SamplingSettings) -> None:
    row = ROWS[name]
    sampler = Sampler(chain, seed=17, sample=1, n_vocab=len(row))
    candidates = apply_chain(row, chain)
    for position in range(12):
        choice = sampler.choose(row, [], position)
        assert choice.id == brute_force(candidates, key(17, 1, position))


@settings(max_examples=60, deadline=None)
@given(
    arrays(
        np.float32, st.integers(1_025, 5_000), elements=st.floats(-50, 50, width=32), fill=st.floats(-9, 9, width=32)
    ),
    st.integers(0, 2**64 - 1),
)
@pytest.mark.slow
def test_pruning_equals_brute_force_for_any_row(logits: FloatRow, seed: int) -> None:
    candidates = Candidates(None, logits)
    assert perturbed_best(candidates, key(seed, 0, 0)) == brute_force(candidates, key(seed, 0, 0))
    ids = np.arange(0, 7 * len(logits), 7)
    assert perturbed_best(Candidates(ids, logits), key(seed, 0, 1)) == brute_force(
        Candidates(ids, logits), key(seed, 0, 1)
    )


def test_the_choice_depends_on_seed_sample_and_position_and_on_nothing_else() -> None:
    row = ROWS["normal"]
    sampler = Sampler(OFF, seed=1, sample=0, n_vocab=LARGE)
    forward = [sampler.choose(row, [], position).id for position in range(20)]
    assert [sampler.choose(row, [3, 4], position).id for position in reversed(range(20))] == forward[::-1]
    assert [Sampler(OFF, 1, 0, LARGE).choose(row, [], position).id for position in range(20)] == forward
    assert [Sampler(OFF, 2, 0, LARGE).choose(row, [], position).id for position in range(20)] != forward
    assert [Sampler(OFF, 1, 1, LARGE).choose(row, [], position).id for position in range(20)] != forward
    assert len(set(forward)) > 10


@pytest.mark.parametrize("size", [5, 3_000, LARGE])
def test_greedy_takes_the_highest_logit_and_of_equals_the_lower_id(size: int) -> None:
    row = np.zeros(size, np.float32)
    row[[2, 4]] = 3.5
    assert greedy(row, []) == 2
    row[4] = 3.0
    assert greedy(row, []) == 2
    row[0] = 3.25
    assert greedy(row, []) == 2


def test_greedy_looks_at_the_prefix_with_the_accepted_tokens() -> None:
    row = frozen([3.0, 2.8, 0.0])
    sampler = Sampler(replace(GREEDY, presence_penalty=0.5), 0, 0, 3)
    tokens: list[int] = []
    for position in range(3):
        tokens.append(sampler.choose(row, tokens, position).id)
    assert tokens == [0, 1, 0]


@pytest.mark.parametrize(
    "raised", [{}, {"presence_penalty": -2.0}, {"repeat_penalty": 0.5}, {"logit_bias": ((3, 4.0),)}]
)
def test_greedy_chooses_the_same_whether_or_not_the_whole_row_is_adjusted(raised: dict[str, Any]) -> None:
    penalties = replace(
        GREEDY, **{"repeat_penalty": 1.3, "frequency_penalty": 0.4, "dry_multiplier": 0.8, "dry_base": 1.75} | raised
    )
    random, changed = np.random.default_rng(5), 0
    for n in range(200):
        row, text = random.standard_normal(20).astype(np.float32).round(1), random.integers(0, 20, n % 60).tolist()
        chosen = Sampler(penalties, 0, 0, 20).choose(row, text, n).id
        assert chosen == Sampler(penalties, 0, 0, 20, logprobs=0).choose(row, text, n).id
        changed += chosen != row.argmax()
    assert changed > 20


def test_a_constraint_that_is_set_in_the_middle_of_an_answer_holds() -> None:
    class Only:
        is_narrow = True

        def allowed(self, tokens: Sequence[int]) -> npt.NDArray[np.bool_]:
            return np.array([False, False, False, True, False])

        def forced(self, tokens: Sequence[int]) -> list[int]:
            return []

    sampler, row = Sampler(GREEDY, 0, 0, 5), np.arange(5, dtype=np.float32)
    assert sampler.choose(row, [1], 1).id == 4
    sampler.constraint = Only()
    assert sampler.choose(row, [1], 1).id == 3


def test_greedy_with_typical_p_chooses_among_the_typical_tokens() -> None:
    row = frozen(np.log([0.4, 0.06, 0.06, 0.06, 0.06, 0.06, 0.06, 0.06, 0.06, 0.06, 0.06]))
    assert greedy(row, []) == 0
    assert Sampler(replace(GREEDY, typical_p=0.5), 0, 0, 11).choose(row, [], 0).id == 1


def test_an_only_candidate_is_chosen() -> None:
    row = frozen([1.0, 2.0, 3.0])
    assert Sampler(replace(OFF, top_k=1), 0, 0, 3).choose(row, [], 0).id == 2
    assert Sampler(GREEDY, 0, 0, 1).choose(row[:1], [], 0).id == 0
    masked = frozen([-np.inf, 2.0, -np.inf])
    for chain in (OFF, GREEDY):
        choice = Sampler(chain, 0, 0, 3).choose(masked, [], 0)
        assert choice.id == 1


@pytest.mark.parametrize("chain", [OFF, GREEDY, SamplingSettings()])
def test_banned_ids_are_never_chosen(chain: SamplingSettings) -> None:
    row = frozen([9.0, 8.0, 1.0, 0.0])
    sampler = Sampler(chain, 0, 0, 4, logprobs=4, banned=[0, 1])
    choices = [sampler.choose(row, [], position) for position in range(50)]
    assert {choice.id for choice in choices} <= {2, 3}
    assert [id for id, _ in choices[0].top_logprobs] == [2, 3]


@pytest.mark.parametrize("chain", [GREEDY, SamplingSettings(), replace(OFF, temperature=2)])
def test_logprobs_are_those_before_truncation_and_temperature(chain: SamplingSettings) -> None:
    chain = replace(chain, logit_bias=((1, 2.0),), presence_penalty=1.0)
    row = ROWS["normal"]
    biased = row.astype(np.float64)
    biased[1] += 2
    biased[[5, 6]] -= 1
    expected = biased - biased.max() - np.log(np.exp(biased - biased.max()).sum())
    choice = Sampler(chain, 3, 0, LARGE, logprobs=5).choose(row, [5, 6, 6], 8)
    assert choice.logprob == pytest.approx(expected[choice.id], abs=1e-4)
    assert [id for id, _ in choice.top_logprobs] == np.argsort(-expected, kind="stable")[:5].tolist()
    assert [value for _, value in choice.top_logprobs] == pytest.approx(-np.sort(-expected)[:5], abs=1e-4)
    without = Sampler(chain, 3, 0, LARGE).choose(row, [5, 6, 6], 8)
    assert (without.id, without.logprob, without.top_logprobs) == (choice.id, None, ())
    assert Sampler(chain, 3, 0, LARGE, logprobs=0).choose(row, [5, 6, 6], 8) == choice._replace(top_logprobs=())


@pytest.mark.parametrize("chain", [*CHAINS, GREEDY])
def test_a_choice_of_another_rule_is_reported_with_the_same_log_probabilities(chain: SamplingSettings) -> None:
    row = ROWS["ties"]
    for logprobs in (None, 0, 3):
        sampler = Sampler(chain, 6, 0, len(row), logprobs)
        choice = sampler.choose(row, [1, 2], 4)
        assert sampler.report(row, [1, 2], choice.id) == choice


@pytest.mark.parametrize("stream", [NoiseStream.DRAFT, NoiseStream.RESIDUAL])
def test_samples_of_a_stream_have_the_right_distribution(stream: NoiseStream) -> None:
    sampler = Sampler(OFF, 1, 0, 9)
    of = some({1: 0.5, 4: 0.0, 5: 0.3, 8: 0.2})
    joint: Joint = {(token,): of.probability(token) for token in (1, 5, 8)}
    assert surprise([(sampler.draw(of, position, stream, 0),) for position in range(3_000)], joint) < 1
    assert surprise([(sampler.draw(of, 7, stream, round),) for round in range(3_000)], joint) < 1


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("chain", [OFF, SamplingSettings()])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_a_pruned_ranking_equals_a_full_sort(name: str, chain: SamplingSettings, k: int) -> None:
    candidates = apply_chain(ROWS[name], chain)
    for position in range(5):
        noise_key = key(17, 1, position)
        ids = np.arange(len(candidates.logits)) if candidates.ids is None else candidates.ids
        scores = candidates.logits + gumbel64(hashes(noise_key, ids))
        order = np.lexsort((ids, -scores))[:k]
        ranked, ranks = perturbed_ranking(candidates, noise_key, k)
        assert ranked == ids[order].tolist()
        assert ranks.tolist() == scores[order].tolist()


@pytest.mark.parametrize("chain", [OFF, GREEDY, SamplingSettings(), replace(OFF, typical_p=0.9)])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_row_without_finite_logits_is_refused(chain: SamplingSettings, bad: float) -> None:
    sampler = Sampler(chain, 0, 0, 2_000)
    with pytest.raises(ValueError, match="no finite logits"):
        sampler.choose(np.full(2_000, bad, np.float32), [], 0)


def test_a_row_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="10 logits"):
        Sampler(OFF, 0, 0, 10).choose(np.zeros(11, np.float32), [], 0)


def greedy(row: FloatRow, tokens: list[int]) -> int:
    return Sampler(GREEDY, 0, 0, len(row)).choose(row, tokens, 0).id


def brute_force(candidates: Candidates, noise_key: tuple[int, int]) -> int:
    """Compute the best candidate with noise for all candidates and a full sort."""
    ids = np.arange(len(candidates.logits)) if candidates.ids is None else candidates.ids
    scores = candidates.logits + gumbel64(hashes(noise_key, ids))
    order = np.lexsort((ids, -scores))
    return int(ids[order[0]])


def distribution(candidates: Candidates, n_vocab: int) -> npt.NDArray[np.float64]:
    ids = np.arange(n_vocab) if candidates.ids is None else candidates.ids
    weights = np.exp(candidates.logits.astype(np.float64))
    result = np.zeros(n_vocab)
    result[ids] = weights / weights.sum()
    return result
