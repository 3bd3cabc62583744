"""The measured pace, decision by decision; whole texts are in test_replay.py."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
import pytest

from edgespec.core.distribution import Distribution
from edgespec.core.draft import Draft
from edgespec.core.policy.auto_plan import AutoPlan
from edgespec.core.policy.costs import Costs
from edgespec.core.policy.measured import MeasuredPolicy
from edgespec.core.policy.policy import FixedPolicy, ProposalContext
from edgespec.core.policy.record import FIRST_CREDIT, MOST_CREDIT, TRIAL_SHARE

FLAT = {1: 1.0, 64: 1.5}
STEEP = {1: 1.0, 2: 2.0, 4: 4.0, 64: 64.0}


def pace(shape: dict[int, float], step: float = 0.02) -> MeasuredPolicy:
    costs = Costs(shape)
    for width, seconds in shape.items():
        costs.observe_target(width, seconds)
    costs.observe_step("draft", step)
    costs.observe_step("lookup", step / 100)
    return MeasuredPolicy(costs)


def chain(*confidence: float) -> Draft:
    return Draft.chain(list(range(len(confidence))), list(confidence), "draft")


def offered(pace: MeasuredPolicy, turn: ProposalContext) -> AutoPlan | None:
    return pace.plan(turn) if turn.drafter in pace.awake(turn.kind, [turn.drafter]) else None


def asked(pace: MeasuredPolicy, turn: ProposalContext) -> AutoPlan:
    plan = offered(pace, turn)
    assert isinstance(plan, AutoPlan)
    return plan


def guess(pace: MeasuredPolicy, turn: ProposalContext, draft: Draft) -> Draft:
    """One turn, guessed as long as the pace wants more of this chain; what is to be verified."""
    plan = asked(pace, turn)
    reaches = draft.reaches()
    n = next((n for n in range(1, len(draft)) if not plan.worth(reaches[:n], reaches[n - 1])), len(draft))
    plan.spent(n, n * 0.02)
    return plan.settle(draft.first(n))


def test_sure_guesses_are_verified_where_width_is_cheap() -> None:
    assert (
        len(guess(pace(FLAT), ProposalContext("coupled", "draft", 8), chain(*[0.95] * 8))) == 7
    )  # of the lengths there are


def test_a_sure_guess_is_not_verified_where_a_second_token_costs_a_second_pass() -> None:
    assert len(guess(pace(STEEP), ProposalContext("coupled", "draft", 8), chain(*[0.9] * 8))) == 0


def test_a_guess_ends_where_it_becomes_unsure() -> None:
    kept = guess(
        pace({1: 1.0, 2: 1.15, 4: 1.45, 8: 2.0}),
        ProposalContext("coupled", "draft", 8),
        chain(0.95, 0.95, 0.1, 0.9, 0.9),
    )
    assert len(kept) == 2


def test_no_guess_is_longer_than_there_is_room() -> None:
    measured = pace(FLAT)
    assert asked(measured, ProposalContext("coupled", "draft", 3)).tokens == 3
    assert not asked(measured, ProposalContext("coupled", "draft", 3)).worth([0.9] * 3, 0.9)
    assert measured.plan(ProposalContext("coupled", "draft", 0)) is None


def test_a_jump_of_the_curve_is_taken_where_many_sure_tokens_repay_it() -> None:
    """A pass over 2 tokens costs as much as one over 9."""
    plateau = {1: 1.0, 2: 2.5, 9: 2.5, 64: 8.0}
    assert len(guess(pace(plateau), ProposalContext("coupled", "draft", 8), chain(*[0.98] * 8))) == 7


def test_a_longer_draft_may_pay_where_a_shorter_one_does_not() -> None:
    """Q8_0 on two cores: a second token costs nearly a pass, those from the eighth on a quarter of one."""
    kinked = {1: 1.0, 2: 2.1, 4: 2.9, 5: 3.6, 8: 3.4, 16: 4.9, 32: 8.0, 64: 15.0}
    lengths = []
    for room in (1, 3, 7, 31):
        plan = asked(pace(kinked), ProposalContext("coupled", "lookup", room))
        plan.spent(1, 0.0002)
        lengths.append(len(plan.settle(chain(*[0.97] * room))))
    assert lengths == [0, 0, 7, 31]


def test_the_longest_draft_that_there_may_be_is_a_length_too() -> None:
    measured = pace(FLAT)
    measured.longest = 14
    plan = asked(measured, ProposalContext("coupled", "lookup", 14))
    plan.spent(1, 0.0002)
    assert len(plan.settle(chain(*[0.99] * 14))) == 14


def test_how_far_promises_were_kept_is_forgotten_with_the_answer() -> None:
    measured = pace(FLAT)
    for round in range(1, 20):
        plan = asked(measured, ProposalContext("coupled", "lookup", 8, round=round))
        plan.spent(1, 0.0002)
        if plan.settle(chain(*[0.9] * 8)):
            plan.judged(0)
    assert asked(measured, ProposalContext("coupled", "lookup", 8, round=20)).honesty < 0.5
    assert asked(measured, ProposalContext("coupled", "lookup", 8, round=1)).honesty == 1


def test_drafts_of_several_answers_fit_into_the_rows_of_a_pass() -> None:
    plans = [asked(pace(FLAT), ProposalContext("coupled", "draft", 8, sequences=2)) for _ in range(2)]
    for plan in plans:
        plan.settle(chain(*[0.95] * 8))
    offers = [(plan, chain(*[0.95] * 8)) for plan in plans]
    assert sum(map(len, plans[0].pace.allocate_verify_budget(offers, 2, 0, 5))) == 5
    assert [len(draft) for draft in FixedPolicy(8).allocate_verify_budget(offers, 2, 0, 5)] == [2, 2]


def test_drawn_tokens_are_verified_whatever_they_promise() -> None:
    measured = pace(STEEP)
    plan = asked(measured, ProposalContext("block", "draft", 8, drawn=True))
    plan.spent(3, 0.06)
    drawn = replace(chain(0.9, 0.2, 0.1), distributions=[Distribution.point(token) for token in range(3)])
    assert len(plan.settle(drawn)) == 3
    assert plan.value > 10


def asked_of(pace: MeasuredPolicy, rounds: int, confidence: float, kind: str = "coupled") -> list[int]:
    """Rounds in which a drafter that never promises more than this was asked for one token."""
    times = []
    for round in range(rounds):
        plan = offered(pace, ProposalContext(kind, "draft", 8))
        if plan is not None:
            times.append(round)
            plan.spent(1, 0.02)
            if plan.settle(chain(confidence)):
                plan.judged(0)
        pace.observe_round(kind, [0], 1, 0, 1)
    return times


def test_a_drafter_that_costs_more_than_it_earns_rests_and_is_tried_again_now_and_then() -> None:
    measured = pace(STEEP)
    times = asked_of(measured, 6000, 0.05)
    assert measured.verdicts("coupled")[0].rests
    late = [time for time in times if time > 1000]
    assert 0 < len(late) * 0.02 < 1.5 * TRIAL_SHARE * 5000


def test_what_was_missed_while_resting_makes_the_trials_rarer() -> None:
    measured = pace(STEEP, step=0.1)
    measured.costs.observe_read("draft", 100, 1.0)
    read, times = 0, []
    for round in range(6000):
        n_unread = repeat(round - read).__next__
        plan = offered(measured, ProposalContext("coupled", "draft", 8, n_unread=n_unread))
        if plan is not None:
            times.append(round)
            plan.spent(1, 0.01 * (round - read) + 0.1)
            read = round
            plan.settle(chain(0.05))
        measured.observe_round("coupled", [0], 1, 0, 1)
    waits = [later - earlier for earlier, later in itertools.pairwise([*times, 6000])]
    assert waits[-1] > 4 * min(wait for wait in waits if wait > 1)


def test_a_text_that_becomes_predictable_ends_the_rest() -> None:
    measured = pace(FLAT)
    for confidence, rests in ((0.0001, True), (0.95, False)):
        for _ in range(1000):
            plan = offered(measured, ProposalContext("coupled", "draft", 8))
            if plan is not None:
                plan.spent(1, 0.02)
                settled = plan.settle(chain(confidence))
                if settled:
                    plan.judged(1)
            measured.observe_round("coupled", [0], 1, 0, 1)
        assert measured.verdicts("coupled")[0].rests == rests


def test_kinds_of_choosing_are_learnt_apart() -> None:
    measured = pace(FLAT)
    asked_of(measured, 400, 0.0001)
    assert asked_of(measured, 100, 0.9, "coupled, greedy")[:10] == list(range(10))
    assert len(asked_of(measured, 100, 0.0001)) < 30


def test_no_drafter_loses_more_than_a_little_before_it_has_won_any() -> None:
    """Wrong every time and sure of it, where it cannot learn how sure it may be."""
    measured, lost = pace({1: 1.0, 2: 1.3, 64: 10.0}), 0.0
    for _ in range(400):
        plan = offered(measured, ProposalContext("typical", "draft", 1, settled=False))
        if plan is not None:
            plan.spent(1, 0.02)
            lost += 0.02
            if plan.settle(chain(0.9)):
                lost += 0.3
                plan.judged(0)
        measured.observe_round("typical", [0], 1, 0, 1)
    assert lost < FIRST_CREDIT + MOST_CREDIT + 400 * TRIAL_SHARE


def test_a_drafter_that_promises_too_much_is_believed_less() -> None:
    """Under rules where the text depends on the guesses nothing else corrects them."""
    measured = pace({1: 1.0, 2: 1.5, 4: 2.0, 64: 10.0})
    for _ in range(200):
        plan = offered(measured, ProposalContext("rejection", "draft", 4, drawn=True, settled=False))
        if plan is not None:
            plan.spent(4, 0.08)
            if plan.settle(chain(0.9, 0.9, 0.9, 0.9)):
                plan.judged(0)
        measured.observe_round("rejection", [0], 5, 0, 1)
    assert measured.verdicts("rejection")[0].rests


def test_a_prompt_that_must_be_read_first_has_to_pay_back() -> None:
    measured = pace(FLAT)
    measured.costs.observe_read("draft", 1000, 10.0)
    assert measured.plan(ProposalContext("coupled", "draft", 8, remaining=8, n_unread=lambda: 1000)) is None
    assert measured.plan(ProposalContext("coupled", "draft", 8, remaining=256, n_unread=lambda: 1000)) is not None
    assert measured.plan(ProposalContext("coupled", "draft", 8, remaining=8, n_unread=lambda: 1)) is not None


@pytest.mark.parametrize("n_prompt", [0, 500, 2000])
def test_a_good_draft_is_not_given_up_for_what_reading_a_prompt_cost(n_prompt: int) -> None:
    measured = pace({1: 1.0, 2: 1.1, 4: 1.3, 64: 10.0}, step=0.03)
    measured.costs.observe_read("draft", 1000, 4.0)
    for _ in range(3):
        n_unread, verified = n_prompt, 0
        for round in range(200):
            asked = ProposalContext("coupled", "draft", 4, remaining=200 - round, n_unread=repeat(n_unread).__next__)
            plan = offered(measured, asked)
            if plan is None:
                n_unread += 1
                measured.observe_round("coupled", [0], 1, 0, 1)
                continue
            plan.spent(2, 0.004 * n_unread + 0.03)
            n_unread = 0
            if settled := plan.settle(chain(0.8, 0.8)):
                verified += 1
                plan.judged(len(settled))
            measured.observe_round("coupled", [0] * (1 + len(settled)), 1 + len(settled), 0, 1)
        assert verified > 150


def test_an_untried_draft_does_not_read_more_than_a_try_is_worth() -> None:
    measured = pace(FLAT)
    measured.costs.observe_read("draft", 1000, 40.0)
    assert measured.plan(ProposalContext("coupled", "draft", 8, remaining=256, n_unread=lambda: 2000)) is None
    assert measured.plan(ProposalContext("coupled", "draft", 8, remaining=256, n_unread=lambda: 100)) is not None


def test_padded_passes_cost_nothing_more_for_being_filled() -> None:
    padded = MeasuredPolicy(pace(STEEP).costs, least_width=4)
    assert len(guess(padded, ProposalContext("coupled", "draft", 8), chain(0.5, 0.5, 0.5, 0.9, 0.9))) == 3


def test_a_dearer_drafter_is_asked_only_where_it_may_do_better() -> None:
    measured = pace(FLAT, step=0.3)
    for _ in range(20):
        plan = asked(measured, ProposalContext("coupled", "draft", 8))
        plan.spent(1, 0.3)
        plan.settle(chain(0.9))
    assert measured.plan(ProposalContext("coupled", "draft", 8, best=3.0)) is None
    assert measured.plan(ProposalContext("coupled", "draft", 8, best=0.1)) is not None


# --- several sequences ------------------------------------------------------------------------------------------------


def shared(pace: MeasuredPolicy, *drafts: Draft, n_max: int = 8, drawn: bool = False) -> list[int]:
    """One round: how much is verified of what each of several sequences has guessed."""
    offers = []
    for draft in drafts:
        plan = asked(pace, ProposalContext("coupled", "draft", n_max, sequences=len(drafts), drawn=drawn))
        plan.spent(1, 0.02)
        offers.append((plan, plan.settle(draft)))
    kept = pace.allocate_verify_budget(offers, len(drafts), 0, 64)
    assert all(draft.tokens[: len(part)] == part.tokens for draft, part in zip(drafts, kept, strict=True))
    return [len(part) for part in kept]


def test_where_one_sequence_has_room_for_guesses_eight_have_none() -> None:
    curve = {1: 1.0, 8: 1.05, 16: 2.0, 64: 8.0}
    assert len(guess(pace(curve), ProposalContext("coupled", "draft", 4), chain(0.7, 0.7, 0.7, 0.7))) == 4
    assert shared(pace(curve), *[chain(0.7, 0.7, 0.7, 0.7)] * 8) == [0] * 8


def test_a_wider_pass_has_to_pay_for_all_together() -> None:
    """A kernel that takes five to eight tokens in the same time: one guess does not pay for that, four do."""
    tiles = {1: 0.9, 4: 1.0, 5: 1.5, 8: 1.5, 9: 3.0, 64: 24.0}
    none = Draft.chain([], [], "draft")
    assert shared(pace(tiles), chain(0.9), none, none, none) == [0, 0, 0, 0]
    assert shared(pace(tiles), *[chain(0.9)] * 4) == [1, 1, 1, 1]
    assert shared(pace(tiles), chain(0.99, 0.9, 0.9, 0.8), none, none, none) == [4, 0, 0, 0]


def test_the_likeliest_tokens_get_the_room_that_pays() -> None:
    tiles = {1: 0.9, 2: 1.0, 6: 1.05, 7: 4.0, 64: 36.0}
    assert shared(pace(tiles), chain(0.9, 0.9, 0.9, 0.9), chain(0.3, 0.9)) == [4, 0]
    assert shared(pace(tiles), chain(0.9, 0.9), chain(0.8, 0.9, 0.9)) == [2, 2]


def test_what_was_drawn_is_verified_whatever_it_is() -> None:
    distribution = Distribution(np.array([0, 1]), np.array([0.5, 0.5]))
    drawn = replace(chain(0.1, 0.1), distributions=[distribution, distribution])
    assert shared(pace(STEEP), drawn, drawn, drawn=True) == [2, 2]


def test_a_drafter_rests_whose_guesses_find_no_room_beside_the_others() -> None:
    measured = pace({1: 1.0, 8: 1.05, 16: 2.0, 64: 8.0}, step=0.1)
    turn = ProposalContext("coupled", "draft", 4, sequences=8)
    n_asked = 0
    for _ in range(200):
        plans = [plan for _ in range(8) if (plan := offered(measured, turn)) is not None]
        n_asked += len(plans)
        offers = []
        for plan in plans:
            plan.spent(4, 0.1)
            offers.append((plan, plan.settle(chain(0.7, 0.7, 0.7, 0.7))))
        measured.allocate_verify_budget(offers, 8, 0, 64)
        for _ in range(8):
            measured.observe_round("coupled", [0], 8, 0, 8)
    assert 0 < n_asked < 100


def test_a_drafter_rests_whose_guesses_are_left_out_because_another_sequence_has_none() -> None:
    """Where sequences have a stream each, a pass takes as much of every one."""
    measured = pace({1: 1.0, 64: 1.5}, step=0.1)
    turn = ProposalContext("coupled", "draft", 4, sequences=2)
    n_asked = 0
    for _ in range(200):
        plan = offered(measured, turn)
        if plan is not None:
            n_asked += 1
            plan.spent(4, 0.4)
            measured.allocate_verify_budget([(plan, plan.settle(chain(0.9, 0.9, 0.9, 0.9)))], 2, 0, 64)
            plan.shorten(Draft.empty())
        measured.observe_round("coupled", [0], 2, 0, 2)
    assert 0 < n_asked < 50


def test_what_is_left_of_a_draft_is_worth_what_it_promises() -> None:
    measured = pace({1: 1.0, 64: 1.5}, step=0.1)
    earned = []
    for n in (3, 1, 0):
        plan = asked(measured, ProposalContext("coupled", "draft", 4, sequences=2))
        plan.spent(3, 0.3)
        draft = plan.settle(chain(0.9, 0.9, 0.9))
        plan.shorten(draft.first(n))
        earned.append(plan._promise)
        plan.record.credit = MOST_CREDIT
    assert earned[0] > earned[1] > earned[2] == 0.0


def test_what_was_learnt_can_be_remembered() -> None:
    measured = pace(FLAT)
    for _ in range(10):
        guess(measured, ProposalContext("coupled", "draft", 8), chain(0.9, 0.8, 0.7))
        measured.observe_round("coupled", [1, 2], 4, 0, 1)
    again = pace(FLAT)
    again.restore(json.loads(json.dumps(measured.state())))
    assert again.state() == measured.state()
    broken: Any
    for broken in ({"coupled": {}}, {"coupled": None}, {"coupled": {"tokens": -1, "passes": 1, "drafters": {}}}, []):
        with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
            again.restore(broken)
    assert again.state() == measured.state()


def test_a_fixed_pace_asks_on_until_a_guess_promises_half_of_its_tokens() -> None:
    fixed = FixedPolicy(4)
    plan = fixed.plan(ProposalContext("coupled", "lookup", 8))
    assert plan is not None and plan.tokens == 4
    assert plan.settle(chain(0.1, 0.1)) == chain(0.1, 0.1) and plan.value > 0
    assert fixed.plan(ProposalContext("coupled", "draft", 8, best=plan.value)) is not None
    plan.settle(chain(0.9, 0.9, 0.9, 0.9))
    assert fixed.plan(ProposalContext("coupled", "draft", 8, best=plan.value)) is None
    assert fixed.plan(ProposalContext("coupled", "draft", 8, best=plan.value, leaves=2)) is not None
    drawn = replace(chain(0.1), distributions=[Distribution(np.array([3]), np.array([1.0]))])
    assert (
        plan.settle(drawn) is drawn and plan.value == math.inf
    )  # a choice by what was drawn would change the distribution
    assert fixed.plan(ProposalContext("coupled", "draft", 2)).tokens == 2  # type: ignore[union-attr]
    assert FixedPolicy(0).plan(ProposalContext("coupled", "draft", 8)) is None


def test_what_several_have_guessed_is_no_longer_than_a_draft_may_be() -> None:
    plan = asked(pace(FLAT), ProposalContext("coupled", "draft", 8, leaves=4))
    both = chain(*[0.99] * 9).merged(Draft.chain([50, 51, 52], [0.98, 0.98, 0.98], "suffix"))
    merged, value = plan.merge(both)
    assert len(merged) == 7 and value > 0


def test_a_wide_pass_that_seemed_cheaper_than_a_narrow_one_earns_nothing() -> None:
    plan = asked(pace({1: 1.0, 2: 0.5, 64: 0.5}), ProposalContext("coupled", "draft", 8))
    plan.settle(chain(0.9))
    assert plan.wider == 0.0


def test_where_all_rest_each_is_thought_about_again_when_it_is_due() -> None:
    measured = MeasuredPolicy(pace(STEEP).costs, drafters=2)
    due = {}
    for drafter, needed, pause in (("draft", 0.2, 0), ("lookup", 0.02, 20)):
        record = asked(measured, ProposalContext("coupled", drafter, 8)).record
        record.rests, record.credit, record.needed, record.pause = True, 0.0, needed, pause
        due[drafter] = max(pause + 1, math.ceil(needed / (TRIAL_SHARE / 2)))
    seen: dict[str, int] = {}
    for round in range(1, 100):
        for drafter in measured.awake("coupled", ["draft", "lookup"]):
            seen.setdefault(drafter, round)
    assert seen == due == {"draft": 80, "lookup": 21}


def test_what_may_be_lost_and_saved_up_is_shared() -> None:
    measured = MeasuredPolicy(pace(FLAT).costs, drafters=4)
    for _ in range(20):
        plan = asked(measured, ProposalContext("coupled", "draft", 8))
        plan.settle(chain(0.9, 0.9, 0.9))
        plan.judged(3)
    assert plan.record.credit == MOST_CREDIT / 4
    assert asked(measured, ProposalContext("coupled", "lookup", 8)).record.credit == FIRST_CREDIT / 4
