"""The figures of benchmarks, worked out by hand; tables, and runs side by side."""

from __future__ import annotations

import io
import random
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from rich.console import Console, RenderableType

from edgespec.bench.measure import BenchResult, Sample
from edgespec.bench.report import check_plot, plot_bench, side_by_side, table
from edgespec.bench.summary import (
    ALL,
    Cell,
    bootstrap_interval,
    plain_spread,
    repeated_4grams,
    summarise,
)
from edgespec.bench.tables import Figures
from edgespec.core.stats import SourceStats, Stats
from edgespec.errors import UsageError

MODES = ["plain", "draft auto", "draft fixed:2", "draft fixed:8", "suffix auto"]
CATEGORIES = ["chat", "code_completion", "code_editing", "maths", "summary", "translation", "writing"]


def answer(
    mode: str,
    rate: float,
    item: str = "a",
    *,
    category: str = "chat",
    temperature: float = 0.0,
    repeat: int = 0,
    tokens: list[int] | None = None,
    **figures: Any,
) -> Sample:
    """Return an answer at a speed of `rate` tokens per second; one token unless others are given."""
    tokens = [1] if tokens is None else tokens
    seconds = len(tokens) / rate if rate else 0.0
    stats = {"rounds": 1, "generation_s": seconds, "target_s": seconds} | figures
    return Sample(mode, temperature, category, item, repeat, tokens, Stats(generated_tokens=len(tokens), **stats))


def result_of(*samples: Sample, **rest: Any) -> BenchResult:
    figures: dict[str, Any] = {
        "command": "edgespec bench",
        "started": "2026-03-01T12:00:00+00:00",
        "edgespec": "0.1.0",
        "machine": {"cpu": "Some CPU", "gpus": [], "physical_cores": 4, "system": "Linux"},
        "build": {"llama_cpp_python": "0.3.36", "flags": "CPU : AVX = 1 | AVX2 = 1 | "},
        "models": {"target": {"name": "target-7b", "bytes": 5}, "draft": {"name": "draft", "bytes": 1}},
        "settings": {"threads": 2, "tokens": 96, "repeat": 1, "reference": False},
        "modes": list(dict.fromkeys(sample.mode for sample in samples)),
        "temperatures": sorted({sample.temperature for sample in samples}),
        "costs": {"target": {"1": 0.010, "2": 0.012, "9": 0.060}, "draft": 0.001},
        "complete": True,
        "samples": list(samples),
    }
    return BenchResult(**figures | rest)


def full_result(seed: int = 1, **rest: Any) -> BenchResult:
    """Return a result of all modes, categories and temperatures, with different figures everywhere."""
    numbers = random.Random(seed)
    drafted: dict[str, Any] = {
        "proposed": 20,
        "accepted": 9,
        "proposed_per_pos": [10, 10],
        "accepted_per_pos": [6, 3],
        "rounds": 10,
    }
    drafted["by_source"] = {"draft": SourceStats(10, 20, 9, 10, 0.01, 4.0)}
    samples = [
        answer(
            mode,
            1000 + 400 * place + numbers.uniform(0, 300),
            f"{category}-{number}",
            category=category,
            temperature=temperature,
            **(drafted if mode != "plain" else {}),
        )
        for category in CATEGORIES
        for number in range(3)
        for temperature in (0.0, 0.8)
        for place, mode in enumerate(MODES)
    ]
    return result_of(*samples, **rest)


def cell_of(result: BenchResult, mode: str, category: str = ALL) -> Cell:
    cell = summarise(result.samples, MODES).cell(mode, 0.0, category)
    assert cell is not None
    return cell


def rendered(renderable: RenderableType, width: int = 80) -> str:
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(renderable)
    return text.getvalue()


def flowing(renderable: RenderableType) -> str:
    """Return all words with single spaces, without line breaks."""
    return " ".join(rendered(renderable).split())


# --- statistics -------------------------------------------------------------------------------------------------------


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
    assert (cell.speedup, cell.prompts) == (3, 3)
    assert cell.tokens_per_s == 50  # of 50, 15 and 70
    assert cell_of(result, "plain").speedup == 1


def test_speedups_of_a_loaded_machine_are_those_of_an_idle_one() -> None:
    idle = [answer("plain", 10), answer("draft auto", 15)]
    loaded = [answer("plain", 4, "b"), answer("draft auto", 6, "b")]
    assert cell_of(result_of(*idle, *loaded), "draft auto").speedup == 1.5


def test_categories_have_cells_of_their_own_and_together() -> None:
    samples = [
        answer(mode, rate, category, category=category)
        for category, speed in (("chat", 20.0), ("maths", 60.0))
        for mode, rate in (("plain", 10.0), ("suffix auto", speed))
    ]
    result = result_of(*samples)
    assert [cell_of(result, "suffix auto", name).speedup for name in ("chat", "maths", ALL)] == [2, 6, 4]


def test_an_answer_without_its_plain_one_or_without_time_has_no_speedup() -> None:
    result = result_of(answer("plain", 10), answer("draft auto", 20), answer("draft auto", 90, "b"))
    assert (cell_of(result, "draft auto").speedup, cell_of(result, "draft auto").tokens_per_s) == (2, 55)
    for plain, rate in ((0.0, 10.0), (10.0, 0.0)):
        result = result_of(answer("plain", plain), answer("draft auto", rate))
        assert cell_of(result, "draft auto").speedup is None
        rendered(table(result))


def test_the_interval_is_that_of_the_resampled_median() -> None:
    assert bootstrap_interval([1.0]) is None
    assert bootstrap_interval([1.0, 3.0]) == (1.0, 3.0)  # the median of a resample is 1, 2 or 3, each end every fourth
    numbers = random.Random(1)
    values = [numbers.gauss(2, 0.2) for _ in range(60)]
    low, high = bootstrap_interval(values) or (0.0, 0.0)
    assert 1.9 < low < median(values) < high < 2.1
    assert bootstrap_interval(values) == (low, high)


def test_a_spread_is_that_of_repeats_or_else_of_prompts() -> None:
    assert plain_spread([answer("plain", 10), answer("plain", 15, repeat=1), answer("x", 99)]) == pytest.approx(0.5)
    rates = (10.0, 10.0, 10.5, 14.0, 20.0, 15.0)
    prompts = [answer("plain", rate, str(number)) for number, rate in enumerate(rates)]
    assert plain_spread(prompts[:3]) is None
    assert plain_spread(prompts) == pytest.approx(16.25 / 10 - 1)


@pytest.mark.parametrize(
    ("tokens", "share"), [([1, 2, 3], 0), ([1, 2, 3, 4, 5], 0), ([1] * 13, 0.9), ([1, 2, 3, 4, 1, 2, 3, 4], 0.2)]
)
def test_repetition_is_the_share_of_4grams_that_were_there_before(tokens: list[int], share: float) -> None:
    assert repeated_4grams(tokens) == pytest.approx(share)


def test_answers_that_repeat_themselves_are_named() -> None:
    looping = replace(answer("plain", 10, "x"), stats=Stats(repeated_tokens=96))
    said = flowing(table(result_of(answer("plain", 10, "y"), looping)))
    assert "1 of 2 answers repeat themselves, which drafts predict easily: x" in said
    assert "repeat themselves" not in flowing(table(result_of(answer("plain", 10, "y"))))


def test_figures_of_steps_and_of_time() -> None:
    figures: dict[str, Any] = {
        "rounds": 4,
        "proposed": 8,
        "accepted": 4,
        "accepted_per_pos": [3, 1],
        "generation_s": 4.0,
    }
    result = result_of(
        answer("plain", 1),
        answer("draft fixed:2", 1, tokens=[1] * 8, draft_s=1.0, **figures | {"target_s": 2.0}),
    )
    cell = cell_of(result, "draft fixed:2")
    assert (cell.tokens_per_step, cell.acceptance, cell.reach) == (2, 0.5, [0.75, 0.25])
    assert "50/25/25" in rendered(table(result))


def test_only_answers_that_must_be_equal_are_compared() -> None:
    def compared(mode: str, temperature: float) -> float | None:
        samples = [
            answer(name, 10, tokens=tokens, temperature=temperature)
            for name, tokens in (("plain", [1, 2]), (mode, [1, 3]))
        ]
        cell = summarise(samples, ["plain", mode]).cell(mode, temperature)
        assert cell is not None
        return cell.equal_share

    assert compared("draft auto", 0.8) == compared("draft auto rejection", 0.0) == 0
    assert compared("draft auto rejection", 0.8) is None


# --- reports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_report_fits_the_terminal(width: int) -> None:
    text = rendered(table(full_result()), width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for mode in MODES:
        assert f"\n{mode} " in text
    for part in ("Temperature 0.8", "Speedup by category", "Share of steps", "Drafters, temperature", "Some CPU"):
        assert part in text


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([answer("plain", 10), answer("suffix auto", 20)], "nothing was drafted, so a speedup is noise: suffix auto"),
        ([answer("plain", 10), answer("plain", 20, repeat=1)], "the machine was busy: plain decoding took up to 100 %"),
        ([answer("plain", 10, tokens=[1] * 20)], "share of repeated 4-grams: chat 94 % at temperature 0"),
        (
            [answer("plain", 10), answer("suffix auto", 9, tokens=[2])],
            "texts that differ from plain decoding: suffix auto 100.0 % at temperature 0",
        ),
        ([answer("plain", 10)], "with 1 prompt the real coverage of an interval is below 95 %"),
    ],
)
def test_the_report_says_what_to_be_careful_with(samples: list[Sample], said: str) -> None:
    assert said in flowing(table(result_of(*samples)))


def test_an_interrupted_run_says_so() -> None:
    assert "stopped after 1 answer" in flowing(table(result_of(answer("plain", 10), complete=False)))


@pytest.mark.slow
def test_two_runs_are_shown_side_by_side_with_what_differs_in_their_making() -> None:
    a = full_result()
    assert "Same machine, build, models, settings and prompts." in flowing(side_by_side(a, full_result()))
    b = full_result(
        2,
        edgespec="0.2.0",
        build=a.build | {"flags": "CPU : AVX = 1 | AVX512 = 1 | "},
        models=a.models | {"target": a.models["target"] | {"bytes": 7}},
    )
    b.samples = [replace(sample, item="z") if sample.item == "chat-0" else sample for sample in b.samples]
    found = flowing(side_by_side(a, b))
    for said in (
        "edgespec A 0.1.0; B 0.2.0",
        "build.flags.AVX512 = 1 A -; B True",
        "models.target.bytes A 5; B 7",
        "prompts A 21, B 21, 20 in common",
        "draft auto",
        "overlap",
    ):
        assert said in found


def test_columns_that_do_not_fit_go_to_a_further_table() -> None:
    table = Figures("Title", ["name", *(f"column {n}" for n in range(9))], [["row", *("12345" for _ in range(9))]])
    text = rendered(table, 40)
    assert max(map(len, text.splitlines())) <= 40
    assert text.count("name") > 1 and text.count("12345") == 9


# --- pictures ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.slow
def test_a_picture_shows_every_mode_and_category_and_is_always_the_same() -> None:
    pytest.importorskip("matplotlib")
    drawn = plot_bench(full_result(), Path("a.svg"))
    for text in (*MODES[1:], *CATEGORIES, "temperature 0.8", "target-7b, draft: draft", "Some CPU"):
        assert text in drawn.decode()
    assert drawn == plot_bench(full_result(), Path("b.svg"))


def test_pictures_need_a_format_and_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"\.png or \.svg"):
        check_plot(Path("x.pdf"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"no matplotlib\n.*-m pip install 'edgespec\[plot\]'"):
        check_plot(Path("x.svg"))
