"""`edgespec compare`: which files, drafts and modes are measured, what is kept of it, and what is said about it."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cli_program import Finished, ctrl_c_in, edgespec_changed, edgespec_here
from other_vocabulary import permute_vocabulary
from rich.console import Console
from tiny_gguf import write_model

from edgespec.bench.modes import PLAIN, Mode
from edgespec.bench.suites import Item
from edgespec.cancel import CancelFlag
from edgespec.compare import measure, quants
from edgespec.compare.contests import Contest, contests, split_modes
from edgespec.compare.doubts import ago, doubt_about, doubts
from edgespec.compare.figures import Row, greedy_agreement, plain_spread, rows_of, times_as_fast, with_best
from edgespec.compare.kept import recall, speed_key
from edgespec.compare.measure import Plan, Result, run_comparison
from edgespec.compare.quants import check_quants, describe_types, make_quant, size_bytes
from edgespec.compare.report import nats, table, to_csv, verdicts
from edgespec.compare.speed import Speed, measure_speed
from edgespec.compare.targets import find_targets
from edgespec.compare.windows import default_text
from edgespec.errors import GenerationError, UsageError
from edgespec.gguf_file.header import read_header
from edgespec.models.names.spec import resolve
from edgespec.settings import LoadSettings

TARGET, DRAFT = resolve("demo").path, resolve("demo:draft").path
ITEMS = [Item("one", "chat", ("Say something about cats.",)), Item("two", "code_completion", ("def quicksort(xs):\n",))]
DEMO = ["demo", "-t", "1", "-n", "4", "--prompts", "maths", "--per-category", "1", "--limit", "1"]


@pytest.fixture(scope="module")
def plan(home: Path) -> Plan:
    """The bundled target, a smaller copy of it, and the draft as a third file."""
    modes = contests(["plain", "draft fixed:2", "suffix auto"], [DRAFT], ["suffix", "recycling", "draft"])
    settings = LoadSettings("demo", threads=1)
    return Plan(find_targets(["demo:draft", "demo"], ["Q4_0"]), modes, ITEMS, 6, default_text(), settings, limit=1)


@pytest.fixture(scope="module")
def result(plan: Plan) -> Result:
    return run_comparison(plan)


# --- which files ------------------------------------------------------------------------------------------------------


def test_the_largest_file_is_the_reference_unless_one_is_named(home: Path) -> None:
    assert find_targets(["demo:draft", "demo"]).reference.name == "demo"
    twice = find_targets(["demo:draft", str(DRAFT), str(TARGET)], reference="demo")
    assert [target.path for target in twice.all] == [DRAFT, TARGET]
    assert twice.reference.path == TARGET
    found = find_targets(["demo"], reference="demo:draft")
    assert found.reference.name == "demo:draft"
    assert [target.name for target in found.all] == ["demo", "demo:draft"]


def test_a_quantisation_is_made_once_and_not_where_there_is_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_targets(["demo"], ["Q8_0", "Q4_K_M"])
    assert [(target.label, target.quantisation) for target in found.all] == [("Q8_0", "Q8_0"), ("Q4_K_M", "Q4_K_M")]
    made = found.all[1].path
    assert made.parent == home / "cache" / "quants" and made.stat().st_size < TARGET.stat().st_size
    assert found.messages[0] == "demo is already Q8_0: files made from it lose quality twice"
    assert found.messages[1].startswith("created demo Q4_K_M: Q4_K ")
    monkeypatch.setattr(quants, "quantize", lambda *_, **__: pytest.fail("made again"))
    assert make_quant(TARGET, "Q4_K_M") == made


def test_what_came_out_instead_of_k_quants_is_reported(home: Path, tmp_path: Path) -> None:
    narrow = write_model(tmp_path / "narrow.gguf", "llama", width=64, type="F16")
    said = describe_types(read_header(make_quant(narrow, "Q4_K_M")), "Q4_K_M")
    assert "Q5_0" in said and "not a multiple of 256" in said
    assert "multiple" not in describe_types(read_header(make_quant(TARGET, "Q4_K_M")), "Q4_K_M")
    assert "multiple" not in describe_types(read_header(narrow), "Q4_0")


def test_an_unknown_quantisation_says_which_there_are() -> None:
    assert check_quants(["q8_0", " Q4_k_m", "Q8_0"]) == ["Q8_0", "Q4_K_M"]
    with pytest.raises(UsageError, match=r"cannot make quantisation 'Q9_K'\n  the types are F32, .*Q4_K_M.*Q2_K"):
        check_quants(["Q4_K_M", "q9_k"])


def test_without_room_no_quantisation_is_made(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(UsageError, match=r"Q3_K_S of target\.gguf may not fit into"):
        make_quant(TARGET, "Q3_K_S")


@pytest.mark.parametrize("type", ["Q8_0", "Q4_K_M", "Q2_K"])
def test_room_is_asked_for_what_the_file_takes(type: str, home: Path) -> None:
    path = make_quant(TARGET, type)
    assert path.stat().st_size * 0.95 < size_bytes(read_header(TARGET).n_params, type) < path.stat().st_size * 1.6


def test_files_of_other_vocabularies_are_refused(home: Path, tmp_path: Path) -> None:
    permute_vocabulary(TARGET, tmp_path / "permuted.gguf")
    tiny = write_model(tmp_path / "tiny.gguf", "llama")
    for other, why in ((tmp_path / "permuted.gguf", "token "), (tiny, "8192 tokens")):
        with pytest.raises(UsageError, match="cannot be compared with demo") as error:
            find_targets(["demo", str(other)])
        assert why in error.value.why


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["big-7b-a.gguf", "big-7b-b.gguf"], ["a", "b"]),
        (["x.gguf", "x.1.gguf"], ["x", "x.1"]),
        (["one.gguf", "two.gguf"], ["one", "two"]),
    ],
)
def test_files_of_one_quantisation_are_called_by_what_differs(
    names: list[str], labels: list[str], home: Path, tmp_path: Path
) -> None:
    for name in names:
        write_model(tmp_path / name, "llama")
    assert [target.label for target in find_targets([str(tmp_path / name) for name in names]).all] == labels


@pytest.mark.parametrize(
    ("files", "names", "labels"),
    [
        (["a/m.gguf", "b/m.gguf"], ["a/m", "b/m"], ["a", "b"]),
        (["a/x/m.gguf", "b/x/m.gguf"], ["a/x/m", "b/x/m"], ["a/x", "b/x"]),
        (["a/m.gguf", "b/m.gguf", "b/m.bin"], ["a/m", "b/m", "b/m.bin"], ["a/m", "b/m", "b/m.bin"]),
    ],
)
def test_files_of_the_same_name_are_told_apart_by_their_folders(
    files: list[str], names: list[str], labels: list[str], home: Path, tmp_path: Path
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        write_model(tmp_path / file, "llama")
    found = find_targets([str(tmp_path / file) for file in files]).all
    assert ([target.name for target in found], [target.label for target in found]) == (names, labels)


# --- which modes ------------------------------------------------------------------------------------------------------


def test_modes_have_commas_between_them() -> None:
    assert split_modes([]) == ["plain", "all auto"]
    assert split_modes(["plain,Suffix+draft  auto", "fixed:2"]) == ["plain", "suffix+draft auto", "fixed:2"]


def test_each_draft_model_is_loaded_once_and_modes_without_one_are_measured_once() -> None:
    other = Path("other.gguf")
    found = contests(
        ["suffix auto", "suffix+draft auto", "auto", "self:2 auto"], [DRAFT, other], ["suffix", "recycling", "draft"]
    )
    drafting = (Mode("suffix,draft"), Mode("draft"))
    assert [(contest.draft, contest.modes) for contest in found] == [
        (DRAFT, (PLAIN, Mode("suffix"), *drafting)),
        (other, (PLAIN, *drafting)),
        (None, (PLAIN, Mode("self:2"))),
    ]
    assert found[0].names[drafting[0].name] == "suffix+draft auto"
    settings = found[1].settings(LoadSettings("demo", threads=1), TARGET)
    assert (settings.model, settings.draft_model, settings.spec_type) == (str(TARGET), "other.gguf", "suffix,draft")


def test_plain_decoding_needs_nothing_but_the_target() -> None:
    [contest] = contests(["plain"], [], ["suffix"])
    assert contest == Contest(None, (PLAIN,), {"plain": "plain"})
    with pytest.raises(UsageError, match="'draft auto' needs a draft model"):
        contests(["draft auto"], [], ["suffix"])


# --- measuring --------------------------------------------------------------------------------------------------------


def test_every_file_is_measured_in_every_mode(plan: Plan, result: Result) -> None:
    assert result["complete"] and not result["failures"]
    labels = ["demo:draft", "demo", "demo Q4_0"]
    assert [target["label"] for target in result["targets"]] == labels
    assert result["reference"] == "demo"
    ways = [(None, "plain"), (None, "suffix auto"), ("draft", "draft fixed:2")]
    assert [(row["target"], row["draft"], row["mode"]) for row in result["rows"]] == [
        (label, *way) for label in labels for way in ways
    ]
    for row in result["rows"]:
        assert row["prompts"] == 2
        assert row["tokens_per_s"] > 0 and row["first_token_s"] > 0 and row["memory_bytes"] > 10**7
        if row["mode"] == "plain":
            assert row["speedup"] == row["tokens_per_round"] == 1
    drafting = {row["target"]: row["tokens_per_round"] for row in result["rows"] if row["draft"]}
    assert drafting["demo:draft"] == 6 / 3  # its own draft is always right: 1, 3 and 2 tokens
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert str(TARGET.parent) not in json.dumps(result)


def test_quality_is_reported_of_every_file(result: Result) -> None:
    draft, demo, small = (target["quality"] for target in result["targets"])
    assert demo["kl"] == 0 and demo["same_top"] == demo["perplexity_ratio"] == 1
    assert 0 < small["kl"] < draft["kl"]
    assert draft["same_top"] < small["same_top"] < 1
    for quality in (draft, demo, small):
        ratio = quality["perplexity"] / demo["perplexity"]
        assert quality["positions"] == 255 and quality["perplexity_ratio"] == pytest.approx(ratio)
    assert result["targets"][1]["greedy"] == {"equal": 1, "until_they_part": 1}


def test_one_file_alone_has_a_perplexity(plan: Plan, home: Path) -> None:
    alone = find_targets(["demo"])
    result = run_comparison(replace(plan, targets=alone, contests=contests(["plain"], [], []), items=ITEMS[:1]))
    [target] = result["targets"]
    assert result["complete"] and target["quality"]["perplexity"] == pytest.approx(63.6, rel=0.005)
    assert [row["is_best"] for row in result["rows"]] == [True]


def test_what_was_measured_is_not_measured_again(
    plan: Plan, result: Result, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    for name in ("measure_speed", "compare_with", "keep_rows"):
        monkeypatch.setattr(measure, name, lambda *_, **__: pytest.fail("measured again"))
    again = run_comparison(replace(plan, resume=True))
    assert again["rows"] == result["rows"]
    assert [target | {"quality_run": None} for target in again["targets"]] == [
        target | {"quality_run": None} for target in result["targets"]
    ]
    assert again["parts"] == {"all": 6, "finished": 6, "begun": 0, "kept": True}
    assert again["load"] == result["load"]  # nothing was measured, so nothing has to be measured again
    kept = [line for line in doubts(again) if line.startswith("^")]
    assert "started a moment ago: the speed of demo:draft, demo, demo Q4_0 and the quality of demo:draft, " in kept[0]
    assert not [line for line in doubts(result) if line.startswith("^")]


def test_anything_else_is_measured_anew(plan: Plan, result: Result, home: Path) -> None:
    for other in (
        replace(plan, tokens=7),
        replace(plan, items=ITEMS[:1]),
        replace(plan, settings=replace(plan.settings, ctx_size=256)),
        replace(plan, contests=contests(["suffix auto"], [], ["suffix"])),
    ):
        cancel = CancelFlag()
        cancel.set()
        stopped = run_comparison(replace(other, resume=True), cancel=cancel)
        assert not stopped["rows"]
        assert all(target["quality"] for target in stopped["targets"])
    stopped = run_comparison(replace(plan, text=default_text()[5:], resume=True), cancel=cancel)
    assert stopped["rows"] and not any(target["quality"] for target in stopped["targets"])


def test_stopped_in_the_middle_it_goes_on_from_there(plan: Plan, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(plan, tokens=5)
    cancel, answers = CancelFlag(), []

    def stop(what: str, done: float) -> None:
        if what.startswith("generating with"):
            answers.append(what)
            if len(answers) == 4:  # the second prompt is in the making
                cancel.set()

    stopped = run_comparison(plan, stop, cancel)
    assert not stopped["complete"] and not stopped["failures"]
    assert {row["prompts"] for row in stopped["rows"]} == {1}
    assert all(target["quality"] for target in stopped["targets"])
    assert stopped["parts"] == {"all": 6, "finished": 3, "begun": 1, "kept": True}
    assert stopped["load"]["reference_again"] == {}
    first = [row for row in stopped["rows"] if row["target"] == stopped["rows"][0]["target"]]
    whole = run_comparison(replace(plan, resume=True))
    assert whole["complete"]
    assert {row["prompts"] for row in whole["rows"]} == {2}
    both = [stopped["started"], whole["started"]]
    assert [row["runs"] for row in whole["rows"]] == [both] * 3 + [both[1:]] * 6
    assert {target["quality_run"] for target in whole["targets"]} == {both[0]}
    assert list(whole["load"]["reference_again"]) == both[1:]
    assert sum("^" in line for line in told(whole).splitlines()) == 3 + 3 + 1
    [contest] = plan.contests
    settings = contest.settings(plan.settings, plan.targets.all[0].path)
    kept = recall(speed_key(settings, [mode.name for mode in contest.modes], ITEMS, 5))
    assert kept is not None and kept["items"] == ["one", "two"]
    assert first[0]["tokens_per_s"] in [s["tokens_per_s"] for s in kept["samples"] if s["item"] == "one"]


def test_the_reference_is_measured_again_at_the_end_of_each_run(plan: Plan, home: Path) -> None:
    plan = replace(plan, tokens=4, contests=contests(["plain"], [], []))
    one = replace(plan, targets=replace(plan.targets, all=plan.targets.all[1:]))
    first = run_comparison(one)
    assert [rate > 0 for rate in first["load"]["reference_again"].values()] == [True]
    whole = run_comparison(replace(plan, resume=True))
    assert list(whole["load"]["reference_again"]) == [first["started"], whole["started"]]
    assert [row["runs"] for row in whole["rows"]] == [[whole["started"]], *[[first["started"]]] * 2]
    doubt = doubt_about(whole, "demo:draft")
    assert doubt is not None and doubt.factor is not None
    assert any("measured again at the end of this run" in line for line in doubts(whole))


def test_where_one_file_fails_the_others_are_gone_on_with(
    plan: Plan, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = measure_speed

    def fail_once(settings: LoadSettings, *args: Any, **named: Any) -> None:
        if settings.model == str(DRAFT):
            raise GenerationError("decoding failed", why="it is broken")
        real(settings, *args, **named)

    monkeypatch.setattr(measure, "measure_speed", fail_once)
    found = run_comparison(replace(plan, tokens=3, contests=contests(["plain"], [], []), items=ITEMS[:1]))
    assert found["failures"] == ["demo:draft: decoding failed: it is broken"]
    assert {row["target"] for row in found["rows"]} == {"demo", "demo Q4_0"}
    assert not found["complete"]


def test_where_results_cannot_be_kept_they_are_shown(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    alone = replace(plan.targets, all=(plan.targets.reference,))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "compare").write_text("a file in the way of a folder")
    found = run_comparison(
        replace(plan, targets=alone, tokens=3, contests=contests(["plain"], [], []), items=ITEMS[1:])
    )
    assert found["complete"] and not found["parts"]["kept"]
    assert found["rows"]


# --- figures ----------------------------------------------------------------------------------------------------------


def sample(mode: str, item: str, rate: float, rounds: int = 8) -> dict[str, Any]:
    where = {"mode": mode, "temperature": 0.0, "category": "chat", "item": item, "repeat": 0}
    return where | {"tokens": 8, "rounds": rounds, "tokens_per_s": rate, "prompt_s": 1 / rate, "run": "now"}


def speed(*samples: dict[str, Any]) -> Speed:
    return {"samples": list(samples), "memory_bytes": 5, "items": [], "answers": {}, "messages": [], "again": {}}


def test_a_speedup_is_the_median_over_prompts() -> None:
    contest = Contest(DRAFT, (PLAIN, Mode("draft")), {"plain": "plain", "draft auto": "auto"})
    measured = speed(
        *(sample("plain", item, rate) for item, rate in (("a", 10), ("b", 20), ("c", 40))),
        *(sample("draft auto", item, rate, 4) for item, rate in (("a", 30), ("b", 20), ("c", 80))),
    )
    plain, auto = rows_of("f", [contest], [measured])
    assert (plain.tokens_per_s, plain.speedup, plain.draft, plain.tokens_per_round) == (20, 1, None, 1)
    assert (auto.tokens_per_s, auto.speedup, auto.draft, auto.tokens_per_round) == (30, 2, "draft", 2)
    assert auto.speedup_low == 1 and auto.speedup_high == 3
    assert plain.speedup_low is None
    assert plain.runs == ["now"]
    assert auto.first_token_s == pytest.approx(1 / 30)
    again = rows_of("f", [contest, contest], [measured, measured])
    assert [row.mode for row in again] == ["plain", "auto", "auto"]


def row(target: str, rate: float | None) -> Row:
    return Row(target, None, "plain", 1, rate, 1.0, None, None, 0.1, 1.0, 5, [])


def test_a_row_is_marked_where_no_other_beats_it_in_both() -> None:
    points = [("a", 10.0), ("a", 9.0), ("b", 12.0), ("c", 11.0), ("d", 10.0), ("e", None), ("f", 99.0)]
    divergences = {"a": 0.0, "b": 0.1, "c": 0.2, "d": 0.0, "e": 0.0}
    marked = with_best([row(*point) for point in points], divergences)
    assert [each.is_best for each in marked] == [True, False, True, False, True, False, False]


def test_speculation_is_marked_only_where_it_is_faster_for_sure() -> None:
    plain, lucky = row("a", 10.0), replace(row("a", 12.0), mode="lucky", speedup_low=0.9)
    sure, alone = replace(row("a", 11.0), mode="sure", speedup_low=1.01), replace(row("a", 13.0), mode="one prompt")
    idle, sure = replace(sure, mode="idle"), replace(sure, tokens_per_round=1.5)
    assert [each.is_best for each in with_best([plain, lucky, alone], {"a": 0.0})] == [True, False, False]
    assert [each.is_best for each in with_best([plain, idle], {"a": 0.0})] == [True, False]
    assert [each.is_best for each in with_best([plain, lucky, sure], {"a": 0.0})] == [False, False, True]


def test_a_busy_machine_is_reported(result: Result) -> None:
    rates = [10.0, 10.0, 10.5, 14.0, 20.0, 15.0]
    found = plain_spread([speed(*(sample("plain", str(rate), rate) for rate in rates[:3])), speed(*(
        sample(mode, str(rate), rate) for rate in rates[3:] for mode in ("plain", "auto")
    ))])  # fmt: skip
    assert found == pytest.approx(16.25 / 10 - 1)
    assert plain_spread([speed(*(sample("plain", "a", rate) for rate in rates[:3]))]) is None


def test_how_fast_a_machine_is_now_is_measured_by_prompts_that_were_asked_before() -> None:
    before = speed(*(sample("plain", item, rate) for item, rate in (("a", 10), ("b", 20), ("c", 30))))
    now = speed(sample("plain", "a", 20), sample("plain", "b", 30), sample("auto", "c", 99))
    assert times_as_fast(now, before) == (2 + 1.5) / 2
    assert times_as_fast(speed(sample("plain", "d", 1)), before) is None


def test_answers_agree_until_they_part() -> None:
    reference = {"a": [1, 2, 3, 4], "b": [1, 2, 3, 4], "c": [9]}
    found = greedy_agreement({"a": [1, 2, 3, 4], "b": [1, 2, 9, 4]}, reference)
    assert found == {"equal": 0.5, "until_they_part": 0.75}
    assert greedy_agreement({}, reference) == {"equal": None, "until_they_part": None}


def told(result: Result, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table(result))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_fits_and_says_what_is_worth_a_choice(result: Result) -> None:
    for width in (80, 100):
        text = told(result, width)
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for label in ("demo:draft", "demo", "demo Q4_0"):
        assert f"\n{label} " in text
    assert "the reference is demo" in text and "stopped" not in text
    assert "stopped" in told(result | {"complete": False})


NOW, EARLIER = "2026-05-01T12:00:00.000+00:00", "2026-05-01T09:10:00.000+00:00"


def two_files(
    result: Result, small: float, *, runs: Sequence[str] = (NOW,), spread: float = 0.0, again: float | None = 1.0
) -> Result:
    """A result of plain decoding of F16, 10 tokens a second, and of Q4_K_M."""
    quality = {"kl": 0.0213, "same_top": 0.93, "perplexity_ratio": 1.012}
    base = result["targets"][1] | {"label": "F16", "size_bytes": 420, "quality_run": NOW}
    rows = [
        {
            "target": target,
            "mode": mode,
            "draft": draft,
            "tokens_per_s": rate,
            "speedup": up,
            "speedup_low": low,
            "tokens_per_round": 2.0,
            "is_best": best,
            "runs": list(of),
        }
        for target, mode, draft, rate, up, low, best, of in (
            ("F16", "plain", None, 10.0, 1.0, None, True, runs[:1]),
            ("Q4_K_M", "plain", None, small, 1.0, None, False, runs[-1:]),
            ("Q4_K_M", "auto", "small", 25.0, 1.5, 1.1, True, runs[-1:]),
            ("Q4_K_M", "auto", "other", 30.0, 1.8, 0.9, False, runs[-1:]),
        )
    ]
    return result | {
        "reference": "F16",
        "started": NOW,
        "targets": [base, base | {"label": "Q4_K_M", "size_bytes": 200, "quality": quality}],
        "rows": rows,
        "load": {"spread": {"F16": spread, "Q4_K_M": None}, "reference_again": {} if again is None else {NOW: again}},
    }


def test_a_verdict_tells_size_speed_and_quality(result: Result) -> None:
    found = two_files(result, 17.0)
    first, second, third = verdicts(found)
    assert first == (
        "Q4_K_M: 2.10x smaller, 1.70x faster, speculative decoding (auto by small) makes it 1.50x faster, KL 0.021, "
        "same most likely token at 93 % of the positions, perplexity 1.012 times the reference's"
    )
    assert second == "best trade-offs of speed and closeness to F16, fastest first: Q4_K_M auto by small; F16 plain"
    assert third == (
        "fastest on this machine: Q4_K_M with auto by small, 25.0 tok/s, 1.47x the fastest without drafting (Q4_K_M)"
    )
    assert list(doubts(found)) == []


def test_the_fastest_may_be_another_type_than_without_drafting(result: Result) -> None:
    found = two_files(result, 30.0)
    assert list(verdicts(found))[-1] == "fastest on this machine: Q4_K_M without drafting, 30.0 tok/s"
    faster = {"mode": "auto", "target": "F16", "tokens_per_s": 33.0, "speedup": 3.3, "speedup_low": 3.0}
    row = next(row for row in found["rows"] if row["target"] == "F16")
    rows = [*found["rows"], row | faster | {"is_best": False}]
    assert list(verdicts(found | {"rows": rows}))[-1] == (
        "fastest on this machine: F16 with auto, 33.0 tok/s, 1.10x the fastest without drafting (Q4_K_M)"
    )


@pytest.mark.parametrize(
    ("small", "circumstances", "said"),
    [
        (17.0, {"runs": (EARLIER, NOW)}, "about 1.70x faster (1.70x to 1.70x: measured in different runs)"),
        (17.0, {"spread": 0.5}, "about 1.70x faster (1.13x to 2.55x: the machine was busy at times)"),
        (5.0, {"again": 0.8}, "about 2.00x slower (1.60x to 2.50x: the machine was busy at times)"),
        (17.0, {"again": 2.0}, "faster or slower is uncertain (0.85x to 3.40x as fast: the machine was busy at"),
        (17.0, {"again": None}, "perhaps 1.70x faster (uncertain: a run was stopped before it could check"),
        (17.0, {"runs": (NOW, EARLIER)}, "perhaps 1.70x faster (uncertain: a run was stopped before it could check"),
        (
            17.0,
            {"again": None, "spread": 0.5},
            "perhaps 1.70x faster (uncertain: a run was stopped before it could check",
        ),
    ],
)
def test_a_ratio_of_speeds_is_no_fact_where_the_machine_may_have_changed(
    small: float, circumstances: dict[str, Any], said: str, result: Result
) -> None:
    found = two_files(result, small, **circumstances)
    first, second, _ = verdicts(found)
    assert f"2.10x smaller, {said}" in first
    assert second.startswith("as far as these speeds can be compared, best trade-offs")


def test_what_verdicts_have_to_be_read_with_is_reported(result: Result) -> None:
    kept, again = doubts(two_files(result, 17.0, runs=(EARLIER, NOW)))
    assert kept == "^ is from an earlier run, started 3 hours ago: the speed of F16"
    assert again == "plain decoding of F16, measured again at the end of this run, was 1.00x as fast as in the table"
    [busy] = doubts(two_files(result, 17.0, spread=0.5))
    assert busy == "the machine was busy: about the same work took up to 50 % longer at times"
    [changed] = doubts(two_files(result, 17.0, again=0.5))
    assert changed.endswith("was 0.50x as fast as in the table")


def test_ages_are_shown_in_the_largest_unit() -> None:
    times = ["2026-05-01T11:59:45+00:00", "2026-05-01T11:59:00+00:00", "2026-05-01T10:58:00+00:00", "2026-04-29"]
    assert [ago(time + ("" if "T" in time else "T12:00:00+00:00"), NOW) for time in times] == [
        "a moment ago", "1 minute ago", "1 hour ago", "2 days ago",
    ]  # fmt: skip


def test_small_figures_are_shown_as_what_they_are() -> None:
    assert [nats(value) for value in (0.0, 1e-7, 2.34e-5, 0.00123, 0.0456, 1.23)] == [
        "0", "0", "2.3e-05", "0.0012", "0.046", "1.2",
    ]  # fmt: skip


def test_a_line_of_csv_is_a_row_with_its_file(result: Result) -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(result))))
    assert [(line["target"], line["mode"]) for line in lines] == [(r["target"], r["mode"]) for r in result["rows"]]
    assert float(lines[0]["kl"]) == result["targets"][0]["quality"]["kl"]
    assert lines[0]["file"] == "draft.gguf"
    assert lines[0]["runs"] == lines[0]["quality_run"] == result["started"]


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
def test_a_picture_shows_every_file(result: Result, tmp_path: Path) -> None:
    from edgespec.compare.plot import plot

    plot(result, tmp_path / "a.svg")
    plot(result, tmp_path / "b.svg")
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for text in (
        "demo Q4_0",
        "draft fixed:2",
        "divergence from demo",
        "log scale",
        "lower is closer",
        ">0.05<",
        ">0.1<",
        "is both",
    ):
        assert text in drawn
    assert drawn == (tmp_path / "b.svg").read_text(encoding="utf-8")
    with pytest.raises(UsageError, match="nothing to plot"):
        plot(result | {"rows": []}, tmp_path / "c.svg")


# --- the command ------------------------------------------------------------------------------------------------------


def compare(home: Path, *args: str) -> Finished:
    return edgespec_here("compare", *args, home=home)


def test_the_command_compares_quantisations_of_the_bundled_target(home: Path) -> None:
    done = compare(home, *DEMO, "--quants", "q4_k_m,Q2_K", "--modes", "plain,auto", "--csv", "out.csv")
    assert (done.returncode, done.stderr) == (0, b"")
    for label in ("Q8_0", "Q4_K_M", "Q2_K"):
        assert f"\n{label} " in done.stdout.decode()
    assert len((home / "out.csv").read_text(encoding="utf-8").splitlines()) == 1 + 3 * 2
    again = compare(home, *DEMO, "--quants", "Q2_K,q4_k_m", "--modes", "plain,auto", "--resume", "--json")
    result = json.loads(again.stdout)
    assert result["doubts"][0].endswith("the speed of Q8_0, Q2_K, Q4_K_M and the quality of Q8_0, Q2_K, Q4_K_M")
    assert result["command"].startswith("edgespec compare demo -t 1")
    assert {line["draft"] for line in result["rows"]} == {None, "draft"}
    assert result["verdicts"][0].startswith("Q2_K: ")


def test_prompts_that_do_not_fit_are_left_out_and_not_asked_again(home: Path) -> None:
    rows = [{"id": "long", "prompt": "word " * 2000}, {"id": "short", "prompt": "Hello"}]
    (home / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\nbroken\n", encoding="utf-8")
    args = ["demo", "-t", "1", "-n", "4", "--limit", "1", "--modes", "plain", "--prompts", "prompts.jsonl", "--json"]
    for resume, kept in (([], 0), (["--resume"], 1)):
        done = compare(home, *args, *resume)
        result = json.loads(done.stdout)
        assert result["rows"][0]["prompts"] == 1
        assert sum("from an earlier run" in line for line in result["doubts"]) == kept
        assert any(message.startswith("skipped long") for message in result["messages"])
        assert b"prompts.jsonl: line 3" in done.stderr


@pytest.mark.parametrize(
    ("args", "said", "code"),
    [
        ([], "Missing argument", 2),
        ([*DEMO, "--quants", "Q9"], "cannot make quantisation 'Q9'", 2),
        ([*DEMO, "--modes", "fast"], "unknown word 'fast'", 2),
        (["demo", "--prompts", "missing.jsonl"], "missing.jsonl", 2),
        ([*DEMO, "--text", "empty.txt"], "the text is empty", 2),
        ([*DEMO, "--text", "short.txt"], "the text is shorter than one window", 2),
        ([*DEMO, "--csv", "nowhere/x.csv"], "nowhere/x.csv cannot be written: there is no folder nowhere", 2),
        ([*DEMO, "--plot", "x.pdf"], ".png or .svg", 2),
        ([*DEMO, "tiny.gguf"], "tiny cannot be compared with demo", 2),
        ([*DEMO, "-md", "nothing.gguf"], "nothing.gguf", 3),
        ([*DEMO, "--limit", "100000000", "--text", "long.txt", "--quants", "Q2_K"], "fit into", 2),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(
    home: Path, args: Sequence[str], said: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "empty.txt").write_bytes(b"")
    (home / "short.txt").write_bytes(b"a few words")
    if "long.txt" in args:
        (home / "long.txt").write_bytes(b"word " * 2000)
        monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 4_000_000})())
    write_model(home / "tiny.gguf", "llama")
    monkeypatch.setattr(measure, "measure_speed", lambda *_, **__: pytest.fail("measured"))
    done = compare(home, *args)
    assert (done.returncode, done.stdout) == (code, b"")
    assert said in done.stderr.decode()


def test_a_failure_is_reported_and_the_exit_code_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise GenerationError("decoding failed")

    monkeypatch.setattr(measure, "measure_speed", fail)
    done = compare(home, *DEMO)
    assert done.returncode == 1
    assert done.stderr == b"edgespec: Q8_0: decoding failed\n"
    assert b"\nQ8_0 " in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
def test_ctrl_c_shows_what_there_is_and_keeps_it(home: Path) -> None:
    code = ctrl_c_in("edgespec.bench.answers", "OwnMode.answer", call=4)  # one to warm up
    args = ["compare", "demo", "-t", "1", "-n", "300", "--limit", "1", "--modes", "plain", "--per-category", "9"]
    done = edgespec_changed(code, *args, home=home)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == (b"note: stopped: 1 of 2 parts are saved, and some of another; add --resume to continue\n")
    assert b"\nstopped " in done.stdout and b"\nQ8_0 " in done.stdout
    assert list((home / "cache" / "compare").glob("rows*")) == []


@pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("targets make_quant", "; new quantisations are saved, and the same command starts again"),
        ("measure run_comparison", "; new quantisations are saved, and the same command starts again"),
    ],
)
def test_ctrl_c_before_anything_was_measured_says_so(where: str, said: str, home: Path) -> None:
    module, name = where.split()
    code = ctrl_c_in(f"edgespec.compare.{module}", name)
    done = edgespec_changed(code, "compare", *DEMO, "--quants", "Q5_0", home=home)
    assert (done.returncode, done.stdout) == (128 + signal.SIGINT, b"")
    assert done.stderr.decode() == f"note: stopped before anything was measured{said}\n"
