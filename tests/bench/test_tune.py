"""`tune`: the figures, the verdict, and the file of learned costs."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import pytest
from cli_program import edgespec_here
from hypothesis import given
from hypothesis import strategies as st
from inflate_gguf import inflate
from tiny_gguf import write_model

import edgespec
from edgespec.bench.fastest import Expected, fastest
from edgespec.bench.suites import sample, shipped
from edgespec.bench.tune import tune
from edgespec.bench.verdict import HARMLESS, WORTH_IT, Kind, Measured, Verdict, break_even, judge, measured_speedup
from edgespec.cancel import CancelFlag
from edgespec.core.theory import CostCurve
from edgespec.errors import UsageError
from edgespec.models.names.spec import resolve

ITEMS = [item for item in sample(shipped(), 1) if item.category in ("chat", "code_completion")]
STEEP = CostCurve(0.03, {1: 1.0, 2: 1.8, 3: 2.0, 4: 2.1, 9: 4.2}, None)
FLAT = CostCurve(0.03, {1: 1.0, 9: 1.2}, None)
VERDICTS = {
    True: ("worth it:",),
    False: ("not worth it (draft):",),
    None: ("none: another program disturbed", "too close to call:"),
}
KIND = Kind("chat", 100, 0.6, 3, 1.4, 1.4, 1.8)


def test_a_pair_is_measured_from_costs_to_a_verdict(home: Path) -> None:
    told: list[str] = []
    with edgespec.load("demo", spec_type="draft", threads=1) as llm:
        found = tune(llm, ITEMS, 2.0, progress=lambda what, done: told.append(what))
        assert found is not None
        assert llm.settings.pace == "auto"
    assert [kind.category for kind in found.kinds] == ["chat", "code_completion"]
    assert all(0 < kind.alpha < 1 and kind.oracle_speedup >= kind.best_speedup >= 1 for kind in found.kinds)
    assert found.overall.tokens == sum(kind.tokens for kind in found.kinds)
    assert found.measured is not None and 0 < (found.curve.draft or 0) < 1 and found.curve.target[1] == 1.0
    assert found.verdict.startswith(VERDICTS[found.use_it])
    assert {"comparing drafts", "warming up"} <= set(told)
    assert json.loads(json.dumps(found.as_json()))["curve"]["passes"]["1"] == 1.0


def test_lookup_can_be_tuned_without_a_draft_model(home: Path) -> None:
    with edgespec.load("demo", spec_type="lookup", threads=1) as llm:
        found = tune(llm, ITEMS, 1.0)
    assert found is not None and found.drafter == "lookup" and 0 <= found.overall.alpha < 1


def test_the_fastest_of_the_types_that_were_measured_here_is_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests may disturb the measurement.
    monkeypatch.setattr("edgespec.bench.tune.judge", lambda *_, **__: Verdict(True, ""))
    other = tmp_path / "other.gguf"
    shutil.copy(resolve("demo:draft").path, other)
    for model in (str(other), "demo"):  # of which the second is another model
        with edgespec.load(model, spec_type="suffix", threads=1) as llm:
            list(llm.generate("import os", max_tokens=8))
    with edgespec.load("demo:draft", spec_type="suffix", threads=1) as llm:
        found = tune(llm, ITEMS, 1.0)
    assert found is not None
    assert found.fastest.split()[0] in ("other.gguf", resolve("demo:draft").path.name)


def test_only_what_was_measured_under_the_same_settings_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    other = tmp_path / "other.gguf"
    shutil.copy(resolve("demo:draft").path, other)
    with edgespec.load(str(other), spec_type="suffix", threads=1, exact=False) as llm:
        list(llm.generate("import os", max_tokens=8))
    with edgespec.load("demo:draft", spec_type="suffix", threads=1) as llm:
        found = tune(llm, ITEMS, 1.0)
    assert found is not None and found.fastest == ""


def test_what_is_stopped_is_not_replayed_for_other_files(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.bench.tune.expected", lambda *_: pytest.fail("replayed"))
    cancel = CancelFlag()

    def stop(what: str, done: float) -> None:
        if what == "warming up":
            cancel.set()

    with edgespec.load("demo", spec_type="suffix", threads=1) as llm:
        found = tune(llm, ITEMS, 1.0, cancel=cancel, progress=stop)
    assert found is not None and found.fastest == ""


def test_without_drafting_another_type_may_be_the_fastest() -> None:
    full, small = Expected("F16", 80.0, 130.0), Expected("Q8_0", 110.0, 120.0)
    assert fastest([full, small]) == "F16 with drafting, about 130 tok/s; without drafting Q8_0, 110"
    assert fastest([replace(full, drafting=90.0), replace(small, drafting=105.0)]).startswith("Q8_0 without drafting")
    assert fastest([full]) == ""


def test_without_a_drafter_there_is_nothing_to_tune(tmp_path: Path) -> None:
    with (
        edgespec.load(str(write_model(tmp_path / "x.gguf", "llama")), spec_type="none", threads=1) as llm,
        pytest.raises(UsageError, match="no drafter"),
    ):
        tune(llm, ITEMS, 1.0)


def test_stopped_before_it_knows_anything_it_says_nothing(home: Path) -> None:
    cancel = CancelFlag()
    cancel.set()
    with edgespec.load("demo", spec_type="draft", threads=1) as llm:
        assert tune(llm, ITEMS, 5.0, cancel=cancel) is None


def said(curve: CostCurve, step: float, auto: float, alpha: float, measured: tuple[float, float, float] | None) -> str:
    curve, overall = replace(curve, draft=step), replace(KIND, auto_speedup=auto, alpha=alpha)
    found = judge("draft", curve, [overall], overall, measured and Measured(*measured, auto))
    assert found.why.startswith(VERDICTS[found.use_it])
    return found.why


@pytest.mark.parametrize(
    ("curve", "step", "auto", "alpha", "measured", "words"),
    [
        (FLAT, 0.05, 1.4, 0.6, (1.5, 1.3, 1.6), "worth it: 1.50x as fast as plain decoding"),
        (FLAT, 0.05, 1.4, 0.6, None, "worth it: 1.40x as fast as plain decoding is expected"),
        (FLAT, 0.05, 1.4, 0.6, (1.2, 0.8, 1.4), "too close to call: between 0.80x and 1.40x"),
        (FLAT, 0.05, 1.4, 0.6, (0.98, 0.8, 1.4), "too close to call: between 0.80x and 1.40x"),
        (FLAT, 0.05, 1.1, 0.6, (0.98, 0.95, 1.0), "costs and acceptance let expect 1.10x, but 0.98x was measured"),
        (FLAT, 0.05, 1.4, 0.6, (0.4, 0.3, 0.5), "none: another program disturbed"),
        (FLAT, 0.05, 1.0, 0.6, (1.5, 1.3, 1.6), "none: another program disturbed"),
        (STEEP, 0.05, 0.99, 0.3, (0.99, 0.97, 1.0), "break-even is"),
        (STEEP, 0.05, 1.0, 0.0, (1.1, 0.9, 1.3), "0 % was measured"),
        (STEEP, 0.05, 1.0, 0.0, (1.2, 1.1, 1.3), "too close to call: 1.20x as fast as plain decoding"),
        (STEEP, 0.05, 0.9, 0.3, (0.9, 0.85, 0.95), "measured 0.90x as fast as plain decoding"),
        (FLAT, 1.3, 0.99, 0.6, (0.99, 0.97, 1.0), "a draft token costs more than a pass of the target itself"),
        (FLAT, 0.05, 1.01, 0.6, (0.99, 0.97, 1.0), "drafts of 60 % acceptance make decoding only 1.01x as fast"),
        (CostCurve(1.0, {1: 1.0, 9: 9.0}, None), 0.5, 1.0, 0.6, None, "not even 100 % acceptance would pay off"),
    ],
)
def test_the_verdict_says_why(
    curve: CostCurve, step: float, auto: float, alpha: float, measured: Any, words: str
) -> None:
    assert words in said(curve, step, auto, alpha, measured)


def test_a_wide_pass_that_is_cheaper_than_a_narrow_one_allows_no_verdict() -> None:
    found = judge("draft", replace(FLAT, draft=0.05), [KIND], KIND, Measured(1.4, 1.3, 1.5, 1.4), cheapest=0.8)
    assert found.use_it is None
    assert found.why.startswith("none: another program disturbed the measurement (a wide pass appeared cheaper")


positive = st.floats(0.3, 3.0)


@given(
    widths=st.lists(st.floats(1.0, 4.0), min_size=4, max_size=4),
    step=st.floats(0.0, 1.5),
    alphas=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=3),
    autos=st.lists(positive, min_size=3, max_size=3),
    measured=st.none() | st.tuples(positive, positive, positive),
)
def test_no_sentence_contradicts_the_figures_or_another_sentence(
    widths: list[float], step: float, alphas: list[float], autos: list[float], measured: Any
) -> None:
    curve = CostCurve(1.0, dict(zip((1, 2, 4, 8), [1.0, *sorted(widths)[:3]], strict=True)), step)
    kinds = [Kind(f"kind {n}", 100, a, 1, s, s, s) for n, (a, s) in enumerate(zip(alphas, autos, strict=False))]
    auto = geometric_mean(kind.auto_speedup for kind in kinds)
    overall = Kind("all", 200, fmean(alphas), 1, auto, auto, auto)
    if measured is not None:
        low, speedup, high = sorted(measured)
        measured = Measured(speedup, low, high, auto)
    found = judge("draft", curve, kinds, overall, measured)
    even, pays = break_even(curve), [kind.category for kind in kinds if kind.auto_speedup >= WORTH_IT]
    assert found.why.startswith(VERDICTS[found.use_it])
    if "break-even is" in found.why:
        assert even is not None and overall.alpha < even
    if "pay off on" in found.why:
        assert 0 < len(pays) < len(kinds)
    if "switches drafting off" in found.why:
        assert not pays
    if found.use_it:
        assert auto >= WORTH_IT and (measured is None or (measured.speedup >= WORTH_IT and measured.low >= HARMLESS))
    if found.use_it is False:
        assert auto < WORTH_IT or (measured is not None and measured.high < WORTH_IT)
        assert measured is None or measured.speedup < WORTH_IT or "may be chance" in found.why
    for bound, here in re.findall(r"less than ([\d.]+) \(here ([\d.]+)\)", found.elsewhere):
        assert float(here) >= float(bound)


def test_the_measured_speedup_weighs_categories_alike_and_resists_a_single_disturbance() -> None:
    kinds = [replace(KIND, category=name, auto_speedup=auto) for name, auto in (("a", 2.0), ("b", 0.5), ("c", 9.0))]
    found = measured_speedup({"a": [2.0, 2.1, 1.9, 40.0, 2.0, 2.0, 2.0], "b": [0.5] * 30}, kinds)
    assert found is not None
    assert found.speedup == pytest.approx(1.0)
    assert 0.9 < found.low <= found.speedup <= found.high < 1.1
    assert found.predicted == pytest.approx(1.0)  # of the categories that were measured
    single = measured_speedup({"a": [2.0], "b": [0.5]}, kinds)
    assert single is not None and (single.low, single.high) == (0.5, 2.0)
    assert measured_speedup({"a": [2.0]}, kinds) is None
    assert measured_speedup({}, kinds) is None


def test_break_even_is_where_some_length_begins_to_pay() -> None:
    curve = replace(STEEP, draft=0.05)
    alpha = break_even(curve)
    assert alpha is not None
    assert curve.best(alpha)[1] > 1 >= curve.best(alpha - 0.011)[1]
    assert break_even(CostCurve(1.0, {1: 1.0, 9: 9.0}, 0.1)) is None


def test_it_says_on_what_machine_it_would_pay() -> None:
    def said(curve: CostCurve) -> str:
        overall = replace(KIND, alpha=0.4, auto_speedup=1.0)
        return judge("draft", curve, [overall], overall).elsewhere

    curve = CostCurve(1.0, {1: 1.0, 2: 1.5, 4: 1.9, 8: 3.0}, 0.1)
    assert said(curve) == (
        "where a pass over 2 tokens costs less than 1.30 (here 1.50), or one over 4 tokens costs less than 1.32 "
        "(here 1.90), a pass over one token being 1"
    )
    assert said(replace(curve, draft=0.9)).startswith("nowhere")
    assert said(replace(curve, target={1: 1.0, 2: 1.0, 4: 1.9, 8: 3.0})) == ""


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_useless_draft_is_advised_against_and_why(tmp_path: Path) -> None:
    useless = tmp_path / "useless.gguf"
    inflate(resolve("demo:draft").path, useless, scramble=True)
    arguments = ["demo", "-md", str(useless), "-t", "1", "--seconds", "1"]
    done = edgespec_here("tune", *arguments, "--json", "-q", home=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == 0 and not done.stderr
    assert found["verdict"].startswith(VERDICTS[found["use_it"]])
    assert not found["use_it"]
    assert found["overall"]["alpha"] < 0.05
    assert sorted((tmp_path / "cache" / "pace").glob("*.json"))
    done = edgespec_here("tune", *arguments, home=tmp_path)
    shown = done.stdout.decode()
    assert re.search("verdict +(not worth it|none|too close)", shown)
    assert max(map(len, shown.splitlines())) <= 80


def test_a_target_alone_has_suffix_tuned_and_it_is_said(home: Path) -> None:
    done = edgespec_here("tune", "demo:draft", "-t", "1", "--seconds", "1", home=home)
    assert done.returncode == 0
    assert b"tuning suffix" in done.stderr and b"suffix" in done.stdout


def test_a_target_that_drafts_for_itself_is_tuned(home: Path) -> None:
    done = edgespec_here("tune", "demo", "--spec-type", "self:2", "-t", "1", "--seconds", "1", home=home)
    assert done.returncode == 0 and b"\nself" in done.stdout  # on stderr may be that something disturbed it


@pytest.mark.parametrize("spec_type", ["auto", "none", "suffix,draft"])
def test_one_drafter_at_a_time_is_tuned(spec_type: str, home: Path) -> None:
    done = edgespec_here("tune", "demo", "--spec-type", spec_type, home=home)
    assert done.returncode == 2 and b"one drafter at a time" in done.stderr


def test_nothing_of_it_is_kept_among_the_answers(tmp_path: Path) -> None:
    done = edgespec_here("tune", "demo", "--spec-type", "suffix", "-t", "1", "--seconds", "1", home=tmp_path)
    assert done.returncode == 0
    assert edgespec_here("store", "ls", home=tmp_path).stdout == b"no answers are stored yet\n"
