"""The advice of `tune`: what it says for measured ratios, and the commands that make it permanent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.bench.advice import Advice, advise
from edgespec.bench.modes import PLAIN, Mode
from edgespec.bench.summary import Cell, CostCurve, bootstrap_interval, median
from edgespec.bench.tune import Candidate, Tuned
from edgespec.core.sampling import SamplingSettings
from edgespec.core.stats import Stats

OTHERS, HEAD, ALL = Mode("suffix,recycling"), Mode("eagle3"), Mode("suffix,recycling,eagle3")
FIXED = Mode("eagle3", "fixed:2")
FILE = Path("/models/head.gguf")
Ratios = Sequence[float]


def around(value: float, n: int = 9, spread: float = 0.02) -> list[float]:
    return [value * (1 + spread * (at - n // 2) / n) for at in range(n)]


def candidate(mode: Mode, *at: tuple[float, Ratios], is_current: bool = False, drafted: int = 9) -> Candidate:
    """A way to decode with its speedups by temperature."""
    cells, ratios = {}, {}
    for temperature, values in at:
        low, high = bootstrap_interval(values) or (None, None)
        stats = Stats(proposed=drafted if mode != PLAIN else 0)
        cells[temperature] = Cell(
            mode.name, temperature, "all", len(values), 10.0, median(values), low, high, 0.1, 0.0, 1.0, stats
        )
        ratios[temperature] = {str(number): value for number, value in enumerate(values)}
    return Candidate(mode, FILE if "eagle3" in mode.spec_type else None, is_current, cells, {}, ratios, {})


def found(
    *candidates: Candidate, temperatures: tuple[float, ...] = (0.5,), cheapest: float = 1.0, pace: str = "auto"
) -> Tuned:
    plain = candidate(PLAIN, *((t, [1.0] * 9) for t in temperatures))
    curve = CostCurve(0.01, {1: 1.0, 2: 1.2}, None)
    return Tuned(
        "model", Path("/m.gguf"), SamplingSettings(), temperatures, curve, cheapest, (), (plain, *candidates), (), None,
        True, (), pace,
    )  # fmt: skip


def advice(*candidates: Candidate, cheapest: float = 1.0) -> Advice:
    return advise(found(*candidates, cheapest=cheapest))


def test_a_head_that_is_certainly_faster_is_advised_with_its_commands() -> None:
    told = advice(
        candidate(OTHERS, (0.5, around(1.1)), is_current=True),
        candidate(HEAD, (0.5, around(1.2))),
        candidate(FIXED, (0.5, around(1.25))),
        candidate(ALL, (0.5, around(1.5))),
    )
    assert told.sentence.startswith(
        "use suffix,recycling,eagle3 of /models/head.gguf with the automatic draft length: 1.50x (1.49 to 1.51) as "
        "fast as plain decoding at temperature 0.5, and 1.36x (1.36 to 1.36) as fast as the present setting, where "
        "the best fixed draft length reaches 1.25x"
    )
    assert told.commands == (
        "edgespec config set draft-model /models/head.gguf",
        "edgespec config set spec-type suffix,recycling,eagle3",
    )
    facts = json.loads(json.dumps(told.as_json()))
    assert facts["choices"][0]["mode"] == "suffix,recycling,eagle3 auto" and facts["choices"][0]["gain"]["low"] > 1.4


def test_a_fixed_length_is_set_too() -> None:
    told = advice(candidate(OTHERS, (0.5, around(1.0)), is_current=True), candidate(FIXED, (0.5, around(1.4))))
    assert "eagle3 of /models/head.gguf with drafts of 2 tokens: 1.40x" in told.sentence
    assert told.commands[1:] == ("edgespec config set spec-type eagle3", "edgespec config set pace fixed:2")


@pytest.mark.parametrize(("pace", "set_pace"), [("auto", []), ("off", ["auto"]), ("fixed:2", ["auto"])])
def test_a_pace_that_is_set_is_set_back(pace: str, set_pace: list[str]) -> None:
    """Otherwise the advised drafter would not draft, or drafts of another length."""
    told = advise(found(candidate(HEAD, (0.5, around(1.4))), pace=pace))
    assert told.commands[2:] == tuple(f"edgespec config set pace {each}" for each in set_pace)


@pytest.mark.parametrize("ratios", [around(1.4, spread=1.5), around(1.4, n=4), [1.4]])
def test_a_way_that_may_be_faster_is_named_and_changes_nothing(ratios: list[float]) -> None:
    told = advice(candidate(OTHERS, (0.5, around(1.1)), is_current=True), candidate(HEAD, (0.5, ratios)))
    assert told.sentence.startswith("keep the present setting, suffix,recycling with the automatic draft length: 1.10x")
    assert "may be faster, 1.40x: more --seconds" in told.sentence
    assert not told.commands


def test_a_present_setting_without_a_certain_gain_is_called_so() -> None:
    for ratios in (around(1.03, spread=0.5), [1.2]):
        told = advice(candidate(OTHERS, (0.5, ratios), is_current=True))
        assert told.sentence.startswith("keep the present setting") and "which is not certainly faster" in told.sentence
    told = advice(candidate(OTHERS, (0.5, around(1.3)), is_current=True))
    assert "certainly" not in told.sentence


def test_of_ways_that_are_alike_the_present_one_stays() -> None:
    current = candidate(OTHERS, (0.5, around(1.3)), is_current=True)
    told = advice(current, candidate(ALL, (0.5, around(1.32))))
    assert told.sentence.startswith("keep the present setting") and "may be faster" not in told.sentence
    told = advice(replace(current, is_current=False), candidate(ALL, (0.5, around(1.32))))
    assert told.sentence.startswith("use suffix,recycling with") and told.commands == (
        "edgespec config set spec-type suffix,recycling",
    )


def test_a_present_setting_that_is_certainly_slower_is_switched_off() -> None:
    told = advice(candidate(OTHERS, (0.5, around(0.8)), is_current=True), candidate(HEAD, (0.5, around(0.9))))
    assert told.sentence == (
        "use no drafters: plain decoding is 1.25x (1.24 to 1.26) as fast as the present setting at temperature 0.5"
    )
    assert told.commands == ("edgespec config set spec-type none",)


def test_without_the_present_setting_nothing_is_switched_off() -> None:
    told = advice(candidate(HEAD, (0.5, around(0.8))))
    assert (
        told.sentence == "no drafter is certainly faster than plain decoding at temperature 0.5" and not told.commands
    )


def test_a_mode_that_drafted_nothing_is_no_gain() -> None:
    idle = candidate(HEAD, (0.5, around(1.3)), drafted=0)
    told = advice(candidate(OTHERS, (0.5, around(1.1)), is_current=True), idle)
    assert told.sentence.startswith("keep the present setting")


def test_the_temperature_of_the_user_decides_and_the_other_is_told() -> None:
    told = advise(
        found(
            candidate(OTHERS, (0.0, around(1.3)), (0.5, around(1.0)), is_current=True),
            candidate(ALL, (0.0, around(1.2)), (0.5, around(1.2))),
            temperatures=(0.0, 0.5),
        )
    )
    assert told.sentence.startswith("use suffix,recycling,eagle3 of")
    assert told.sentence.endswith("; at temperature 0 the present setting is best, 1.30x (1.29 to 1.31)")


def test_disturbed_or_empty_measurements_allow_no_advice() -> None:
    way = candidate(OTHERS, (0.5, around(1.5)))
    assert "another program disturbed the measurement" in advice(way, cheapest=0.8).sentence
    assert "no time for two answers" in advice().sentence
    assert not advice(way, cheapest=0.8).commands
