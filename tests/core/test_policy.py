"""Single decisions of the measured policy."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from edgespec.core.distribution import Distribution
from edgespec.core.draft import Budget, Draft
from edgespec.core.policy.costs import Costs
from edgespec.core.policy.measured import DRAFTS, PLAIN_EVERY, STEPS, TRIAL_SHARE, UNVERIFIED, MeasuredPolicy
from edgespec.core.policy.policy import DraftPolicy, FixedPolicy, Proposal, ProposalContext, Verified

FLAT = {1: 1.0, 64: 1.5}
STEEP = {1: 1.0, 2: 2.0, 4: 4.0, 64: 64.0}


def pace(shape: dict[int, float], step: float = 0.02, least_width: int = 1, **more: int) -> MeasuredPolicy:
    costs = Costs(shape, least_width=least_width)
    costs.observe_plain(1, shape[1])
    for width, seconds in shape.items():
        costs.put(("target", width), seconds / shape[1])
    costs.observe_step("draft", step)
    costs.observe_step("lookup", step / 100)
    return MeasuredPolicy(costs, **more)


def context(n_max: int = 8, mode: str = "coupled", **more: Any) -> ProposalContext:
    return ProposalContext(mode, n_max, **more)


def chain(*confidence: float) -> Draft:
    return Draft.chain(list(range(len(confidence))), list(confidence), "draft")


def offered(pace: DraftPolicy, context: ProposalContext, drafter: str = "draft", n_unread: int = 0) -> Budget | None:
    """Return what the drafter may draft, or None if it may not."""
    budget = pace.budget(context, drafter, lambda: n_unread)
    return budget if budget is not None and budget.tokens else None


def asked(pace: DraftPolicy, context: ProposalContext, drafter: str = "draft", n_unread: int = 0) -> Budget:
    budget = offered(pace, context, drafter, n_unread)
    assert budget is not None
    return budget


def propose(
    pace: DraftPolicy, context: ProposalContext, draft: Draft, passes: int = 1, seconds: float = 0.02
) -> ProposalContext:
    """Add `draft` as the proposal of the draft model."""
    asked(pace, context)
    context.proposals.append(Proposal("draft", draft, 0, passes, seconds))
    return context


def selected(pace: DraftPolicy, *contexts: ProposalContext, room: int = 64) -> list[Draft]:
    return pace.select(contexts, len(contexts), room)


def drafted(pace: MeasuredPolicy, context: ProposalContext, draft: Draft) -> Draft:
    """Return what is verified of a chain that is drafted until the policy ends it."""
    budget, reaches = asked(pace, context), draft.reaches()
    n = next((n for n in range(1, len(draft)) if not budget.worth(reaches[:n], reaches[n - 1])), len(draft))
    context.proposals.append(Proposal("draft", draft.first(n), 0, n, n * 0.02))
    [draft] = selected(pace, context)
    return draft


def step(
    pace: DraftPolicy,
    context: ProposalContext,
    draft: Draft,
    accepted: int = 0,
    passes: int = 1,
    seconds: float = 0.02,
    n_unread: int = 0,
) -> tuple[bool, Draft]:
    """Run a step of one answer. Return whether the draft model was asked, and the verified part of its draft."""
    verified = Draft.empty()
    if is_asked := offered(pace, context, n_unread=n_unread) is not None:
        context.proposals.append(Proposal("draft", draft, n_unread, passes, seconds))
        [verified] = selected(pace, context)
    path = range(min(accepted, len(verified)))
    pace.record([Verified(context, verified, path, [0] * (1 + len(path)))], None)
    return is_asked, verified


def test_sure_drafts_are_verified_where_width_is_cheap() -> None:
    assert len(drafted(pace(FLAT), context(), chain(*[0.95] * 8))) == 7  # the longest of `LENGTHS` that fits


def test_a_sure_token_is_not_verified_where_a_second_token_costs_a_second_pass() -> None:
    assert len(drafted(pace(STEEP), context(), chain(*[0.9] * 8))) == 0


def test_a_draft_ends_where_it_becomes_unsure() -> None:
    kept = drafted(pace({1: 1.0, 2: 1.15, 4: 1.45, 8: 2.0}), context(), chain(0.95, 0.95, 0.1, 0.9, 0.9))
    assert len(kept) == 2


def test_no_draft_is_longer_than_there_is_room() -> None:
    budget = asked(pace(FLAT), context(3))
    assert budget.tokens == 3
    assert not budget.worth([0.9] * 3, 0.9)
    assert offered(pace(FLAT), context(0)) is None


def test_a_jump_of_the_curve_is_taken_where_many_sure_tokens_repay_it() -> None:
    """A pass over 2 tokens costs as much as one over 9."""
    plateau = {1: 1.0, 2: 2.5, 9: 2.5, 64: 8.0}
    assert len(drafted(pace(plateau), context(), chain(*[0.98] * 8))) == 7


def test_a_longer_draft_may_pay_where_a_shorter_one_does_not() -> None:
    """With Q8_0 on two cores a second token costs nearly a pass, and each token from the eighth on a quarter of it."""
    kinked = {1: 1.0, 2: 2.1, 4: 2.9, 5: 3.6, 8: 3.4, 16: 4.9, 32: 8.0, 64: 15.0}
    lengths: list[int] = []
    for room in (1, 3, 7, 31):
        measured = pace(kinked)
        lengths += map(len, selected(measured, propose(measured, context(room), chain(*[0.97] * room))))
    assert lengths == [0, 0, 7, 31]


def test_unlikely_tokens_are_verified_where_their_width_is_free() -> None:
    for shape, length in ({1: 1.0, 2: 1.3, 8: 1.3, 16: 4.0}, 7), ({1: 1.0, 2: 1.3, 8: 3.6, 16: 4.0}, 1):
        measured = pace(shape)
        assert len(*selected(measured, propose(measured, context(), chain(0.95, *[0.05] * 7)))) == length


def test_the_longest_draft_that_there_may_be_is_a_length_too() -> None:
    measured = pace(FLAT)
    measured.longest = 14
    assert list(map(len, selected(measured, propose(measured, context(14), chain(*[0.99] * 14))))) == [14]


def test_half_of_the_calibration_ratio_is_forgotten_with_each_answer() -> None:
    measured = pace({1: 1.0, 2: 1.25, 64: 17.0})
    lengths = [len(step(measured, context(step=number), chain(0.9, 0.9))[1]) for number in range(1, 20)]
    assert lengths[0] == 2 and lengths[-1] == 0
    assert list(map(len, selected(measured, propose(measured, context(step=1), chain(0.9, 0.9))))) == [1]


def test_drafts_of_several_answers_fit_into_the_rows_of_a_pass() -> None:
    for policy, lengths in ((pace(FLAT), [3, 2]), (FixedPolicy(8), [2, 2])):
        contexts = [propose(policy, context(sequences=2), chain(*[0.95] * 8)) for _ in range(2)]
        assert sorted(map(len, selected(policy, *contexts, room=5)), reverse=True) == lengths


def test_a_tree_of_several_drafts_fits_into_the_rows_of_a_pass() -> None:
    """A pass that decodes accepted tokens again has less room than the longest draft needs."""
    for policy in (pace(FLAT), FixedPolicy(8)):
        now = context(leaves=4)
        asked(policy, now, "lookup")
        propose(policy, now, chain(*[0.9] * 5))
        now.proposals.append(Proposal("lookup", Draft.chain([50, 51, 52, 53, 54], [0.95] * 5, "lookup")))
        assert list(map(len, policy.select([now], 3, 5))) == [5]


def test_sampled_drafts_leave_less_room_for_other_drafts() -> None:
    distribution = Distribution(np.array([0, 1]), np.array([0.5, 0.5]))
    sampled = replace(chain(*[0.9] * 8), distributions=[distribution] * 8)
    for policy in (pace(FLAT), FixedPolicy(8)):
        contexts = [propose(policy, context(sequences=3, sampled=True), sampled)]
        contexts += [propose(policy, context(sequences=3), chain(*[0.99] * 8)) for _ in range(2)]
        assert list(map(len, selected(policy, *contexts, room=14))) == [8, 3, 3]


def test_sampled_tokens_are_verified_even_if_unlikely() -> None:
    sampled = replace(chain(0.9, 0.2, 0.1), distributions=[Distribution.point(token) for token in range(3)])
    for policy in (pace(STEEP), FixedPolicy(8)):
        proposed = propose(policy, context(mode="block", sampled=True), sampled, passes=3)
        assert offered(policy, context(mode="block", sampled=True), "lookup") is not None
        proposed.proposals.append(Proposal("lookup", Draft.chain([7, 8, 9, 10], [0.99] * 4, "lookup")))
        assert selected(policy, proposed) == [sampled]
        assert offered(policy, proposed, "suffix") is None  # nothing is worth more


def asked_of(pace: MeasuredPolicy, steps: int, confidence: float, mode: str = "coupled") -> list[int]:
    """Return the steps in which a drafter with this confidence was asked for a token."""
    return [number for number in range(steps) if step(pace, context(mode=mode), chain(confidence))[0]]


def test_a_drafter_that_costs_more_than_it_earns_backs_off_and_is_tried_again_now_and_then() -> None:
    measured = pace(STEEP)
    times = asked_of(measured, 6000, 0.05)
    assert measured.verdicts("coupled")[0].rests
    late = [time for time in times if time > 1000]
    assert 0 < len(late) * 0.02 < 1.5 * TRIAL_SHARE * 5000


def test_a_drafter_that_was_once_as_slow_as_many_passes_is_tried_again() -> None:
    """As if the machine had slept during the first draft: a trial costs more than drafters save in many steps."""
    measured = pace(FLAT, step=9.0)
    assert [time for time in asked_of(measured, 6000, 0.05) if time > 1000]


def test_prompts_that_are_always_long_are_read_for_a_trial_now_and_then() -> None:
    measured = pace(FLAT)
    measured.costs.observe_read("draft", 1000, 15.0)
    reads: dict[str, Any] = {"n_unread": 1000, "seconds": 15.0}
    times = [number for number in range(6000) if step(measured, context(), chain(0.05), **reads)[0]]
    assert 0 < len(times) * 15.0 < 3.0 + 1.5 * TRIAL_SHARE * 6000


def test_tokens_missed_while_backed_off_make_trials_rarer() -> None:
    measured = pace(STEEP, step=0.1)
    measured.costs.observe_read("draft", 100, 1.0)
    read, times = 0, []
    for number in range(6000):
        n_unread = number - read
        if step(measured, context(), chain(0.05), seconds=0.01 * n_unread + 0.1, n_unread=n_unread)[0]:
            times.append(number)
            read = number
    waits = [later - earlier for earlier, later in itertools.pairwise([*times, 6000])]
    assert waits[-1] > 4 * min(wait for wait in waits if wait > 1)


def test_a_drafter_becomes_active_again_when_the_text_becomes_predictable() -> None:
    measured = pace(FLAT)
    for confidence, rests in ((0.0001, True), (0.95, False)):
        for _ in range(1000):
            step(measured, context(), chain(confidence), accepted=1)
        assert measured.verdicts("coupled")[0].rests == rests


def test_one_text_without_gain_does_not_keep_a_drafter_from_the_next_text() -> None:
    for n_accepted, is_tried in ((3, True), (0, False)):
        measured = pace({1: 1.0, 2: 1.1, 4: 1.3, 64: 30.0}, step=0.5)
        for accepted in [n_accepted] * 4 + [0]:  # answers
            were_asked = [
                step(measured, context(step=number), chain(0.8, 0.8, 0.8), accepted=accepted, seconds=0.5)[0]
                for number in range(60)
            ]
        assert sum(were_asked[-20:]) < 3
        assert step(measured, context(step=0), chain(0.8, 0.8, 0.8), seconds=0.5)[0] == is_tried


def test_a_drafter_that_adds_nothing_to_the_draft_of_another_does_not_read_a_long_prompt() -> None:
    for has_other, is_read in ((True, False), (False, True)):
        measured = pace({1: 1.0, 2: 1.1, 4: 1.3, 64: 30.0})
        measured.costs.observe_read("draft", 100, 10.0)
        for number in range(90):
            now = context(step=number, leaves=1)
            if has_other and offered(measured, now, "lookup") is not None:
                now.proposals.append(Proposal("lookup", Draft.chain([0, 1], [0.5, 0.5], "lookup")))
            if offered(measured, now) is not None:
                now.proposals.append(Proposal("draft", Draft.chain([5, 6], [0.4, 0.4], "draft"), 0, 1, 0.02))
            [draft] = selected(measured, now)
            path = range(1)
            measured.record([Verified(now, draft, path, [0, 0])], None)
        assert (offered(measured, context(step=0), n_unread=100) is not None) == is_read


def test_the_time_of_drafting_counts_in_the_rate() -> None:
    """Otherwise an expensive draft would seem to make the whole text faster, and each token of a draft too dear."""
    measured = pace(FLAT, step=0.5)
    for number in range(300):
        step(measured, context(step=number), chain(0.9, 0.9), accepted=2, passes=2, seconds=1.0)
    tokens, passes, _ = measured.state()["coupled"]["reached"]
    assert tokens / passes == pytest.approx(3 / 2.11, abs=0.05)


def test_sampling_modes_learn_separately() -> None:
    measured = pace(FLAT)
    asked_of(measured, 400, 0.0001)
    assert asked_of(measured, 100, 0.9, "coupled, greedy")[:10] == list(range(10))
    assert len(asked_of(measured, 100, 0.0001)) < 30


def test_no_drafter_loses_more_than_a_little_before_it_has_won_any() -> None:
    """The drafter is always wrong and confident, under a rule that does not calibrate confidence."""
    measured, lost = pace({1: 1.0, 2: 1.3, 64: 10.0}), 0.0
    for _ in range(400):
        is_asked, verified = step(measured, context(1, "block", invariant=False), chain(0.9))
        lost += 0.02 * is_asked + 0.3 * len(verified)
    assert lost < 4 + 400 * TRIAL_SHARE


def test_a_drafter_loses_no_more_than_its_last_drafts_have_gained() -> None:
    """The drafter is right for 300 steps, then always wrong and still confident."""
    measured, lost = pace({1: 1.0, 2: 1.3, 64: 10.0}), 0.0
    for number in range(700):
        is_right = number < 300
        is_asked, verified = step(measured, context(1, "block", invariant=False), chain(0.9), accepted=is_right)
        lost += 0.0 if is_right else 0.02 * is_asked + 0.3 * len(verified)
    assert lost < DRAFTS * (1 - 0.32) + 400 * TRIAL_SHARE


def test_an_overconfident_drafter_backs_off_where_confidence_is_not_calibrated() -> None:
    measured = pace({1: 1.0, 2: 1.5, 4: 2.0, 64: 10.0})
    for _ in range(200):
        now = context(4, "rejection", sampled=True, invariant=False)
        step(measured, now, chain(0.9, 0.9, 0.9, 0.9), passes=4, seconds=0.08)
    assert measured.verdicts("rejection")[0].rests


def test_a_prompt_that_must_be_read_first_has_to_pay_back() -> None:
    for remaining, n_unread, pays in ((8, 1000, False), (256, 1000, True), (8, 1, True)):
        measured = pace(FLAT)
        measured.costs.observe_read("draft", 1000, 10.0)
        assert (offered(measured, context(remaining=remaining), n_unread=n_unread) is not None) == pays


@pytest.mark.parametrize("n_prompt", [0, 500, 2000])
def test_a_good_drafter_does_not_back_off_because_of_an_expensive_prefill(n_prompt: int) -> None:
    measured = pace({1: 1.0, 2: 1.1, 4: 1.3, 64: 10.0}, step=0.03)
    measured.costs.observe_read("draft", 1000, 4.0)
    for _ in range(3):
        n_unread, n_verified = n_prompt, 0
        for number in range(200):
            now = context(4, remaining=200 - number, step=number)
            seconds = 0.004 * n_unread + 0.03
            is_asked, verified = step(measured, now, chain(0.8, 0.8), 2, 2, seconds, n_unread)
            n_unread = 0 if is_asked else n_unread + 1
            n_verified += len(verified) > 0
        assert n_verified > 150


def test_an_untried_draft_does_not_read_more_than_a_try_is_worth() -> None:
    for n_unread, pays in ((2000, False), (100, True)):
        measured = pace(FLAT)
        measured.costs.observe_read("draft", 1000, 40.0)
        assert (offered(measured, context(remaining=256), n_unread=n_unread) is not None) == pays
        assert [verdict.rests for verdict in measured.verdicts("coupled")] == [True], "it has not drafted"


def test_a_long_prompt_is_not_read_for_answers_that_are_short() -> None:
    measured = pace(FLAT)
    measured.costs.observe_read("draft", 1000, 30.0)
    for number in range(30):
        step(measured, context(step=number), chain(0.9, 0.9), accepted=2, seconds=0.02)
    assert offered(measured, context(step=0, remaining=256), n_unread=1000) is not None
    for _ in range(20):
        for number in range(10):
            step(measured, context(step=number), chain(0.9, 0.9), accepted=2, seconds=0.02)
    assert offered(measured, context(step=0, remaining=256), n_unread=50) is not None
    assert offered(measured, context(step=0, remaining=256), n_unread=1000) is None


def test_padded_passes_cost_nothing_more_for_being_filled() -> None:
    padded = pace(STEEP, least_width=4)
    assert len(drafted(padded, context(), chain(0.5, 0.5, 0.5, 0.9, 0.9))) == 3


def test_a_more_expensive_drafter_is_asked_only_where_it_may_do_better() -> None:
    measured = pace(FLAT, step=0.3)
    for _ in range(20):
        step(measured, context(), chain(0.9), accepted=1, seconds=0.3)
    asked(measured, context(), "lookup")
    for confidence, is_asked in ((0.99, False), (0.1, True)):
        now = context()
        now.proposals.append(Proposal("lookup", Draft.chain([1, 2, 3], [confidence] * 3, "lookup")))
        assert (offered(measured, now) is not None) == is_asked


# --- several sequences ------------------------------------------------------------------------------------------------


def shared(pace: MeasuredPolicy, *drafts: Draft, n_max: int = 8, sampled: bool = False) -> list[int]:
    """Run a step of several sequences. Return the lengths of the verified drafts."""
    contexts = [context(n_max, sequences=len(drafts), sampled=sampled) for _ in drafts]
    kept = selected(pace, *(propose(pace, now, draft) for now, draft in zip(contexts, drafts, strict=True)))
    assert all(draft.tokens[: len(part)] == part.tokens for draft, part in zip(drafts, kept, strict=True))
    return [len(part) for part in kept]


def test_where_one_sequence_has_room_for_drafts_eight_have_none() -> None:
    curve = {1: 1.0, 8: 1.05, 16: 2.0, 64: 8.0}
    assert len(drafted(pace(curve), context(4), chain(0.7, 0.7, 0.7, 0.7))) == 4
    assert shared(pace(curve), *[chain(0.7, 0.7, 0.7, 0.7)] * 8) == [0] * 8


def test_a_wider_pass_has_to_pay_for_all_together() -> None:
    """A kernel processes five to eight tokens in the same time: one draft token does not pay for that, four do."""
    tiles = {1: 0.9, 4: 1.0, 5: 1.5, 8: 1.5, 9: 3.0, 64: 24.0}
    none = Draft.chain([], [], "draft")
    assert shared(pace(tiles), chain(0.9), none, none, none) == [0, 0, 0, 0]
    assert shared(pace(tiles), *[chain(0.9)] * 4) == [1, 1, 1, 1]
    assert shared(pace(tiles), chain(0.99, 0.9, 0.9, 0.8), none, none, none) == [4, 0, 0, 0]


def test_the_likeliest_tokens_get_the_room_that_pays() -> None:
    tiles = {1: 0.9, 2: 1.0, 6: 1.05, 7: 4.0, 64: 36.0}
    assert shared(pace(tiles), chain(0.9, 0.9, 0.9, 0.9), chain(0.3, 0.9)) == [4, 0]
    assert shared(pace(tiles), chain(0.9, 0.9), chain(0.8, 0.9, 0.9)) == [2, 2]


def test_sampled_drafts_of_several_sequences_are_verified_whole() -> None:
    distribution = Distribution(np.array([0, 1]), np.array([0.5, 0.5]))
    sampled = replace(chain(0.1, 0.1), distributions=[distribution, distribution])
    assert shared(pace(STEEP), sampled, sampled, sampled=True) == [2, 2]


def n_asked_with_others(measured: MeasuredPolicy, sequences: int, share: Sequence[bool], *, keeps: bool) -> int:
    """Return how often the draft model was asked in 200 steps; without `keeps` no selected draft is verified."""
    n_asked = 0
    for _ in range(200):
        contexts = [context(4, sequences=sequences) for _ in range(sequences)]
        for now, has_draft in zip(contexts, share, strict=True):
            if has_draft and offered(measured, now) is not None:
                n_asked += 1
                now.proposals.append(Proposal("draft", chain(0.7, 0.7, 0.7, 0.7), 0, 4, 0.1))
        drafts = selected(measured, *contexts) if keeps else [Draft.empty()] * sequences
        measured.record([Verified(now, draft, [], [0]) for now, draft in zip(contexts, drafts, strict=True)], None)
    return n_asked


def test_a_drafter_backs_off_if_its_drafts_find_no_room_next_to_others() -> None:
    measured = pace({1: 1.0, 8: 1.05, 16: 2.0, 64: 8.0}, step=0.1)
    assert 0 < n_asked_with_others(measured, 8, [True] * 8, keeps=True) < 100


def test_a_drafter_backs_off_if_its_drafts_are_dropped_because_another_sequence_has_none() -> None:
    """If each sequence has a stream, all drafts of a pass are cut to the same length."""
    measured = pace({1: 1.0, 64: 1.5}, step=0.1)
    assert 0 < n_asked_with_others(measured, 2, [True, False], keeps=False) < 50


def test_the_gain_of_a_cut_draft_is_that_of_its_verified_tokens() -> None:
    gains = []
    for n in (3, 1, 0):
        measured = pace({1: 1.0, 64: 1.5}, step=0.1)
        contexts = [propose(measured, context(4, sequences=2), chain(0.9, 0.9, 0.9), 3, 0.3), context(sequences=2)]
        drafts = [chain(0.9, 0.9, 0.9).first(n), Draft.empty()]
        measured.record([Verified(now, draft, [], [0]) for now, draft in zip(contexts, drafts, strict=True)], None)
        gains.append(measured.verdicts("coupled")[0].gain)
    assert gains[0] > gains[1] > gains[2]


# --- saved state, costs, trials ---------------------------------------------------------------------------------------


def test_the_state_can_be_saved_and_restored() -> None:
    measured = pace(FLAT)
    for _ in range(10):
        step(measured, context(), chain(0.9, 0.8, 0.7), accepted=1)
    again = pace(FLAT)
    again.restore(json.loads(json.dumps(measured.state())))
    assert json.dumps(again.state()) == json.dumps(measured.state())


def test_the_cost_of_a_proposal_is_in_tokens_of_plain_decoding() -> None:
    for shape, wider in ((FLAT, 0.0), ({1: 1.0, 2: 0.5, 64: 0.5}, 0.0), ({1: 1.0, 2: 1.25, 64: 17.0}, 0.25)):
        measured = pace(shape)
        proposed = propose(measured, context(), chain(0.9), seconds=0.06)
        [draft] = selected(measured, proposed)
        measured.record([Verified(proposed, draft, [0], [0, 0])], None)
        expected = 0.06 + (measured.costs.target(2) - 1 if shape is FLAT else wider)
        assert proposed.costs == {"draft": pytest.approx(expected, abs=1e-6)}


def test_nothing_is_learned_from_drafts_that_fit_into_the_padding() -> None:
    measured = pace(FLAT, least_width=4)
    before = measured.costs.target(4)
    for number in range(100):
        now = context(2, step=number)
        draft = drafted(measured, now, chain(0.99, 0.99)) if offered(measured, now) is not None else Draft.empty()
        measured.record([Verified(now, draft, [], [0])], 1.1 if draft else 1.0)
    assert measured.costs.target(4) == before


def test_a_plain_pass_comes_first_where_none_is_known() -> None:
    for costs, depth in ((Costs(FLAT), 0), (pace(FLAT).costs, 3000)):
        measured, lengths = MeasuredPolicy(costs), list[int]()
        for number in range(8):
            now = context(step=number, depth=depth)
            draft = drafted(measured, now, chain(0.99)) if offered(measured, now) is not None else Draft.empty()
            measured.record([Verified(now, draft, range(len(draft)), [0] * (1 + len(draft)))], 1.0)
            lengths.append(len(draft))
        assert lengths[-4:] == [1] * 4 and lengths.count(0) == 2
        assert costs.has_plain(depth)


def test_the_cost_of_a_proposal_is_that_of_the_clock_and_of_looking_at_passes_too() -> None:
    measured = pace({1: 1.0, 2: 1.25, 64: 17.0})
    for _ in range(50):
        measured.costs.observe_plain(1, 2.0)  # everything takes twice as long
    proposed = propose(measured, context(), chain(0.9), seconds=0.06)
    proposed.watched["lookup"] = 0.02
    [draft] = selected(measured, proposed)
    measured.record([Verified(proposed, draft, [0], [0, 0])], 2.8)
    assert proposed.costs == {"draft": pytest.approx(0.03 + 0.4, abs=1e-3), "lookup": pytest.approx(0.01, abs=1e-3)}


def plain_passes(measured: MeasuredPolicy, passes: int, pass_s: float | None) -> list[int]:
    """Return the passes in which nothing is drafted, though it would pay off."""
    plain = list[int]()
    for number in range(passes):
        now = context(step=number)
        draft = drafted(measured, now, chain(0.99)) if offered(measured, now) is not None else Draft.empty()
        took_s = None if pass_s is None else pass_s * (1.0 + 0.01 * len(draft))
        measured.record([Verified(now, draft, range(len(draft)), [0] * (1 + len(draft)))], took_s)
        plain += [] if draft else [number]
    return plain


@pytest.mark.parametrize("pass_s", [1.0, None])
def test_passes_without_drafts_are_decoded_now_and_then_as_a_yardstick(pass_s: float | None) -> None:
    """Two of them, since the first one after drafts takes longer than in plain decoding."""
    measured = pace(FLAT)
    if pass_s:
        for _ in range(50):
            measured.costs.observe_plain(1, pass_s)
    expected = [PLAIN_EVERY + turn * (PLAIN_EVERY + 2) + n for turn in range(3) for n in range(2)]
    assert plain_passes(measured, 4 * PLAIN_EVERY, pass_s) == expected


def test_two_policies_share_costs_but_not_the_count_of_passes() -> None:
    costs = pace(FLAT).costs
    policies, lengths = [MeasuredPolicy(costs), MeasuredPolicy(costs)], list[int]()
    for number in range(400):
        for measured, n in zip(policies, (2, 1), strict=True):
            verified = list[Verified]()
            for _ in range(n):
                now = context(step=number, sequences=3)
                draft = drafted(measured, now, chain(0.99)) if offered(measured, now) is not None else Draft.empty()
                verified.append(Verified(now, draft, range(len(draft)), [0] * (1 + len(draft))))
            measured.record(verified, None)
            lengths += [len(each.draft) for each in verified]
    assert sum(lengths[-300:]) > 200


def test_an_unread_prompt_of_one_sequence_does_not_back_a_drafter_off_for_others() -> None:
    measured, n_drafts = pace(FLAT), 0
    measured.costs.observe_read("draft", 1000, 20.0, sequences=2)
    for number in range(300):
        read, unread = (context(step=number, sequences=2, remaining=40) for _ in range(2))
        assert offered(measured, unread, n_unread=1000) is None
        draft = Draft.empty()
        if offered(measured, read) is not None:
            read.proposals.append(Proposal("draft", chain(0.9, 0.9), 0, 2, 0.04))
            draft = selected(measured, read)[0]
        n_drafts += len(draft) > 0
        others = [Verified(unread, Draft.empty(), [], [0])]
        measured.record([Verified(read, draft, range(len(draft)), [0] * (1 + len(draft))), *others], None)
    assert n_drafts > 250


def test_while_a_drafter_is_backed_off_nothing_is_asked_of_it() -> None:
    """A drafter is considered again when it is due: when it has saved enough for a trial, or after a pause."""
    known = [-1.0, 0.1, 50, 0.5, 4.0, 4.0, 0.0, 12.0]  # negative gain
    measured = pace(STEEP, step=0.2, drafters=2)
    measured.costs.observe_read("lookup", 1000, 1000.0)
    measured.restore({"coupled": {"reached": [1, 1, 256], "records": {"draft": known, "lookup": known}}})
    thought: dict[str, list[int]] = {"draft": [], "lookup": []}

    def think(number: int, drafter: str, n_unread: int) -> int:
        thought[drafter].append(number)
        return n_unread

    for number in range(100):
        now = context()
        for drafter, n_unread in (("draft", 0), ("lookup", 1000)):
            measured.budget(now, drafter, partial(think, number, drafter, n_unread))
        measured.record([Verified(now, Draft.empty(), [], [0])], None)
    assert thought["lookup"] == list(range(0, 100, STEPS))
    assert thought["draft"][:3] == [*range(0, 80, STEPS), math.ceil(0.2 / (TRIAL_SHARE / 2))]


# --- a fixed length, and several drafters -----------------------------------------------------------------------------


def test_a_fixed_length_asks_drafters_until_one_expects_half_of_its_tokens_to_be_accepted() -> None:
    fixed = FixedPolicy(4)
    now = context()
    assert asked(fixed, now, "lookup").tokens == 4
    now.proposals.append(Proposal("lookup", Draft.chain([1, 2], [0.1, 0.1], "lookup")))
    assert selected(fixed, now) == [now.proposals[0].draft]
    assert offered(fixed, now) is not None
    now.proposals.append(Proposal("draft", chain(0.9, 0.9, 0.9, 0.9)))
    assert selected(fixed, now) == [chain(0.9, 0.9, 0.9, 0.9)]
    assert offered(fixed, now, "suffix") is None
    assert offered(fixed, replace(now, leaves=2), "suffix") is not None
    assert asked(fixed, context(2)).tokens == 2
    assert offered(FixedPolicy(0), context()) is None


def test_a_merged_draft_is_no_longer_than_allowed() -> None:
    measured, now = pace(FLAT), context(leaves=4)
    asked(measured, now, "suffix")
    propose(measured, now, chain(*[0.99] * 9))
    now.proposals.append(Proposal("suffix", Draft.chain([50, 51, 52], [0.98, 0.98, 0.98], "suffix")))
    assert list(map(len, selected(measured, now))) == [7]
    assert list(map(len, selected(FixedPolicy(8), now))) == [8]
    for policy in (measured, FixedPolicy(8)):  # and the rows of the pass limit it too
        assert list(map(len, selected(policy, now, room=3))) == [3]


@pytest.mark.parametrize("depth", [0, 1000])
@pytest.mark.parametrize("is_cheap", [False, True])
def test_costs_that_were_measured_too_large_are_corrected_by_one_draft_in_many_steps(
    is_cheap: bool, depth: int
) -> None:
    paced, lengths = pace(STEEP), list[int]()
    for at in range(4 * UNVERIFIED):
        now = context(step=at, depth=depth)
        draft = Draft.empty()
        if offered(paced, now) is not None:
            draft = drafted(paced, now, chain(0.9, 0.9, 0.9))
        path = range(min(2, len(draft)))
        took_s = 1 + 0.1 * len(draft) if is_cheap else STEEP[1 + len(draft)]
        paced.record([Verified(now, draft, path, [0] * (1 + len(path)))], took_s)
        lengths.append(len(draft))
    assert not any(lengths[:UNVERIFIED])
    if is_cheap:
        assert lengths[-100:].count(3) > 90
    else:
        assert 1 <= sum(map(bool, lengths)) <= 3
