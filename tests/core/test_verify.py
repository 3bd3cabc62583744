"""Many steps with the sampler's noise: coupled keeps the text of plain decoding, the other rules its distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from enumeration import Prefix, constant, distribution, plain, surprise
from hypothesis import given
from hypothesis import strategies as st
from rows import OFF

from edgespec.core.candidates import draft_candidates
from edgespec.core.distribution import Distribution
from edgespec.core.draft import Draft
from edgespec.core.sampler import NothingAllowedError, Sampler
from edgespec.core.sampling import FloatRow, SamplingSettings
from edgespec.core.verify import VerifyResult, VerifyRule, verify
from edgespec.drafters.base import Budget
from edgespec.drafters.tree import ROOT, Tree

V, END = 5, 4
N = 1000
PROMPT = [1, 2]
CHAIN = SamplingSettings(temperature=0.9, top_k=4, top_p=0.97, min_p=0, presence_penalty=0.7, repeat_last_n=3)
REPEATS = replace(OFF, dry_multiplier=1.0, dry_allowed_length=1, top_n_sigma=2.5)
EXCLUDES = replace(OFF, xtc_probability=0.4, xtc_threshold=0.15)
RULES: list[VerifyRule] = ["coupled", "rejection", "block"]
Drafting = Callable[[Sampler, list[int], int], Draft]
"""Returns a draft after some tokens, in a step."""


@cache
def target_row(prefix: Prefix) -> FloatRow:
    """Return the logits of a toy model, which depend on the whole prefix."""
    row = np.random.default_rng([1, len(prefix), *prefix]).normal(size=V).astype(np.float32) * 1.5
    row.flags.writeable = False
    return row


@cache
def draft_row(prefix: Prefix) -> FloatRow:
    """Return the logits of a similar draft model, whose vocabulary is padded by two tokens."""
    noise = np.random.default_rng([2, len(prefix), *prefix]).normal(size=V + 2).astype(np.float32)
    noise[:V] += target_row(prefix)
    noise.flags.writeable = False
    return noise


def verified(
    rule: VerifyRule,
    draft: Draft,
    sampler: Sampler,
    tokens: list[int],
    step: int = 0,
    row_after: Callable[[Prefix], FloatRow] = target_row,
) -> VerifyResult:
    def row_of(node: int) -> FloatRow:
        path: list[int] = []
        while node >= 0:
            path.append(draft.tokens[node])
            node = draft.parents[node]
        return row_after((*tokens, *path[::-1]))

    return verify(rule, draft, row_of, sampler, tokens, lambda token: token == END, step)


def generated(
    rule: VerifyRule,
    sampler: Sampler,
    drafting: Drafting,
    n: int,
    row_after: Callable[[Prefix], FloatRow] = target_row,
) -> Prefix:
    """Return the first n tokens after the prompt, or all tokens up to the end token."""
    tokens = list(PROMPT)
    step = 0
    while len(tokens) < len(PROMPT) + n and (len(tokens) == len(PROMPT) or tokens[-1] != END):
        result = verified(rule, drafting(sampler, tokens, step), sampler, tokens, step, row_after)
        tokens += [choice.id for choice in result.choices]
        step += 1
    return tuple(tokens[len(PROMPT) :][:n])


def plainly(sampler: Sampler, prompt: list[int], n: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + n and (len(tokens) == len(prompt) or tokens[-1] != END):
        tokens.append(sampler.choose(target_row(tuple(tokens)), tokens, len(tokens)).id)
    return tokens


# --- the distribution of the text -----------------------------------------------------------------------------------


def own_step(step: int, node: int) -> int:
    """Return a noise step for each node, so that all candidates are sampled independently."""
    return 100 * step + node + 1


def levels(
    *widths: int,
    row_after: Callable[[Prefix], FloatRow] = draft_row,
    step_of: Callable[[int, int], int] = own_step,
) -> Drafting:
    """Draft a tree with a number of samples per node, given for each level."""

    def drafting(sampler: Sampler, tokens: list[int], step: int) -> Draft:
        draft = Draft([], [], [], [])
        frontier: list[tuple[int, list[int]]] = [(ROOT, tokens)]
        for width in widths:
            grown = []
            for node, prefix in frontier:
                row = row_after(tuple(prefix))
                drawn = draft_candidates(sampler, row, prefix, len(prefix), width, step_of(step, node))
                for candidate in drawn:
                    grown.append((len(draft), [*prefix, candidate.token]))
                    draft.tokens.append(candidate.token)
                    draft.parents.append(node)
                    draft.confidence.append(candidate.confidence)
                    draft.distributions.append(candidate.distribution)
            frontier = grown
        return draft

    return drafting


def looked_up_behind(drafting: Drafting) -> Drafting:
    """Draft a chain of samples followed by tokens that were not sampled."""

    def longer(sampler: Sampler, tokens: list[int], step: int) -> Draft:
        draft = drafting(sampler, tokens, step)
        known = [0, 2]
        return Draft(
            draft.tokens + known,
            list(range(-1, len(draft) + 1)),
            [*draft.confidence, 0.5, 0.5],
            [*draft.distributions, None, None],
        )

    return longer


def best_first(
    row_after: Callable[[Prefix], FloatRow] = draft_row, step_of: Callable[[int, int], int] = own_step
) -> Drafting:
    """Draft a tree of four tokens whose shape depends on the samples."""

    def drafting(sampler: Sampler, tokens: list[int], step: int) -> Draft:
        tree = Tree(Budget(4, 3))
        pending = [ROOT]
        while pending:
            node = pending[0]
            prefix = tokens if node == ROOT else tokens + tree.path(node)
            row = row_after(tuple(prefix))
            tree.add(node, draft_candidates(sampler, row, prefix, len(prefix), 2, step_of(step, node)))
            pending = tree.frontier(1)
        return tree.draft("test")

    return drafting


@pytest.mark.long(but=2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "drafting", "settings"),
    [
        pytest.param("rejection", levels(1, 1), OFF, id="chain"),
        pytest.param("rejection", levels(2, 1), OFF, id="two, then one"),
        pytest.param("rejection", levels(3, 2), CHAIN, id="three, then two"),
        pytest.param("rejection", looked_up_behind(levels(1)), CHAIN, id="chain, looked up"),
        pytest.param("rejection", best_first(), OFF, id="best first"),
        pytest.param("rejection", best_first(), CHAIN, id="best first, truncated and penalised"),
        pytest.param("block", levels(1, 1, 1), OFF, id="block"),
        pytest.param("block", levels(1, 1, 1), CHAIN, id="block, truncated and penalised"),
        pytest.param("block", looked_up_behind(levels(1)), OFF, id="block, looked up"),
        pytest.param("rejection", levels(), CHAIN, id="no draft"),
        pytest.param("rejection", levels(2, 1), EXCLUDES, id="the likeliest excluded"),
        pytest.param("block", levels(1, 1, 1), EXCLUDES, id="block, the likeliest excluded"),
        pytest.param("coupled", levels(1, 1), EXCLUDES, id="coupled, the likeliest excluded"),
        pytest.param("rejection", best_first(), REPEATS, id="best first, repetitions penalised"),
        pytest.param("block", levels(1, 1, 1), REPEATS, id="block, repetitions penalised"),
    ],
)
def test_step_after_step_the_text_has_the_targets_distribution(
    rule: VerifyRule, drafting: Drafting, settings: SamplingSettings
) -> None:
    sample = [generated(rule, Sampler(settings, seed, 0, V), drafting, n=3) for seed in range(N)]
    assert surprise(sample, plain(target_law(settings), 3, END)) < 1


@pytest.mark.slow
def test_samples_of_one_seed_have_that_distribution_too() -> None:
    sample = [generated("block", Sampler(OFF, 7, number, V), levels(1, 1), n=3) for number in range(N)]
    assert surprise(sample, plain(target_law(OFF), 3, END)) < 1


@pytest.mark.long
@pytest.mark.slow
def test_the_sample_is_large_enough_to_detect_mistakes() -> None:
    def likeliest(sampler: Sampler, tokens: list[int], step: int) -> Draft:
        draft = levels(1)(sampler, tokens, step)
        return replace(
            draft,
            tokens=[
                int(distribution.ids[distribution.p.argmax()]) for distribution in draft.distributions if distribution
            ],
        )

    def in_reverse(sampler: Sampler, tokens: list[int], step: int) -> Draft:
        draft = levels(3)(sampler, tokens, step)
        return replace(draft, tokens=draft.tokens[::-1], distributions=draft.distributions[::-1])

    joint = plain(target_law(OFF), 3, END)
    mistakes: list[tuple[VerifyRule, Drafting]] = [
        ("rejection", likeliest),
        ("block", likeliest),
        ("rejection", in_reverse),
    ]
    for rule, drafting in mistakes:
        sample = [generated(rule, Sampler(OFF, seed, 0, V), drafting, n=3) for seed in range(N)]
        assert surprise(sample, joint) > 1


@pytest.mark.long
@pytest.mark.slow
def test_block_verification_needs_new_samples_every_step() -> None:
    """The accepted length depends on the tokens after it, so these tokens are biased and cannot be drafted again."""
    target, draft = (lambda prefix: log_row([1 / 3, 2 / 3])), (lambda prefix: log_row([2 / 3, 1 / 3]))
    joint = plain(constant(distribution(1 / 3, 2 / 3)), 3)

    def excess(step_of: Callable[[int, int], int]) -> float:
        drafting = levels(1, 1, 1, row_after=draft, step_of=step_of)
        return surprise(
            [generated("block", Sampler(OFF, seed, 0, V), drafting, 3, target) for seed in range(2 * N)], joint
        )

    assert excess(lambda step, node: 0) > 1
    assert excess(own_step) < 1


@pytest.mark.long
@pytest.mark.slow
def test_branches_of_an_adaptive_tree_need_independent_noise() -> None:
    """The budget drops the tokens after the second candidate or not, depending on the sample after the first."""

    def row_after(prefix: Prefix) -> FloatRow:
        path = prefix[len(PROMPT) :]
        p = {(): [0.5, 0.5], (0,): [0.6, 0.4], (1,): [0.5, 0.5]}.get(path, [0.2] * 5)
        return log_row(p)

    def target_after(prefix: Prefix) -> FloatRow:
        return log_row([0.2, 0.8]) if len(prefix) == len(PROMPT) else row_after(prefix)

    sampler = Sampler(OFF, 0, 0, V)
    joint = plain(lambda prefix: sampler.distribution(target_after((*PROMPT, *prefix)), [], 0), 2, END)

    def excess(step_of: Callable[[int, int], int]) -> float:
        drafting = best_first(row_after, step_of)
        return surprise(
            [generated("rejection", Sampler(OFF, seed, 0, V), drafting, 2, target_after) for seed in range(N)], joint
        )

    assert excess(lambda step, node: step) > 1
    assert excess(own_step) < 1


def target_law(settings: SamplingSettings) -> Callable[[Prefix], Distribution]:
    """Return the distribution after a prefix, whichever outcome XTC's chance has."""
    outcomes = [(Sampler(replace(settings, xtc_probability=sure), 0, 0, V), sure) for sure in (0.0, 1.0)]

    def law(prefix: Prefix) -> Distribution:
        p = np.zeros(V)
        for sampler, sure in outcomes:
            found = sampler.distribution(target_row((*PROMPT, *prefix)), [*PROMPT, *prefix], 0)
            p[found.ids] += abs(1 - sure - settings.xtc_probability) * found.p
        ids = p.nonzero()[0]
        return Distribution(ids, p[ids])

    return law


def log_row(p: Sequence[float]) -> FloatRow:
    row = np.full(V, -np.inf, np.float32)
    row[: len(p)] = np.log(p)
    return row


# --- the same text --------------------------------------------------------------------------------------------------


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    """Generate trees of up to eight nodes whose siblings have different tokens."""
    draft = Draft([], [], [], [], "test")
    for node in range(draw(st.integers(0, 8))):
        parent, token = draw(st.integers(-1, node - 1)), draw(st.integers(0, V - 1))
        if draft.child(parent, token) is None and parent < len(draft):
            draft.tokens.append(token)
            draft.parents.append(parent)
            draft.confidence.append(0.5)
            draft.distributions.append(None)
    return draft


COUPLED = [
    replace(OFF, temperature=0),
    OFF,
    CHAIN,
    SamplingSettings(temperature=1.5, repeat_penalty=1.3),
    REPEATS,
    EXCLUDES,
]


@given(trees(), st.integers(0, 2**32), st.sampled_from(COUPLED))
def test_under_the_coupled_rule_any_tree_leaves_the_text_as_it_is(
    draft: Draft, seed: int, settings: SamplingSettings
) -> None:
    sampler = Sampler(settings, seed, 0, V)
    result = verified("coupled", draft, sampler, PROMPT)
    emitted = [choice.id for choice in result.choices]
    assert PROMPT + emitted == plainly(sampler, PROMPT, len(emitted))
    assert [draft.tokens[node] for node in result.path] == emitted[: len(result.path)]
    n_own = len(emitted) - len(result.path)
    assert n_own == 1 or (n_own == 0 and emitted[-1] == END)


@pytest.mark.parametrize("settings", COUPLED)
@pytest.mark.parametrize("rule", RULES)
def test_greedy_text_is_the_same_under_every_rule_and_coupled_text_always(
    rule: VerifyRule, settings: SamplingSettings
) -> None:
    if rule != "coupled":
        settings = replace(settings, temperature=0)
    draftings = [levels(1, 1), looked_up_behind(levels(1))] + ([] if rule == "block" else [levels(2, 2), best_first()])
    for seed in range(20):
        sampler = Sampler(settings, seed, 0, V)
        plain_text = tuple(plainly(sampler, PROMPT, 8)[len(PROMPT) :])
        for drafting in draftings:
            assert generated(rule, sampler, drafting, 8) == plain_text


@given(st.integers(0, 2**32), st.sampled_from(COUPLED))
def test_a_right_draft_is_accepted_whole_and_a_wrong_one_not_at_all(seed: int, settings: SamplingSettings) -> None:
    sampler = Sampler(settings, seed, 0, V)
    right = plainly(sampler, PROMPT, 4)[len(PROMPT) :]
    result = verified("coupled", Draft.chain(right, [0.5] * len(right), "right"), sampler, PROMPT)
    assert result.path == list(range(len(right)))
    assert len(result.choices) == len(right) + (END not in right)
    wrong = [(token + 1) % V for token in right]
    assert verified("coupled", Draft.chain(wrong, [0.5] * len(wrong), "wrong"), sampler, PROMPT).path == []


@pytest.mark.parametrize("rule", RULES)
def test_a_dead_end_within_a_draft_is_reached_token_by_token(rule: VerifyRule) -> None:
    class OneToken:
        is_narrow = True

        def allowed(self, tokens: Sequence[int]) -> npt.NDArray[np.bool_]:
            return np.array([len(tokens) == len(PROMPT)] * V)

        def forced(self, tokens: Sequence[int]) -> list[int]:
            return []

    sampler = Sampler(OFF, 3, 0, V, constraint=OneToken())
    plain_choice = sampler.choose(target_row(tuple(PROMPT)), PROMPT, len(PROMPT)).id
    draft = Draft.chain([plain_choice, 1], [0.5] * 2, "test")
    result = verified(rule, draft, sampler, PROMPT)
    assert (result.path, len(result.choices)) == ([], 1)
    if rule == "coupled":
        assert result.choices[0].id == plain_choice
    with pytest.raises(NothingAllowedError, match="the constraint"):
        verified(rule, draft, sampler, [*PROMPT, plain_choice])


def test_penalties_see_the_accepted_tokens() -> None:
    sampler = Sampler(SamplingSettings(temperature=0, repeat_penalty=50.0), 0, 0, V)
    row = np.array([5.0, 4.0, 3.0, 2.0, -9.0], np.float32)
    draft = Draft.chain([0, 1, 2], [0.5] * 3, "test")
    for rule in RULES:
        result = verify(rule, draft, lambda node: row, sampler, [3], lambda token: False)
        assert [choice.id for choice in result.choices][:3] == [0, 1, 2]


# --- the result of verification -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_choices_carry_the_log_probabilities_that_were_asked_for(rule: VerifyRule) -> None:
    for seed in range(30):
        sampler = Sampler(CHAIN, seed, 0, V, logprobs=2)
        draft = levels(1, 1)(sampler, PROMPT, 0)
        result = verified(rule, draft, sampler, PROMPT)
        prefix = list(PROMPT)
        for choice in result.choices:
            expected = sampler.report(target_row(tuple(prefix)), prefix, choice.id)
            assert (choice.logprob, choice.top_logprobs) == (expected.logprob, expected.top_logprobs)
            assert choice.logprob is not None and len(choice.top_logprobs) == 2
            prefix.append(choice.id)


@pytest.mark.parametrize("rule", RULES)
def test_a_result_is_repeatable_and_depends_on_seed_sample_and_step(rule: VerifyRule) -> None:
    def texts(seed: int, sample: int, first_step: int) -> list[list[int]]:
        sampler = Sampler(OFF, seed, sample, V)
        draft = Draft.chain([0, 1], [0.5, 0.5], "test")
        results = [verified(rule, draft, sampler, [n, *PROMPT], first_step) for n in range(V)]
        return [[choice.id for choice in result.choices] for result in results]

    assert texts(1, 0, 0) == texts(1, 0, 0)
    assert texts(1, 0, 0) != texts(2, 0, 0)
    assert texts(1, 0, 0) != texts(1, 1, 0)
    assert (texts(1, 0, 0) == texts(1, 0, 1)) == (rule == "coupled")


@pytest.mark.parametrize("rule", RULES)
def test_an_end_token_of_the_draft_is_the_last_accepted_token(rule: VerifyRule) -> None:
    row = log_row([0.01, 0.01, 0.01, 0.01, 0.96])
    sampler = Sampler(replace(OFF, temperature=0), 0, 0, V)
    draft = Draft.chain([END, 2], [0.5, 0.5], "test")
    result = verify(rule, draft, lambda node: row, sampler, PROMPT, lambda token: token == END)
    assert (result.path, [choice.id for choice in result.choices]) == ([0], [END])


@pytest.mark.parametrize("rule", RULES)
def test_a_row_without_finite_logits_is_refused(rule: VerifyRule) -> None:
    bad = np.full(V, np.nan, np.float32)
    with pytest.raises(ValueError, match="no finite logits"):
        verify(rule, Draft.empty(), lambda node: bad, Sampler(OFF, 0, 0, V), PROMPT, lambda token: False)


def test_child_finds_the_sibling_that_was_chosen() -> None:
    draft = Draft([7, 8, 9, 8], [-1, -1, 0, 0], [0.5] * 4, [None] * 4)
    assert [draft.child(-1, 8), draft.child(0, 8), draft.child(1, 9), draft.child(-1, 9)] == [1, 3, None, None]
