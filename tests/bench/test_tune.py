"""`tune`: the figures, the recommendation, and the file of learned costs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_program import edgespec_here
from inflate_gguf import inflate
from tiny_gguf import write_model

import edgespec
from edgespec.bench.suites import sample, shipped
from edgespec.bench.tune import (
    CategoryFigures,
    CostCurve,
    Speedup,
    acceptance_probability,
    cost_curve,
    recommend,
    tune,
)
from edgespec.cancel import CancelFlag
from edgespec.errors import UsageError
from edgespec.models.names.spec import resolve

ITEMS = [item for item in sample(shipped(), 1) if item.category in ("chat", "code_completion")]
STEEP = CostCurve(0.03, {1: 1.0, 2: 1.8, 3: 2.0, 4: 2.1, 9: 4.2}, 0.05)
FLAT = CostCurve(0.03, {1: 1.0, 9: 1.2}, 0.05)
BEGINNINGS = {True: ("worth it:",), False: ("not worth it (",), None: ("none: ", "too close to call:")}


@pytest.fixture(autouse=True)
def _few_short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.bench.tune.TOKENS", 16)
    monkeypatch.setattr("edgespec.bench.suites.shipped", lambda: ITEMS)


def test_a_pair_is_measured_from_costs_to_a_recommendation(home: Path) -> None:
    told: list[str] = []
    with edgespec.load("demo", spec_type="draft", threads=1) as llm:
        found = tune(llm, ITEMS, 0.5, progress=lambda what, done: told.append(what))
        assert found is not None
        assert llm.settings.pace == "auto" and llm.settings.spec_type == "draft"
        cancel = CancelFlag()
        cancel.set()
        assert tune(llm, ITEMS, 5.0, cancel=cancel) is None
    assert [each.category for each in found.categories] == ["chat", "code_completion"]
    for each in [*found.categories, found.overall]:
        assert 0 < (each.alpha or 0) < 1 and (each.fixed_speedup or 0) > 0 and (each.auto_speedup or 0) > 0
    assert found.speedup is not None and (found.curve.draft or 0) > 0 and found.curve.target[1] == 1.0
    assert found.speedup.value == pytest.approx(found.overall.auto_speedup)
    assert found.recommendation.why.startswith(BEGINNINGS[found.recommendation.use_it])
    assert {"warming up", "comparing with plain decoding"} <= set(told)
    assert json.loads(json.dumps(found.as_json()))["curve"]["passes"]["1"] == 1.0


def test_stopped_in_the_middle_it_says_what_it_knows(home: Path) -> None:
    cancel = CancelFlag()

    def stop(what: str, done: float) -> None:
        if what == "comparing with plain decoding":
            cancel.set()

    with edgespec.load("demo", spec_type="suffix", threads=1) as llm:
        found = tune(llm, ITEMS, 1.0, cancel=cancel, progress=stop)
    assert found is not None and found.drafter == "suffix" and found.curve.break_even is None
    assert found.messages == ["stopped early: the recommendation covers only what was measured"]


def test_without_a_drafter_there_is_nothing_to_tune(tmp_path: Path) -> None:
    with (
        edgespec.load(str(write_model(tmp_path / "x.gguf", "llama")), spec_type="none", threads=1) as llm,
        pytest.raises(UsageError, match="no drafter"),
    ):
        tune(llm, ITEMS, 1.0)


# --- theory -----------------------------------------------------------------------------------------------------------


def test_the_cost_of_widths_in_between_is_interpolated() -> None:
    curve = cost_curve({"target": {"1": 0.010, "2": 0.008, "5": 0.030}, "draft": 0.001})
    assert curve is not None and curve.draft == pytest.approx(0.1)
    assert [curve.at(width) for width in (1, 2, 3, 5)] == pytest.approx([1, 1, 5 / 3, 3])  # a disturbed 0.8 counts as 1
    assert curve.speedup(0.5, 1) == pytest.approx(1.5 / 1.1)
    assert cost_curve({}) is None


def test_alpha_is_the_share_of_verified_tokens_that_were_accepted() -> None:
    # four drafts of two tokens: three of the first accepted, then one of these three
    assert acceptance_probability([([4, 4], [3, 1])]) == 4 / 7
    assert acceptance_probability([([], [])]) is None


def test_break_even_is_where_some_length_begins_to_pay() -> None:
    alpha = STEEP.break_even
    assert alpha is not None
    assert STEEP.best(alpha) > 1 >= STEEP.best(alpha - 0.011)
    assert CostCurve(1.0, {1: 1.0, 9: 9.0}, 0.1).break_even is replace(FLAT, draft=None).break_even is None


# --- the recommendation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("curve", "alpha", "measured", "use_it", "words"),
    [
        (FLAT, 0.6, (1.5, 1.3, 1.6), True, "worth it: 1.50x as fast as plain decoding, most of it on maths"),
        (FLAT, 0.6, (1.2, 0.8, 1.4), None, "too close to call: between 0.80x and 1.40x"),
        (FLAT, 0.6, (0.98, 0.95, 1.0), False, "60 % of the draft tokens were accepted; a pass over 2 tokens"),
        (FLAT, 0.6, None, None, "no time for two answers"),
        (
            STEEP,
            0.3,
            (0.99, 0.97, 1.0),
            False,
            "30 % of the draft tokens were accepted; a pass over 2 tokens costs 1.80 passes over 1; a draft token 0.05",
        ),
        (STEEP, 0.0, (1.0, 0.9, 1.3), False, "break-even is 63 % acceptance, with 3 draft tokens a step; measured"),
        (
            replace(FLAT, draft=0.15),
            0.2,
            (0.99, 0.97, 1.0),
            False,
            "only passes took time, 1 draft token a step would be 1.02x",
        ),
        (STEEP, 0.3, (1.2, 1.1, 1.3), True, "worth it"),
        (STEEP, 0.0, (1.2, 1.1, 1.3), None, "disturbed the measurement (drafts appeared to save more than 0 % accept"),
        (STEEP, 0.1, (1.06, 0.98, 1.2), None, "too close to call: between 0.98x and 1.20x"),
        (STEEP, 0.3, (1.1, 0.96, 1.29), None, "too close to call: between 0.96x and 1.29x"),
        (STEEP, 0.3, (0.9, 0.85, 0.95), False, "measured 0.90x as fast as plain decoding (95 % interval 0.85 to 0.95)"),
        (replace(FLAT, draft=1.3), 0.6, (0.99, 0.97, 1.0), False, "a draft token 1.3; not even 100 % acceptance"),
        (CostCurve(1.0, {1: 1.0, 9: 9.0}, 0.5), 0.6, (1.0, 0.9, 1.0), False, "not even 100 % acceptance would pay off"),
        (replace(STEEP, draft=None), None, (1.0, 0.9, 1.0), False, "nothing was drafted; a pass over 2 tokens"),
    ],
)
def test_the_recommendation_says_why(
    curve: CostCurve, alpha: float | None, measured: Any, use_it: bool | None, words: str
) -> None:
    categories = [CategoryFigures("chat", alpha, 0.9, 1.0), CategoryFigures("maths", alpha, 1.0, 1.1)]
    found = recommend("draft", curve, categories, alpha, measured and Speedup(*measured))
    assert found.use_it is use_it and found.why.startswith(BEGINNINGS[use_it])
    assert words in found.why


def test_a_wide_pass_that_is_cheaper_than_a_narrow_one_allows_no_recommendation() -> None:
    found = recommend("draft", FLAT, [], 0.6, Speedup(1.4, 1.3, 1.5), cheapest=0.8)
    assert found.use_it is None and "another program disturbed the measurement" in found.why


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_useless_draft_is_advised_against_and_why(tmp_path: Path) -> None:
    useless = tmp_path / "useless.gguf"
    inflate(resolve("demo:draft").path, useless, scramble=True)
    arguments = ["demo", "-md", str(useless), "-t", "1", "--seconds", "1"]
    done = edgespec_here("tune", *arguments, "--json", "-q", home=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == 0 and not done.stderr
    assert found["recommendation"]["why"].startswith(BEGINNINGS[found["recommendation"]["use_it"]])
    assert not found["recommendation"]["use_it"] and found["overall"]["alpha"] < 0.05
    assert sorted((tmp_path / "cache" / "pace").glob("*.json"))
    assert edgespec_here("store", "ls", home=tmp_path).stdout == b"no answers are stored yet\n"


def test_a_target_alone_has_suffix_tuned_and_it_is_said(home: Path) -> None:
    done = edgespec_here("tune", "demo:draft", "-t", "1", "--seconds", "1", home=home)
    shown = done.stdout.decode()
    assert done.returncode == 0 and b"tuning suffix" in done.stderr
    assert re.search("recommendation +(worth it|not worth it|none|too close)", shown)
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.long
def test_a_target_that_drafts_for_itself_is_tuned(home: Path) -> None:
    done = edgespec_here("tune", "demo", "--spec-type", "self:2", "-t", "1", "--seconds", "1", home=home)
    assert done.returncode == 0 and b"\nself" in done.stdout


@pytest.mark.parametrize("spec_type", ["auto", "none", "suffix,draft"])
def test_one_drafter_at_a_time_is_tuned(spec_type: str, home: Path) -> None:
    done = edgespec_here("tune", "demo", "--spec-type", spec_type, home=home)
    assert done.returncode == 2 and b"one drafter at a time" in done.stderr
