"""The cost model: assumptions, measurements, and the effect of a loaded machine."""

from __future__ import annotations

import json
import math

import pytest

from edgespec.core.policy.costs import Costs

SHAPE = {1: 1.0, 2: 1.2, 4: 1.6, 8: 3.0}


def measured(**more: float) -> Costs:
    costs = Costs(SHAPE)
    for _ in range(50):
        for width, seconds in ((1, 0.03), (2, 0.04), (4, 0.05)):
            costs.observe_target(width, seconds * more.get("load", 1.0))
    return costs


def test_before_anything_is_measured_the_shape_counts_in_passes_over_one_token() -> None:
    costs = Costs(SHAPE)
    assert [costs.target(width) for width in SHAPE] == pytest.approx(list(SHAPE.values()))
    assert costs.target(3) == pytest.approx(math.exp(math.log(1.2) + math.log2(1.5) * math.log(1.6 / 1.2)))
    assert costs.step("draft") == pytest.approx(0.1)
    assert costs.read("draft", 80) == pytest.approx(1.0)


def test_assumed_costs_of_a_drafter_hold_until_measured_for_any_number_of_leaves() -> None:
    costs = Costs(SHAPE, {"suffix": (0.001, 0.00002)})
    assert costs.step("suffix") == costs.step("suffix", leaves=4) == 0.001
    assert costs.read("suffix", 100) == pytest.approx(0.002)
    costs.observe_step("suffix", 0.003, leaves=4)
    costs.observe_read("suffix", 10, 0.0001)
    assert costs.step("suffix") == 0.001
    assert costs.step("suffix", leaves=4) == costs.step("suffix", leaves=4, sequences=3) == pytest.approx(0.003)
    assert 0.001 < costs.read("suffix", 100) < 0.002


def test_one_measurement_gives_the_shape_its_scale() -> None:
    costs = Costs(SHAPE)
    costs.observe_target(2, 0.024)
    assert [costs.target(width) for width in SHAPE] == pytest.approx([0.02, 0.024, 0.032, 0.06])
    assert costs.step("draft") == pytest.approx(0.002)


def test_widths_between_measured_ones_lie_off_the_shape_as_these_do() -> None:
    costs = Costs(SHAPE)
    costs.observe_target(1, 1.0)
    costs.observe_target(4, 3.2)
    assert costs.target(2) == pytest.approx(1.2 * math.sqrt(2))
    assert costs.target(8) == pytest.approx(6.0)
    assert [costs.target(width) for width in (1, 4)] == pytest.approx([1.0, 3.2])
    assert costs.target(16) == pytest.approx(12.0)  # beyond the assumed shape, in proportion to the width


def test_a_table_need_not_be_smooth() -> None:
    costs = Costs(SHAPE)
    for _ in range(30):
        for width, seconds in ((1, 1.0), (2, 1.9), (3, 1.8), (4, 2.6)):
            costs.observe_target(width, seconds)
    assert [costs.target(width) for width in (1, 2, 3, 4)] == pytest.approx([1.0, 1.9, 1.8, 2.6], rel=0.01)


@pytest.mark.parametrize("load", [0.4, 3.0])
def test_a_load_that_slows_all_alike_leaves_the_ratios(load: float) -> None:
    costs = measured()
    before = costs.target(4) / costs.target(1)
    for _ in range(100):
        costs.observe_target(1, 0.03 * load)
    assert costs.target(4) / costs.target(1) == pytest.approx(before, rel=0.1)
    costs.observe_target(8, 0.1 * load)  # measured under load only, stored as on an idle machine
    assert costs.target(8) == pytest.approx(0.1, rel=0.15)


def test_a_kernel_that_really_changed_is_noticed() -> None:
    costs = measured()
    for _ in range(300):
        costs.observe_target(1, 0.03)
        costs.observe_target(4, 0.1)
    assert costs.target(4) / costs.target(1) == pytest.approx(0.1 / 0.03, rel=0.1)


def test_one_interrupted_pass_moves_little() -> None:
    costs = measured()
    costs.observe_target(1, 3.0)
    assert costs.target(1) == pytest.approx(0.03, rel=0.05)


def test_passes_of_microseconds_do_not_change_the_load() -> None:
    costs = measured()
    for number in range(100):
        costs.observe_step("suffix", 1e-5 * (1 + number % 7))
    assert abs(costs.load) < 0.02
    for _ in range(20):
        costs.observe_target(1, 0.06)
    assert costs.load == pytest.approx(math.log(2), rel=0.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_clock_that_stops_or_jumps_back_changes_nothing(seconds: float) -> None:
    costs = measured()
    before = costs.state()
    costs.observe_target(1, seconds)
    costs.observe_step("draft", seconds)
    costs.observe_read("draft", 10, seconds)
    assert costs.state() == before


def test_a_new_depth_starts_from_the_nearest_depth_and_is_measured_separately() -> None:
    costs = measured()
    assert costs.target(4, 3000) == costs.target(4, 100)
    for _ in range(20):
        costs.observe_target(1, 0.06, 3000)
        costs.observe_target(4, 0.10, 3000)
    assert costs.target(4, 3000) / costs.target(1, 3000) == pytest.approx(1.67, rel=0.1)
    assert costs.target(4, 100) / costs.target(1, 100) == pytest.approx(1.67, rel=0.01)
    assert costs.target(1, 100) == pytest.approx(0.03, rel=0.01)


def test_measurements_can_be_saved_and_restored() -> None:
    costs = measured()
    costs.observe_step("draft", 0.001)
    costs.observe_read("draft", 100, 0.02)
    again = Costs(SHAPE)
    again.restore(json.loads(json.dumps(costs.state())))
    for width in range(1, 9):
        assert again.target(width) == pytest.approx(costs.target(width))
    assert again.step("draft") == pytest.approx(0.001)
    assert again.read("draft", 50) == pytest.approx(0.01)


@pytest.mark.parametrize(
    "state",
    [
        {"0": [["target", 1, math.nan, 3]]},
        {"0": [["target", 0, 0.1, 3]]},
        {"0": [["target", 1, 1000.0, 3]]},
        {"0": [["target", 1, 0.1]]},
        {"0": [["target", 1, 0.1, 0]]},
        {"0": [["step", "draft", 1, 0.1, 3]]},
        {"0": [["step", "draft", 1, 0, 0.1, 3]]},
        {"0": [["write", "draft", 1, 1, 0.1, 3]]},
        {"0": [[]]},
        {"x": []},
        [],
        {"0": None},
    ],
)
def test_an_invalid_state_is_refused(state: object) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        Costs(SHAPE).restore(state)  # type: ignore[arg-type]


def test_a_disturbed_first_reading_is_not_believed() -> None:
    costs = Costs(SHAPE, {"suffix": (1e-4, 2e-6)})
    costs.observe_target(1, 0.01)
    costs.observe_read("suffix", 300, 0.05)  # 80 times as long as assumed: the process was switched out
    assert costs.read("suffix", 300) < 2 * 300 * 2e-6
    for _ in range(20):
        costs.observe_read("suffix", 300, 0.005)
    assert costs.read("suffix", 300) > 2 * 300 * 2e-6  # but repeated measurements are believed


def test_the_pass_in_which_a_device_compiles_kernels_does_not_count() -> None:
    costs = Costs({1: 1.0, 64: 64.0}, {"draft": (0.001, 0.0001)}, compiles=True)
    costs.observe_target(1, 0.01, warm=True)
    costs.observe_target(4, 60.0)
    costs.observe_step("draft", 132.0)
    costs.observe_read("draft", 10, 132.0)
    assert costs.target(4) == pytest.approx(0.04)
    assert costs.step("draft") == 0.001 and costs.read("draft", 10) == pytest.approx(0.001)
    costs.observe_target(4, 0.02)
    costs.observe_step("draft", 0.002)
    assert costs.target(4) == pytest.approx(0.02)
    assert costs.step("draft") == pytest.approx(0.002)


def test_each_number_of_threads_has_costs_of_its_own() -> None:
    costs = Costs(SHAPE, threads=2)
    for _ in range(50):
        for width, seconds in ((1, 0.01), (4, 0.02)):
            costs.observe_target(width, seconds)
    before, state = costs.target(4) / costs.target(1), costs.state()
    costs.use_threads(1)
    assert costs.target(4) / costs.target(1) == pytest.approx(before)  # until it is measured
    for _ in range(50):
        for width, seconds in ((1, 0.02), (4, 0.08)):
            costs.observe_target(width, seconds)
    assert costs.target(4) / costs.target(1) > 1.5 * before
    assert costs.state() == state  # what is saved is measured with all threads
    costs.use_threads(2)
    assert costs.target(4) / costs.target(1) == pytest.approx(before)
    assert costs.load == pytest.approx(0.0, abs=0.01)
    costs.use_threads(1)
    assert costs.target(4) / costs.target(1) > 1.5 * before


def test_saved_costs_are_those_of_all_threads_whatever_number_is_used() -> None:
    saved = measured().state()
    costs = Costs(SHAPE, threads=8)
    costs.use_threads(4)
    costs.restore(saved)
    assert {*costs.state()} == {"0"}
    assert len(costs.state()["0"]) == 3
    assert costs.target(4) == pytest.approx(0.05)
    costs.observe_target(1, 9.0)
    costs.use_threads(8)
    assert costs.target(1) == pytest.approx(0.03)


def test_half_of_the_threads_are_a_load_and_no_other_cost() -> None:
    costs = Costs(SHAPE, threads=2)
    for _ in range(50):
        costs.observe_target(1, 0.01)
    costs.use_threads(1)
    for _ in range(4):
        costs.observe_target(1, 0.02)
    assert costs.target(1) == pytest.approx(0.01)
