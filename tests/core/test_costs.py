"""The cost model: assumptions, measurements, and the effect of a loaded machine."""

from __future__ import annotations

import json
import math

import pytest

from edgespec.core.policy.costs import Costs

SHAPE = {1: 1.0, 2: 1.2, 4: 1.6, 8: 3.0}


def measured(load: float = 1.0) -> Costs:
    costs = Costs(SHAPE)
    observe(costs, {1: 0.03, 2: 0.04, 4: 0.05}, 50, load)
    return costs


def observe(costs: Costs, passes: dict[int, float], times: int = 20, load: float = 1.0, depth: int = 0) -> None:
    """Let passes of these widths and seconds happen, each between plain ones."""
    for _ in range(times):
        for width, seconds in passes.items():
            costs.observe_plain(1, load * passes[1], depth)
            if width > 1:
                costs.observe_target(width, load * seconds, depth)


def test_before_anything_is_measured_the_shape_counts() -> None:
    costs = Costs(SHAPE)
    assert [costs.target(width) for width in SHAPE] == pytest.approx(list(SHAPE.values()))
    assert not costs.is_measured and costs.state()["plain_s"] is None
    assert costs.target(3) == pytest.approx(math.exp(math.log(1.2) + math.log2(1.5) * math.log(1.6 / 1.2)))
    assert costs.step("draft") == pytest.approx(0.1)
    assert costs.read("draft", 80) == pytest.approx(1.0)


def test_nothing_is_compared_with_a_plain_pass_before_there_was_one() -> None:
    costs = Costs(SHAPE)
    costs.observe_target(4, 0.05)
    costs.observe_step("draft", 0.05)
    assert costs.target(4) == 1.6 and costs.step("draft") == 0.1 and not costs.has_plain(0)
    costs.observe_plain(2, 0.06)
    assert costs.plain_s == pytest.approx(0.05) and costs.has_plain(0)
    assert not costs.has_plain(3000), "attention takes longer there"
    costs.observe_target(4, 0.5, 3000)
    assert costs.target(4, 3000) == 1.6
    costs.observe_plain(1, 0.2, 3000)
    assert costs.plain_s == pytest.approx(0.2)


def test_assumed_costs_of_a_drafter_hold_until_measured_for_any_number_of_leaves() -> None:
    costs = Costs(SHAPE, {"suffix": (0.001, 0.00002)})
    costs.observe_plain(1, 0.1)
    assert costs.step("suffix") == costs.step("suffix", leaves=4) == pytest.approx(0.01)
    assert costs.read("suffix", 100) == pytest.approx(0.02)
    for _ in range(100):
        costs.observe_step("suffix", 0.003, leaves=4)
    costs.observe_read("suffix", 10, 0.0001)
    assert costs.step("suffix") == pytest.approx(0.01)
    assert (
        costs.step("suffix", leaves=4) == costs.step("suffix", leaves=4, sequences=3) == pytest.approx(0.03, rel=1e-3)
    )
    assert 0.01 < costs.read("suffix", 100) < 0.02


def test_widths_between_measured_ones_lie_off_the_shape_as_these_do() -> None:
    costs = Costs(SHAPE)
    costs.put(("target", 4), 3.2)
    assert costs.target(2) == pytest.approx(1.2 * math.sqrt(2))
    assert costs.target(8) == pytest.approx(6.0)
    assert [costs.target(width) for width in (1, 4)] == pytest.approx([1.0, 3.2])
    assert costs.target(16) == pytest.approx(12.0)  # beyond the assumed shape, in proportion to the width


def test_a_wider_pass_never_costs_less() -> None:
    costs = Costs(SHAPE)
    for width, cost in {2: 0.73, 3: 2.4, 4: 1.2, 8: 4.7, 9: 4.7}.items():
        costs.put(("target", width), cost)
    curve = [costs.target(width) for width in range(1, 64)]
    assert curve == pytest.approx(sorted(curve)) and curve[0] == 1.0
    assert curve[2] == curve[3] == pytest.approx(math.sqrt(2.4 * 1.2)) and curve[7] == curve[8] == pytest.approx(4.7)


@pytest.mark.parametrize("load", [0.4, 3.0])
def test_a_load_that_slows_all_alike_leaves_the_costs(load: float) -> None:
    costs = measured()
    for _ in range(100):
        costs.observe_plain(1, 0.03 * load)
    assert costs.plain_s == pytest.approx(0.03 * load, rel=0.01)
    assert costs.target(4) == pytest.approx(0.05 / 0.03, rel=0.01)
    costs.observe_target(8, 0.1 * load)
    assert costs.target(8) == pytest.approx(0.1 / 0.03, rel=0.01)
    costs.observe_plain(3, 0.045 * load)  # three sequences without drafts
    assert costs.plain_s == pytest.approx(0.03 * load, rel=0.05)


def test_a_cost_that_really_changed_is_noticed_within_some_passes() -> None:
    costs = measured()
    observe(costs, {1: 0.03, 4: 0.1}, 40)
    assert costs.target(4) == pytest.approx(0.1 / 0.03, rel=0.1)


def test_one_interrupted_pass_moves_little() -> None:
    costs = measured()
    costs.observe_target(4, 3.0)
    assert costs.target(4) == pytest.approx(0.05 / 0.03, rel=0.05)


def test_a_pass_long_after_a_plain_one_counts_less() -> None:
    near, far = measured(), measured()
    for _ in range(20):
        far.observe_target(2, 0.04)
    before = far.target(4)
    near.observe_target(4, 0.1)
    far.observe_target(4, 0.1)
    assert near.target(4) - before > 5 * (far.target(4) - before) >= 0


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_clock_that_stops_or_jumps_back_changes_nothing(seconds: float) -> None:
    costs = measured()
    before = costs.state()
    costs.observe_plain(1, seconds)
    costs.observe_target(4, seconds)
    costs.observe_step("draft", seconds)
    costs.observe_read("draft", 10, seconds)
    costs.put(("target", 4), seconds)
    assert costs.state() == before


def test_a_new_depth_starts_from_the_nearest_depth_and_is_measured_separately() -> None:
    costs = measured()
    assert costs.target(4, 3000) == costs.target(4, 100)
    observe(costs, {1: 0.06, 4: 0.2}, 60, depth=3000)
    assert costs.target(4, 3000) == pytest.approx(3.33, rel=0.1)
    assert costs.target(4, 100) == pytest.approx(1.67, rel=0.01)


def test_saved_costs_agree_with_a_check_or_not() -> None:
    costs = measured()
    assert costs.knows({2: 1.4, 4: 1.7}, 0.2) and costs.knows({}, 0.2)
    assert not costs.knows({2: 1.4, 4: 2.1}, 0.2)
    assert not costs.knows({2: 0.9, 4: 1.7}, 0.2)
    costs.observe_step("draft", 0.003)
    observe(costs, {1: 0.03, 4: 0.09}, depth=3000)
    costs.use_threads(3)
    costs.use_threads(1)
    costs.forget_target()
    costs.put(("target", 4), 1.2)
    assert costs.target(4) == costs.target(4, 3000) == pytest.approx(1.2)
    assert costs.step("draft", 3000) == pytest.approx(0.1)
    costs.use_threads(3)
    assert costs.target(4) == pytest.approx(1.2)


def test_measurements_can_be_saved_and_restored() -> None:
    costs = measured()
    costs.observe_step("draft", 0.001)
    costs.observe_read("draft", 100, 0.02)
    again = Costs(SHAPE)
    again.restore(json.loads(json.dumps(costs.state())))
    for width in range(1, 9):
        assert again.target(width) == pytest.approx(costs.target(width))
    assert again.step("draft") == pytest.approx(0.001 / 0.03)
    assert again.read("draft", 50) == pytest.approx(0.01 / 0.03)
    assert again.plain_s == pytest.approx(0.03) and again.is_measured
    again.restore(Costs(SHAPE).state())
    assert not again.is_measured


def test_a_disturbed_first_measurement_is_not_believed() -> None:
    costs = Costs(SHAPE, {"suffix": (1e-4, 2e-6)})
    costs.observe_plain(1, 0.01)
    costs.observe_read("suffix", 300, 0.05)  # 80 times as long as assumed: the process was switched out
    assert costs.read("suffix", 300) < 2 * 300 * 2e-4
    for _ in range(20):
        costs.observe_read("suffix", 300, 0.005)
    assert costs.read("suffix", 300) > 2 * 300 * 2e-4  # but repeated measurements are believed


def test_the_pass_in_which_a_device_compiles_kernels_does_not_count() -> None:
    costs = Costs({1: 1.0, 64: 64.0}, {"draft": (0.001, 0.0001)}, compiles=True)
    costs.observe_plain(1, 0.01)
    costs.observe_target(4, 60.0)
    costs.observe_step("draft", 132.0)
    costs.observe_read("draft", 10, 132.0)
    assert costs.target(4) == pytest.approx(4.0)
    assert costs.step("draft") == pytest.approx(0.1) and costs.read("draft", 10) == pytest.approx(0.1)
    costs.observe_target(4, 0.02)
    costs.observe_step("draft", 0.002)
    assert costs.target(4) == pytest.approx(2.0)
    assert 0.1 < costs.step("draft") < 0.2


def test_each_number_of_threads_has_costs_of_its_own() -> None:
    costs = Costs(SHAPE, threads=2)
    observe(costs, {1: 0.01, 4: 0.02}, 50)
    before, state = costs.target(4), costs.state()
    costs.use_threads(1)
    assert costs.target(4) == pytest.approx(before)  # until it is measured
    assert costs.plain_s == pytest.approx(0.02)  # as if all threads were needed
    observe(costs, {1: 0.02, 4: 0.08}, 50)
    assert costs.target(4) > 1.5 * before
    assert costs.state()["tables"] == state["tables"]  # what is saved is measured with all threads
    assert costs.state()["plain_s"] == pytest.approx(state["plain_s"])
    costs.use_threads(2)
    assert costs.target(4) == pytest.approx(before)
    costs.use_threads(1)
    assert costs.target(4) > 1.5 * before


def test_saved_costs_are_those_of_all_threads_whatever_number_is_used() -> None:
    saved = measured().state()
    costs = Costs(SHAPE, threads=8)
    costs.use_threads(4)
    costs.restore(saved)
    assert {*costs.state()["tables"]} == {"0"}
    assert len(costs.state()["tables"]["0"]) == 2
    assert costs.target(4) == pytest.approx(0.05 / 0.03)
    assert costs.plain_s == pytest.approx(0.06)
