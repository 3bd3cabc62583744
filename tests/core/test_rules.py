"""The verification rules keep the target's distribution, as proved by enumerating all random outcomes.

The last tests show that the enumeration detects common mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from enumeration import (
    Chance,
    Drafting,
    EnumeratedTest,
    Model,
    Rule,
    Siblings,
    chain,
    constant,
    distribution,
    drawn,
    drawn_and_looked_up,
    emission_error,
    enumerate_step,
    error,
    given_another,
    likeliest,
    likeliest_and_drawn,
    pairs,
    plain,
    random_model,
    top,
    tree,
)

from edgespec.core.distribution import Distribution, Probabilities
from edgespec.core.draft import Draft
from edgespec.core.verify import block, rejection

EXACT = 1e-12
CAUGHT = 1e-3
SMALL, LARGE = pairs(3), pairs(4)

CHAINS: dict[str, tuple[int, Drafting]] = {
    "no token": (0, tree()),
    "one token": (1, chain(1)),
    "two tokens": (2, chain(2)),
    "three tokens": (3, chain(3)),
    "two tokens, not sampled": (2, tree(likeliest(1), likeliest(1))),
    "sampled, then looked up": (3, tree(drawn(1), likeliest(1), likeliest(1))),
    "looked up, then sampled": (3, tree(likeliest(1), drawn(1), drawn(1))),
}
TREES: dict[str, tuple[int, Drafting]] = {
    "two sampled": (1, tree(drawn(2))),
    "three sampled": (1, tree(drawn(3))),
    "all of them sampled": (1, tree(drawn(4))),
    "two that are likeliest": (1, tree(likeliest(2))),
    "likeliest and one sampled": (1, tree(likeliest_and_drawn(2))),
    "two likeliest and one sampled": (1, tree(likeliest_and_drawn(3))),
    "sampled and looked up": (1, tree(drawn_and_looked_up(1))),
    "two levels of two sampled": (2, tree(drawn(2), drawn(2))),
    "three sampled, then one": (2, tree(drawn(3), drawn(1))),
    "sampled, then the two likeliest": (2, tree(drawn(2), likeliest(2))),
    "likeliest, then sampled": (2, tree(likeliest(2), drawn(2))),
    "likeliest and sampled, twice": (2, tree(likeliest_and_drawn(2), likeliest_and_drawn(2))),
    "sampled and looked up, twice": (2, tree(drawn_and_looked_up(1), drawn_and_looked_up(0))),
}


@pytest.mark.parametrize("shape", CHAINS)
@pytest.mark.parametrize("rule", [rejection, block])
@pytest.mark.slow
def test_chains_keep_the_distribution(rule: Rule, shape: str) -> None:
    depth, drafting = CHAINS[shape]
    errors = {name: emission_error(rule, drafting, *pair, n=depth + 1) for name, pair in LARGE.items()}
    assert max(errors.values()) < EXACT, errors


@pytest.mark.slow
@pytest.mark.parametrize("shape", TREES)
def test_rejection_keeps_the_distribution_with_several_candidates_at_a_node(shape: str) -> None:
    depth, drafting = TREES[shape]
    errors = {name: emission_error(rejection, drafting, *pair, n=depth + 1) for name, pair in SMALL.items()}
    if depth == 1:
        errors |= {f"large {name}": emission_error(rejection, drafting, *LARGE[name], n=2) for name in SMALL}
    assert max(errors.values()) < EXACT, errors


@pytest.mark.slow
@pytest.mark.parametrize("pair", SMALL)
@pytest.mark.parametrize("end", [0, 2])
def test_nothing_follows_an_end_and_sequences_that_end_have_their_distribution(pair: str, end: int) -> None:
    for rule, (depth, drafting) in [
        (rejection, CHAINS["three tokens"]),
        (block, CHAINS["three tokens"]),
        (block, CHAINS["sampled, then looked up"]),
        (rejection, TREES["two levels of two sampled"]),
        (rejection, TREES["likeliest, then sampled"]),
    ]:
        emitted = enumerate_step(rule, drafting, *SMALL[pair], n=depth + 1, end=end)
        assert all(end not in tokens[:-1] for tokens in emitted.joint)
        assert error(emitted.joint, plain(SMALL[pair][0], depth + 1, end)) < EXACT


def test_a_draft_may_stop_where_its_prefix_says_so() -> None:
    """A drafter stops if it is unsure, or at an end token."""

    def drafting(chance: Chance, drafter: Model) -> Draft:
        tokens: list[int] = []
        distributions: list[Distribution | None] = []
        while len(tokens) < 3 and (not tokens or sum(tokens) % 2 == 0):
            q = drafter(tuple(tokens))
            tokens.append(chance.draw(q))
            distributions.append(q)
        return replace(Draft.chain(tokens, [0.5] * len(tokens), ""), distributions=distributions)

    for p, q in SMALL.values():
        assert emission_error(rejection, drafting, p, q, n=4) < EXACT
        assert emission_error(block, drafting, p, q, n=4) < EXACT


def test_the_shape_of_a_tree_may_depend_on_tokens_sampled_elsewhere() -> None:
    """A second candidate may be sampled or not, depending on the first candidate and the token after it."""

    def drafting(chance: Chance, drafter: Model) -> Draft:
        q = drafter(())
        first = chance.draw(q)
        below = drafter((first,))
        second = chance.draw(below)
        tokens, parents, distributions = [first, second], [-1, 0], [q, below]
        if (first + second) % 2 and q.p.max() < 1:
            rest = given_another(q, [first])
            tokens, parents, distributions = [*tokens, chance.draw(rest)], [*parents, -1], [*distributions, rest]
        return Draft(tokens, parents, [0.5] * len(tokens), [*distributions])

    for p, q in SMALL.values():
        assert emission_error(rejection, drafting, p, q, n=3) < EXACT


# --- how much is accepted -------------------------------------------------------------------------------------------


def test_block_verification_accepts_more_in_the_papers_example() -> None:
    p, q = constant(distribution(1 / 3, 2 / 3)), constant(distribution(2 / 3, 1 / 3))
    assert enumerate_step(rejection, chain(2), p, q, 3).accepted == pytest.approx(10 / 9, abs=EXACT)
    assert enumerate_step(block, chain(2), p, q, 3).accepted == pytest.approx(11 / 9, abs=EXACT)


@pytest.mark.parametrize("seed", range(20))
def test_block_verification_never_accepts_fewer(seed: int) -> None:
    p, q = random_model(100 + seed, 3), random_model(200 + seed, 3)
    for k in (1, 2, 3):
        token_by_token = enumerate_step(rejection, chain(k), p, q, k + 1).accepted
        at_once = enumerate_step(block, chain(k), p, q, k + 1).accepted
        assert at_once >= token_by_token - EXACT
        if k == 1:
            assert at_once == pytest.approx(token_by_token, abs=EXACT)


@pytest.mark.parametrize("seed", range(10))
def test_one_candidate_is_accepted_as_often_as_the_distributions_overlap(seed: int) -> None:
    p, q = random_model(300 + seed, 4), random_model(400 + seed, 4)
    overlap = float(np.minimum(p(()).p, q(()).p).sum())
    for rule in (rejection, block):
        assert enumerate_step(rule, chain(1), p, q, 2).accepted == pytest.approx(overlap, abs=EXACT)


@pytest.mark.parametrize("seed", range(10))
def test_candidates_that_were_not_sampled_are_accepted_with_the_probability_of_the_target(seed: int) -> None:
    p, q = random_model(300 + seed, 4), random_model(400 + seed, 4)
    for k in (1, 2, 3):
        held = sum(p(()).probability(token) for token in top(q(()), k))
        assert enumerate_step(rejection, tree(likeliest(k)), p, q, 2).accepted == pytest.approx(held, abs=EXACT)
    first = p(()).probability(top(q(()), 1)[0])
    assert enumerate_step(block, tree(likeliest(1)), p, q, 2).accepted == pytest.approx(first, abs=EXACT)


@pytest.mark.parametrize("seed", range(10))
def test_more_candidates_are_accepted_more_often(seed: int) -> None:
    p, q = random_model(300 + seed, 4), random_model(400 + seed, 4)
    for siblings in (drawn, likeliest_and_drawn):
        accepted = [enumerate_step(rejection, tree(siblings(k)), p, q, 2).accepted for k in (1, 2, 3, 4)]
        assert all(fewer <= more + EXACT for fewer, more in pairwise(accepted))
        assert accepted[-1] == pytest.approx(1, abs=EXACT)


def test_a_draft_with_the_targets_distribution_is_accepted_whole() -> None:
    p, q = LARGE["the same"]
    assert enumerate_step(rejection, chain(3), p, q, 4).accepted == pytest.approx(3, abs=EXACT)
    assert enumerate_step(block, chain(3), p, q, 4).accepted == pytest.approx(3, abs=EXACT)


def test_block_verification_refuses_trees() -> None:
    with pytest.raises(ValueError, match="chains"):
        enumerate_step(block, tree(drawn(2)), *SMALL["random"], n=2)


# --- mistakes that enumeration catches ------------------------------------------------------------------------------


def test_a_mistake_draft_tokens_that_were_not_sampled_pass_as_sampled() -> None:
    def claimed(k: int) -> Siblings:
        return lambda chance, q: [(token, q) for token in top(q, k)]

    nearly_flat = constant(distribution(0.28, 0.24, 0.24, 0.24))
    assert first_token_error(rejection, tree(claimed(1)), nearly_flat, nearly_flat) == pytest.approx(0.72, abs=EXACT)
    for k in (1, 2):
        assert emission_error(rejection, tree(claimed(k)), *LARGE["random"], n=2) > CAUGHT
    assert emission_error(block, tree(claimed(1), claimed(1)), *LARGE["random"], n=3) > CAUGHT


def test_a_mistake_the_draft_distribution_is_not_renormalised_after_a_sample() -> None:
    def forgetful(k: int) -> Siblings:
        def siblings(chance: Chance, q: Distribution) -> list[tuple[int, Distribution | None]]:
            return [(token, q) for token, _ in drawn(k)(chance, q)]

        return siblings

    p, q = constant(distribution(0.0, 0.68, 0.32)), constant(distribution(0.6, 0.2, 0.2))
    assert first_token_error(rejection, tree(drawn(2)), p, q) < EXACT
    assert first_token_error(rejection, tree(forgetful(2)), p, q) == pytest.approx(0.18, abs=EXACT)
    assert emission_error(rejection, tree(forgetful(2)), *LARGE["target lacks a token"], n=2) > CAUGHT


def test_a_mistake_the_residual_is_taken_by_place_in_the_array() -> None:
    class ByPlace(Distribution):
        def excess(self, other: Distribution, scale: float = 1.0) -> Probabilities:
            theirs = np.zeros(len(self.p))
            n = min(len(self.p), len(other.p))
            theirs[:n] = other.p[:n]
            return np.maximum(self.p * scale - theirs, 0.0)

    def mistaken(target: Model, draft: Draft, chance: Chance, end: int | None) -> EnumeratedTest:
        return EnumeratedTest(lambda path: ByPlace(target(path).ids, target(path).p), draft, chance, end)

    p, q = LARGE["truncated differently"]
    for rule in (rejection, block):
        wrong = enumerate_step(rule, chain(2), p, q, 3, test_of=mistaken)
        assert error(wrong.joint, plain(p, 3)) > CAUGHT


def test_a_mistake_the_bonus_token_skips_the_sampling_chain() -> None:
    whole = random_model(9, 4)

    def truncated(prefix: tuple[int, ...]) -> Distribution:
        return given_another(whole(prefix), [int(whole(prefix).p.argmin())])

    def mistaken(target: Model, draft: Draft, chance: Chance, end: int | None) -> EnumeratedTest:
        return EnumeratedTest(lambda path: (whole if len(path) == 2 else target)(path), draft, chance, end)

    for rule in (rejection, block):
        wrong = enumerate_step(rule, chain(2), truncated, truncated, 3, test_of=mistaken)
        assert error(wrong.joint, plain(truncated, 3)) > CAUGHT


def test_a_mistake_block_verification_stops_at_the_first_failure() -> None:
    class Stopping(EnumeratedTest):
        def accepts(self, probability: float, depth: int, token: int) -> bool:
            if depth == 0:
                failed.clear()
            if not failed and not self.chance.coin(probability):
                failed.append(True)
            return not failed

    failed: list[bool] = []
    p, q = constant(distribution(1 / 3, 2 / 3)), constant(distribution(2 / 3, 1 / 3))
    for target, drafter in ((p, q), LARGE["random"]):
        wrong = enumerate_step(block, chain(2), target, drafter, 3, test_of=Stopping)
        assert error(wrong.joint, plain(target, 3)) > CAUGHT


def test_a_mistake_block_verification_caps_each_ratio() -> None:
    """A token with p > q makes up for an earlier token with p < q. A cap of each ratio prevents this."""

    class Capped(Distribution):
        def probability(self, token: int) -> float:
            return min(Distribution.probability(self, token), drafter(()).probability(token))

    def mistaken(target: Model, draft: Draft, chance: Chance, end: int | None) -> EnumeratedTest:
        return EnumeratedTest(lambda path: Capped(target(path).ids, target(path).p), draft, chance, end)

    target, drafter = constant(distribution(1 / 3, 2 / 3)), constant(distribution(2 / 3, 1 / 3))
    wrong = enumerate_step(block, chain(2), target, drafter, 3, test_of=mistaken)
    assert error(wrong.joint, plain(target, 3)) > CAUGHT


def test_a_mistake_a_rejected_sample_does_not_change_the_target_distribution() -> None:
    class Unmoved(Distribution):
        def residual(self, other: Distribution, scale: float = 1.0) -> Distribution:
            return self

    def mistaken(target: Model, draft: Draft, chance: Chance, end: int | None) -> EnumeratedTest:
        return EnumeratedTest(lambda path: Unmoved(target(path).ids, target(path).p), draft, chance, end)

    p, q = LARGE["random"]
    for drafting in (chain(1), tree(drawn(2))):
        wrong = enumerate_step(rejection, drafting, p, q, 2, test_of=mistaken)
        assert error(wrong.joint, plain(p, 2)) > CAUGHT


@pytest.mark.parametrize("rule", [rejection, block])
def test_a_mistake_the_residual_of_equal_distributions_is_divided_by_zero(rule: Rule) -> None:
    """Rounding can cause this: a token is rejected although both distributions are equal."""

    class Refusing(EnumeratedTest):
        def accepts(self, probability: float, depth: int, token: int) -> bool:
            return False

    p = LARGE["the same"][0]
    assert error(enumerate_step(rule, chain(2), p, p, 3, test_of=Refusing).joint, plain(p, 3)) < EXACT


@pytest.mark.parametrize("rule", [rejection, block])
def test_a_mistake_tokens_after_an_end_are_kept(rule: Rule) -> None:
    class Endless(EnumeratedTest):
        def ends(self, token: int) -> bool:
            return False

    p, q = LARGE["random"]
    wrong = enumerate_step(rule, chain(2), p, q, 3, end=1, test_of=Endless).joint
    assert error(wrong, plain(p, 3, end=1)) > CAUGHT
    assert any(1 in tokens[:-1] for tokens in wrong)


def test_a_mistake_a_sample_is_dropped_because_of_its_probability() -> None:
    def sure(chance: Chance, drafter: Model) -> Draft:
        draft = chain(1)(chance, drafter)
        return draft if draft.tokens == [0] else Draft.empty()

    p = constant(distribution(0.5, 0.3, 0.2))
    for rule in (rejection, block):
        joint = enumerate_step(rule, sure, p, p, 1 + 1).joint
        firsts = [sum(v for tokens, v in joint.items() if tokens[0] == token) for token in range(3)]
        assert firsts == pytest.approx([0.75, 0.15, 0.10], abs=EXACT)


def test_a_mistake_the_sampled_one_of_two_equal_candidates_is_dropped() -> None:
    def looked_up_first(chance: Chance, q: Distribution) -> list[tuple[int, Distribution | None]]:
        found = chance.draw(q)
        return [(1, None)] + ([(found, q)] if found != 1 else [])

    assert emission_error(rejection, tree(looked_up_first), *LARGE["random"], n=2) > CAUGHT


def test_a_mistake_two_branches_share_a_random_number() -> None:
    """Branches need independent samples. Otherwise dropping nodes of one branch biases the other branch."""

    def drafting(independent: bool) -> Callable[[Chance, Model], Draft]:
        def draft(chance: Chance, drafter: Model) -> Draft:
            root, below = drafter(()), drafter((0,))
            rest = given_another(root, [first := chance.draw(root)])
            second = chance.draw(rest)
            under_first = chance.draw(below)
            under_second = chance.draw(below) if independent else under_first
            tokens, parents, distributions = [first, second, under_first], [-1, -1, 0], [root, rest, below]
            if under_first != 1:  # the budget is used for the other branch
                tokens, parents, distributions = [*tokens, under_second], [*parents, 1], [*distributions, below]
            return Draft(tokens, parents, [0.5] * len(tokens), [*distributions])

        return draft

    p, q = constant(distribution(0.2, 0.5, 0.3)), constant(distribution(0.5, 0.2, 0.3))
    assert emission_error(rejection, drafting(True), p, q, n=3) < EXACT
    assert emission_error(rejection, drafting(False), p, q, n=3) > CAUGHT


def first_token_error(rule: Rule, drafting: Drafting, target: Model, drafter: Model) -> float:
    """Return the error in the distribution of the first token alone."""
    joint = enumerate_step(rule, drafting, target, drafter, 2).joint
    firsts: dict[tuple[int, ...], float] = {}
    for tokens, probability in joint.items():
        firsts[tokens[:1]] = firsts.get(tokens[:1], 0.0) + probability
    return error(firsts, plain(target, 1))
