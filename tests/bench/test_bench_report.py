"""What is made of a bench's answers: figures that can be worked out by hand, tables, pictures, comparisons."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import sys
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from rich.console import Console, RenderableType

from edgespec.bench.compare import compare, load_result
from edgespec.bench.paired import ALL, bootstrap_interval, guessing
from edgespec.bench.plot import plot
from edgespec.bench.report import cells, table
from edgespec.bench.summary import Cell, Guesser, Result, summarise
from edgespec.bench.tables import to_csv
from edgespec.core.theory import acceptance_probability, cost_curve, expected_tokens
from edgespec.errors import EdgespecError, UsageError

MODES = ["plain", "draft auto", "draft fixed:2", "draft fixed:8", "lookup auto", "llama-cpp-python lookup"]
CATEGORIES = ["chat", "code_completion", "code_editing", "maths", "summary", "translation", "writing"]
COSTS = {"target": {"1": 0.010, "2": 0.012, "3": 0.015, "5": 0.025, "9": 0.060}, "draft": 0.001}


def answer(mode: str, rate: float, item: str = "a", **figures: Any) -> dict[str, Any]:
    """One sample of a result; what is not given is that of plain decoding of one token."""
    return {
        "mode": mode,
        "temperature": 0.0,
        "category": "chat",
        "item": item,
        "repeat": 0,
        "tokens": 1,
        "seconds": 1 / rate if rate else 0.0,
        "tokens_per_s": rate,
        "prompt_s": 0.1,
        "rounds": 1,
        "proposed": 0,
        "accepted": 0,
        "proposed_per_pos": [],
        "accepted_per_pos": [],
        "by_source": {},
        "draft_s": 0.0,
        "target_s": 1.0,
        "other_s": 0.0,
        "equal": None,
        "repeated_4grams": 0.0,
        "energy_j": None,
        "order": 0,
    } | figures


def result_of(*samples: dict[str, Any], **rest: Any) -> Result:
    settings = {"threads": 2, "ctx_size": 4096, "tokens": 96, "repeat": 1, "reference": False}
    modes = list(dict.fromkeys(sample["mode"] for sample in samples))
    temperatures = sorted({sample["temperature"] for sample in samples})
    return {
        "version": 1,
        "complete": True,
        "command": "edgespec bench",
        "started": "2026-03-01T12:00:00+00:00",
        "edgespec": "0.1.0",
        "machine": {"cpu": "Some CPU", "gpus": [], "physical_cores": 4, "system": "Linux"},
        "build": {"llama_cpp_python": "0.3.36", "flags": "CPU : AVX = 1 | AVX2 = 1 | "},
        "models": {
            "target": {"name": "target-7b-q4_k_m.gguf", "sha256": "a" * 64, "bytes": 5, "description": "7B Q4_K_M"},
            "draft": {"name": "draft-0.5b-q8_0.gguf", "sha256": "b" * 64, "bytes": 1, "description": "0.5B Q8_0"},
        },
        "settings": {**settings, "modes": modes, "temperatures": temperatures},
        "costs": COSTS,
        "load": {"spread": 0.02},
        "messages": [],
        "samples": list(samples),
    } | rest


def full_result(seed: int = 1, **rest: Any) -> Result:
    """Every mode, category and temperature, with figures that differ everywhere."""
    numbers = random.Random(seed)
    samples = []
    for category in CATEGORIES:
        for number in range(3):
            for temperature in (0.0, 0.8):
                for place, mode in enumerate(MODES):
                    drafted = {"proposed": 20, "accepted": 9, "proposed_per_pos": [10, 10], "accepted_per_pos": [6, 3]}
                    samples.append(
                        answer(
                            mode,
                            1000 + 400 * place + numbers.uniform(0, 300),
                            f"{category}-{number}",
                            category=category,
                            temperature=temperature,
                            target_s=numbers.uniform(1, 2),
                            draft_s=numbers.uniform(0, 1),
                            other_s=numbers.uniform(0, 0.2),
                            equal=True if mode in ("draft auto", "lookup auto") else None,
                            **(drafted if mode.startswith(("draft", "lookup")) else {}),
                        )
                    )
    return result_of(*samples, **rest)


def cell_of(result: Result, mode: str, category: str = ALL) -> Cell:
    cell = summarise(result).cell(mode, 0.0, category)
    assert cell is not None
    return cell


def rendered(renderable: RenderableType, width: int = 80) -> str:
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(renderable)
    return text.getvalue()


def flowing(renderable: RenderableType) -> str:
    """All words with single spaces, wherever lines were broken."""
    return " ".join(rendered(renderable).split())


# --- speedups ---------------------------------------------------------------------------------------------------------


def test_a_speedup_is_the_median_over_prompts_of_the_medians_over_repeats() -> None:
    result = result_of(
        *(answer("plain", 10, item) for item in "abc"),
        answer("plain", 20, "a", repeat=1),
        answer("draft fixed:2", 20, "a"),  # 2 and
        answer("draft fixed:2", 80, "a", repeat=1),  # 4 times as fast: 3
        answer("draft fixed:2", 15, "b"),
        answer("draft fixed:2", 70, "c"),
    )
    cell = cell_of(result, "draft fixed:2")
    assert (cell.speedup, cell.items, cell.samples) == (3, 3, 4)
    assert cell.tokens_per_s == 50  # of 50, 15 and 70
    assert cell_of(result, "plain").speedup == 1


def test_speedups_of_a_loaded_machine_are_those_of_an_idle_one() -> None:
    idle = [answer("plain", 10), answer("draft auto", 15)]
    loaded = [answer("plain", 4, "b"), answer("draft auto", 6, "b")]
    assert cell_of(result_of(*idle, *loaded), "draft auto").speedup == 1.5


def test_temperatures_and_categories_have_cells_of_their_own_and_together() -> None:
    rates = {("chat", 0.0): 20.0, ("chat", 0.8): 40.0, ("maths", 0.0): 60.0, ("maths", 0.8): 80.0}
    samples = [
        answer(mode, rate, category=category, temperature=temperature)
        for (category, temperature), speed in rates.items()
        for mode, rate in (("plain", 10.0), ("lookup auto", speed))
    ]
    summary = summarise(result_of(*samples))
    found = {
        (temperature, category): cell.speedup
        for temperature in (0.0, 0.8, ALL)
        for category in ("chat", "maths", ALL)
        if (cell := summary.cell("lookup auto", temperature, category))
    }
    own = {(temperature, category): rate / 10 for (category, temperature), rate in rates.items()}
    assert found == own | {(0.0, ALL): 4, (0.8, ALL): 6, (ALL, "chat"): 3, (ALL, "maths"): 7, (ALL, ALL): 5}


def test_the_interval_is_that_of_the_resampled_median() -> None:
    assert bootstrap_interval([1.0, 3.0]) == (1.0, 3.0)  # the median of a resample is 1, 2 or 3, each end every fourth
    numbers = random.Random(1)
    values = [numbers.gauss(2, 0.2) for _ in range(60)]
    low, high = bootstrap_interval(values) or (0.0, 0.0)
    assert 1.9 < low < median(values) < high < 2.1
    assert bootstrap_interval(values) == (low, high)


def test_one_prompt_has_a_speedup_but_no_interval() -> None:
    result = result_of(answer("plain", 10), answer("draft auto", 20))
    cell = cell_of(result, "draft auto")
    assert (cell.speedup, cell.speedup_low, cell.speedup_high) == (2, None, None)
    assert "with 1 prompt the real coverage of an interval is below 95 %" in flowing(table(result))


def test_an_answer_without_its_plain_one_is_left_out_and_counted() -> None:
    result = result_of(answer("plain", 10), answer("draft auto", 20), answer("draft auto", 90, "b"))
    cell = cell_of(result, "draft auto")
    assert (cell.speedup, cell.items, cell.tokens_per_s) == (2, 2, 55)
    assert "1 answer could not be compared with plain decoding" in flowing(table(result))


@pytest.mark.parametrize(("plain", "rate"), [(0.0, 10.0), (10.0, 0.0), (None, 10.0), (10.0, None)])
def test_what_was_too_short_to_be_timed_has_no_speedup(plain: float | None, rate: float | None) -> None:
    result = result_of(answer("plain", 1, tokens_per_s=plain), answer("draft auto", 1, tokens_per_s=rate))
    assert cell_of(result, "draft auto").speedup is None
    rendered(table(result))


# --- other figures ----------------------------------------------------------------------------------------------------


def test_counts_and_times_are_summed_before_they_are_divided() -> None:
    guesses: dict[str, Any] = {"proposed_per_pos": [4, 4], "accepted_per_pos": [3, 1], "proposed": 8, "accepted": 4}
    few: dict[str, Any] = {"proposed_per_pos": [1], "accepted_per_pos": [1], "proposed": 1, "accepted": 1}
    times: dict[str, Any] = {"target_s": 3.0, "draft_s": 0.5, "other_s": 0.5}
    result = result_of(
        answer("draft fixed:2", 1, "a", tokens=9, rounds=5, **guesses, **times, equal=True, energy_j=30.0),
        answer("draft fixed:2", 1, "b", tokens=3, rounds=1, **few, **times, equal=False, repeated_4grams=0.5),
    )
    cell = cell_of(result, "draft fixed:2")
    assert cell.tokens_per_round == 2
    assert cell.acceptance == 5 / 9
    assert cell.acceptance_per_pos == [4 / 5, 1 / 4]
    assert cell.reach == [4 / 6, 1 / 6] and sum(cell.reach) == pytest.approx(5 / 6)
    shown = rendered(table(result))
    assert re.search(r"so many draft tokens or more were accepted, %.*\n.*1 +2\n.*\n *draft fixed:2 +66 +16", shown)
    assert (cell.target_share, cell.draft_share, cell.other_share) == (0.75, 0.125, 0.125)
    assert cell.joules_per_token == 30 / 9  # of the answers whose energy is known
    assert (cell.equal_share, cell.repeated_4grams) == (0.5, 0.25)


def test_what_was_not_measured_is_none() -> None:
    unknown: dict[str, Any] = dict.fromkeys(
        ("rounds", "draft_s", "target_s", "other_s", "repeated_4grams", "proposed_per_pos")
    )
    cell = cell_of(result_of(answer("llama-cpp-python", 10, **unknown)), "llama-cpp-python")
    known = {"mode", "temperature", "category", "items", "samples", "tokens_per_s", "acceptance_per_pos", "guessers"}
    known |= {"reach"}
    assert {name for name in Cell.__slots__ if getattr(cell, name) is not None} == known
    assert cell.acceptance_per_pos == cell.reach == []
    assert cell.guessers == []


def test_what_each_drafter_did_is_reported_where_the_policy_decides() -> None:
    mode, counts = "suffix,draft auto", {"rounds": 1, "asked": 10, "seconds": 0.004, "proposed": 8}
    one = {"suffix": {**counts, "accepted": 6, "cost": 1.0}, "draft": {**counts, "accepted": 0, "cost": None}}
    two = {"suffix": {**counts, "asked": 30, "accepted": 2, "cost": 2.0}}
    result = result_of(
        *rates("chat", "a", plain=10),
        answer(mode, 10, "a", seconds=2.0, rounds=9, by_source=one),
        answer(mode, 10, "b", seconds=3.0, rounds=9, by_source=two),
        answer("draft fixed:2", 10, "b", rounds=9, by_source={"draft": one["draft"]}),
    )
    assert cell_of(result, mode).guessers == [
        Guesser("suffix", 40, 16, 8, 8 / 40, (8 - 3) / 5),
        Guesser("draft", 10, 8, 0, 4 / 10, None),
    ]
    _, _, shown = rendered(table(result)).partition("Drafters, temperature 0")
    rows = [line.split() for line in shown.partition("passes")[0].splitlines() if " 40 " in line or " 10 " in line]
    assert rows == [["suffix,draft", "auto", "suffix", "40", "16", "50", "0.20", "+1.0"],
                        ["draft", "10", "8", "0", "0.40", "-"]]  # fmt: skip


# --- theory -----------------------------------------------------------------------------------------------------------


def test_alpha_counts_the_draft_tokens_that_were_verified() -> None:
    # 10 verified and 6 of them accepted, after these 6 verified and 3 accepted; 4 + 3 steps rejected
    assert acceptance_probability([([10, 10], [6, 3])]) == 9 / 16
    # at the end of the answer only 8 of the 9 chains had a second draft token
    assert acceptance_probability([([10, 8], [9, 5])]) == 14 / 18
    assert acceptance_probability([([], []), ([5], [0])]) == 0
    assert acceptance_probability([([], [])]) is None


def test_alpha_is_found_again_whatever_the_length() -> None:
    numbers = random.Random(1)
    for length in (1, 4, 8):
        accepted = [0] * length
        for _ in range(4000):
            for depth in range(length):
                if numbers.random() > 0.7:
                    break
                accepted[depth] += 1
        assert acceptance_probability([([4000] * length, accepted)]) == pytest.approx(0.7, abs=0.02)


def test_expected_tokens_is_the_closed_form() -> None:
    for alpha in (0.0, 0.3, 0.9):
        assert expected_tokens(alpha, 4) == pytest.approx((1 - alpha**5) / (1 - alpha))
    assert expected_tokens(1.0, 4) == 5


def test_predicted_speedups_follow_from_alpha_and_the_costs() -> None:
    verified: dict[str, Any] = {"proposed_per_pos": [10, 10], "accepted_per_pos": [6, 3]}  # alpha = 9/16
    wide: dict[str, Any] = {"proposed_per_pos": [8] * 3, "accepted_per_pos": [8, 8, 8]}  # alpha = 1
    result = result_of(
        answer("plain", 10),
        answer("draft fixed:2", 10, **verified),
        answer("draft fixed:3", 10, **wide),
        answer("draft fixed:16", 10, **wide),
        answer("draft auto", 10),
        answer("draft fixed:2 tree:4", 10, **verified),
        answer("lookup fixed:2", 10, **verified),
    )
    alpha = 9 / 16
    two = cell_of(result, "draft fixed:2")
    assert (two.alpha, two.predicted_length) == (alpha, 2)
    assert two.predicted_speedup == pytest.approx((1 + alpha + alpha**2) / (2 * 0.1 + 1.5))
    # t(4) lies between t(3) = 1.5 and t(5) = 2.5
    assert cell_of(result, "draft fixed:3").predicted_speedup == pytest.approx(4 / (3 * 0.1 + 2.0))
    assert cell_of(result, "draft fixed:16").predicted_speedup is None  # no pass of that width was measured
    auto = cell_of(result, "draft auto")
    pooled = (9 + 24 + 24) / (16 + 24 + 24)
    assert auto.alpha == pytest.approx(pooled)
    assert auto.predicted_length == 2  # 1.45x, 1.58x, 1.47x, 1.39x for 1 to 4
    assert auto.predicted_speedup == pytest.approx(expected_tokens(pooled, 2) / (0.2 + 1.5))
    for mode in ("draft fixed:2 tree:4", "lookup fixed:2", "plain"):
        assert cell_of(result, mode).predicted_speedup is None


def test_theory_advises_plain_decoding_where_nothing_is_accepted() -> None:
    rejected: dict[str, Any] = {"proposed_per_pos": [10, 10], "accepted_per_pos": [0, 0]}
    auto = cell_of(result_of(answer("draft fixed:2", 10, **rejected), answer("draft auto", 10)), "draft auto")
    assert (auto.alpha, auto.predicted_length, auto.predicted_speedup) == (0, 0, 1)


@pytest.mark.parametrize("costs", [None, {}, {"target": {}, "draft": None}, {"target": {"2": 0.1}, "draft": 0.1}])
def test_without_costs_there_is_no_prediction(costs: dict[str, Any] | None) -> None:
    verified: dict[str, Any] = {"proposed_per_pos": [10], "accepted_per_pos": [5]}
    result = result_of(answer("plain", 10), answer("draft fixed:1", 10, **verified), costs=costs)
    cell = cell_of(result, "draft fixed:1")
    assert (cell.alpha, cell.predicted_speedup) == (0.5, None)
    assert cost_curve(costs) is None
    assert "t(1)" not in rendered(table(result))


def test_nothing_proposed_is_no_acceptance() -> None:
    cell = cell_of(result_of(answer("plain", 10), answer("draft fixed:2", 10)), "draft fixed:2")
    assert (cell.acceptance, cell.acceptance_per_pos, cell.alpha, cell.predicted_speedup) == (None, [], None, None)


# --- headroom ---------------------------------------------------------------------------------------------------------


def rates(category: str, item: str, **by_mode: float) -> list[dict[str, Any]]:
    names = {"plain": "plain", "two": "draft fixed:2", "eight": "draft fixed:8", "auto": "draft auto"}
    drafted = {"proposed": 2, "accepted": 1}
    return [
        answer(names[name], rate, item, category=category, **({} if name == "plain" else drafted))
        for name, rate in by_mode.items()
    ]


def test_headroom_compares_auto_with_the_best_length_and_with_the_best_for_each_category() -> None:
    result = result_of(
        *rates("chat", "a", plain=10, two=20, eight=10, auto=20),
        *rates("maths", "a", plain=10, two=10, eight=80, auto=40),
        *rates("maths", "b", plain=10, two=1000, eight=1),  # no answer of auto: does not count
    )
    (room,) = summarise(result).headroom
    assert (room.family, room.temperature, room.items) == ("draft", 0.0, 2)
    assert room.fixed == pytest.approx({0: 1, 2: sqrt(2), 8: sqrt(8)})
    assert (room.best_length, room.oracle_lengths) == (8, {"chat": 2, "maths": 8})
    assert [room.best_speedup, room.oracle_speedup] == pytest.approx([sqrt(8), 4])
    assert room.auto_speedup == pytest.approx(sqrt(8))
    assert (
        "draft at temperature 0, mean of the categories: the best fixed length (of 2, 8) is 8, 2.83x; the best for "
        "each category would reach 4.00x; auto reaches 2.83x, 100 % of the best fixed length"
    ) in flowing(table(result))


def test_where_drafting_never_pays_plain_decoding_is_the_best_length() -> None:
    result = result_of(*rates("chat", "a", plain=10, two=8, eight=5, auto=9))
    (room,) = summarise(result).headroom
    assert (room.best_length, room.best_speedup, room.oracle_lengths) == (0, 1, {"chat": 0})
    assert (
        "draft at temperature 0: no fixed length (of 2, 8) is faster than plain decoding; auto reaches 0.90x, "
        "90 % of plain decoding"
    ) in flowing(table(result))


def test_modes_that_differ_in_more_than_length_are_families_of_their_own() -> None:
    names = ["draft fixed:4", "draft auto", "draft fixed:4 tree:4", "draft fixed:4 rejection", "lookup,draft fixed:4"]
    families = [found.family for name in names if (found := guessing(name))]
    assert families == ["draft", "draft", "draft tree:4", "draft rejection", "lookup,draft"]
    assert guessing("plain") is guessing("llama-cpp-python lookup") is None


# --- the report -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_figure_is_cut_at_any_width(width: int) -> None:
    renderable = table(full_result())
    text = rendered(renderable, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text

    def figures(lines: str) -> set[str]:
        return set(re.findall(r"\d+\.\d\dx|\d\.\d\d-\d\.\d\d|\d+/\d+/\d+|[\d.]+ ms", lines))

    assert figures(text) == figures(rendered(renderable, 300))
    for mode in MODES:
        assert re.search(rf"^{re.escape(mode)} ", text, re.MULTILINE)
    for word in ["interval", "theory", "tok/s", "step", "acc.", "equal", "completion", "translation", "writing"]:
        assert word in text.split()


def test_all_of_the_main_table_fits_into_80_columns() -> None:
    header = next(line for line in rendered(table(full_result())).splitlines() if line.startswith("mode"))
    assert header.split() == ["mode", "up", "interval", "theory", "tok/s", "step", "%", "other", "%", "%"]


def test_the_fastest_row_is_bold() -> None:
    text = io.StringIO()
    result = result_of(*rates("chat", "a", plain=10, two=20, eight=10))
    Console(file=text, width=80, force_terminal=True, color_system="standard").print(table(result))
    bold = re.findall(r"\x1b\[1m(draft fixed:\d|plain)", text.getvalue())
    assert bold == ["draft fixed:2"]


def test_no_speedup_is_praised_where_nothing_was_drafted() -> None:
    result = result_of(
        answer("plain", 10), answer("lookup fixed:2", 15), answer("lookup fixed:4", 20), answer("suffix auto", 18)
    )
    text = io.StringIO()
    Console(file=text, width=80, force_terminal=True, color_system="standard").print(table(result))
    assert re.findall(r"\x1b\[1m(lookup|suffix|plain)", text.getvalue()) == ["plain"]
    said = flowing(table(result))
    assert "nothing was drafted, so a speedup is noise: lookup fixed:2, lookup fixed:4, suffix auto" in said
    assert "the best fixed length" not in said


def test_what_speaks_against_the_figures_is_said() -> None:
    result = result_of(
        answer("plain", 10, category="code_editing", repeated_4grams=0.25),
        answer("lookup auto", 20, category="code_editing", equal=True),
        answer("plain", 10, "b"),
        answer("lookup auto", 20, "b", equal=False),
        load={"spread": 0.4},
        messages=["skipped draft auto: drafter draft is not loaded"],
    )
    text = flowing(table(result))
    assert "the machine was busy: the same work took up to 40 % longer at times" in text
    assert "share of repeated 4-grams: code_editing 25 % at temperature 0" in text
    assert "texts that differ from plain decoding: lookup auto 50.0 %" in text
    assert "skipped draft auto: drafter draft is not loaded" in text


def test_a_quiet_run_of_different_texts_has_nothing_against_it() -> None:
    text = flowing(table(full_result()))
    for words in (
        "busy",
        "repetitive",
        "differ from plain",
        "could not be compared",
        "not measured",
        "coverage",
        "noise",
    ):
        assert words not in text


def test_theory_is_set_against_what_was_measured() -> None:
    verified: dict[str, Any] = {
        "proposed_per_pos": [10, 10],
        "accepted_per_pos": [5, 0],
    }  # alpha = 1/3, E = 13/9, over 1.7: 0.85
    text = flowing(table(result_of(answer("plain", 10), answer("draft fixed:2", 6.8, **verified))))
    assert (
        "fixed lengths reach 80 % of it; draft fixed:2 at temperature 0, 0.85x predicted from alpha = 0.33, "
        "0.68x measured"
    ) in text


def test_a_run_that_was_stopped_early_shows_what_it_has() -> None:
    result = full_result()
    plain_only = result | {"complete": False, "samples": result["samples"][:1], "costs": {"target": {}, "draft": None}}
    text = flowing(table(plain_only))
    assert "stopped after 1 answer" in text
    assert "not measured: plain at temperature 0.8, draft auto at temperature 0," in text
    assert [cell["mode"] for cell in cells(plain_only)] == ["plain"] * 4
    nothing = result | {"complete": False, "samples": [], "load": {"spread": None}}
    assert "stopped after 0 answers" in flowing(table(nothing))
    for cut in range(0, len(result["samples"]), 17):
        rendered(table(result | {"samples": result["samples"][:cut]}))


def test_names_are_shown_as_they_are_and_cannot_drive_the_terminal() -> None:
    result = result_of(answer("plain", 10), messages=["[bold]50 %[/] of \x1b[31mthem\x07"])
    assert "[bold]50 %[/] of \ufffd[31mthem\ufffd" in rendered(table(result))


def test_csv_has_a_line_for_each_sample() -> None:
    result = full_result()
    rows = list(csv.DictReader(io.StringIO(to_csv(result["samples"]))))
    assert len(rows) == len(result["samples"])
    for row, sample in zip(rows, result["samples"], strict=True):
        assert list(row) == list(sample)
        assert row["mode"] == sample["mode"]
        assert float(row["tokens_per_s"]) == sample["tokens_per_s"]
        assert json.loads(row["accepted_per_pos"]) == sample["accepted_per_pos"]
        assert row["energy_j"] == ""


def test_cells_are_plain_data() -> None:
    found = json.loads(json.dumps(cells(full_result()), allow_nan=False))
    assert len(found) == len(MODES) * 3 * (len(CATEGORIES) + 1)
    assert {cell["temperature"] for cell in found} == {0.0, 0.8, "all"}


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_a_picture_shows_modes_models_and_machine(tmp_path: Path) -> None:
    plot(full_result(), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for words in [*MODES[1:], "target-7b-q4_k_m.gguf", "draft-0.5b-q8_0.gguf", "Some CPU", "temp 0.8", "10 ms"]:
        assert words in text
    plot(full_result(), tmp_path / "b.svg")
    assert (tmp_path / "b.svg").read_text(encoding="utf-8") == text


def test_a_picture_of_little_can_be_drawn(tmp_path: Path) -> None:
    plot(result_of(answer("plain", 10), costs=None, models={}, machine={}), tmp_path / "a.PNG")
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_a_file_with_dollars_in_its_name_can_be_drawn(tmp_path: Path) -> None:
    models = {"target": {"name": r"$\frac$.gguf"}, "draft": None}
    plot(result_of(answer("plain", 10), answer("lookup auto", 10), models=models), tmp_path / "a.svg")
    assert r"$\frac$.gguf" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_other_kinds_of_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.pdf.*\n.*\.png or \.svg"):
        plot(full_result(), tmp_path / "a.pdf")


def test_without_matplotlib_the_hint_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"matplotlib.*\n.*-m pip install matplotlib"):
        plot(full_result(), tmp_path / "a.svg")


def test_a_picture_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(EdgespecError, match="cannot write"):
        plot(full_result(), tmp_path / "missing" / "a.svg")


# --- comparisons ------------------------------------------------------------------------------------------------------


def test_what_differs_in_the_making_comes_first() -> None:
    a = full_result()
    b = full_result(
        edgespec="0.2.0",
        machine={"cpu": "Other CPU", "gpus": ["Some GPU"], "physical_cores": 4, "system": "Linux"},
        build={"llama_cpp_python": "0.3.36", "flags": "CPU : AVX = 1 | FMA = 1 | "},
        models={**a["models"], "draft": None},
        settings={**a["settings"], "threads": 8},
        samples=a["samples"][: len(a["samples"]) // 7],
    )
    lines = [line.rstrip() for line in rendered(compare(a, b)).splitlines()]
    making = lines[2 : lines.index("", 2)]
    assert lines[0] == "These runs differ:"
    assert [re.split(r"  +| (?=[Ao])", line, maxsplit=1) for line in making] == [
        ["edgespec", "A 0.1.0; B 0.2.0"],
        ["machine.cpu", "A Some CPU; B Other CPU"],
        ["machine.gpus", "A -; B Some GPU"],
        ["build.flags", "only A AVX2 = 1; only B FMA = 1"],
        ["models.draft.name", "A draft-0.5b-q8_0.gguf; B -"],
        ["models.draft.sha256", "A bbbbbbbbbbbb...; B -"],
        ["models.draft.bytes", "A 1; B -"],
        ["models.draft.description", "A 0.5B Q8_0; B -"],
        ["settings.threads", "A 2; B 8"],
        ["prompts", "A 21, B 3, 3 in common"],
    ]


def test_runs_made_alike_are_called_so() -> None:
    assert rendered(compare(full_result(1), full_result(2))).startswith("Same machine")


def test_speedups_are_compared_with_their_intervals() -> None:
    def run(auto: float, other: str, rate: float) -> Result:
        items = "abc"
        plain = [answer("plain", rate, item) for item in items]
        faster = [answer("draft auto", auto * rate * (1 + 0.01 * n), item) for n, item in enumerate(items)]
        return result_of(*plain, *faster, *(answer(other, rate, item) for item in items))

    text = rendered(compare(run(2.0, "lookup auto", 100.0), run(3.0, "lookup fixed:4", 50.0)))
    rows = [line.split() for line in text.splitlines()]
    assert ["draft", "auto", "2.02x", "3.03x", "1.50x", "apart", "202", "152", "0.75x"] in rows
    assert ["plain", "1.00x", "1.00x", "1.00x", "-", "100", "50.0", "0.50x"] in rows
    assert ["lookup", "auto", "1.00x", "-", "-", "-", "100", "-", "-"] in rows
    assert ["lookup", "fixed:4", "-", "1.00x", "-", "-", "-", "50.0", "-"] in rows
    alike = [line.split() for line in rendered(compare(run(2.0, "x", 10.0), run(2.005, "x", 10.0))).splitlines()]
    assert next(row for row in alike if row[:2] == ["draft", "auto"])[5] == "overlap"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_comparison_fits_any_width(width: int) -> None:
    text = rendered(compare(full_result(1), full_result(2, edgespec="9")), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for mode in MODES:
        assert mode in text


def test_a_result_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(full_result()), encoding="utf-8")
    assert load_result(path) == full_result()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"speed: 3\n", "it is not JSON"),
        (b"\xff\xfe{\x00}\x00", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "JSON, but in another format"),
        (b'{"version": 1}', "JSON, but in another format"),
        (b'{"version": true, "settings": {}, "samples": []}', "JSON, but in another format"),
        (b'{"version": 1, "settings": {}, "samples": [{"mode": "plain"}]}', "JSON, but in another format"),
        (json.dumps(result_of(answer("plain", 1, tokens_per_s="fast"))).encode(), "JSON, but in another format"),
        (b'{"version": 2, "settings": {}, "samples": []}', "newer edgespec"),
    ],
)
def test_other_files_are_refused(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=why):
        load_result(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        load_result(tmp_path / "a.json")
