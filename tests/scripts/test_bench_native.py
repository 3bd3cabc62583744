"""The bench beside llama.cpp's own programs: what they write is read rightly, and figures can be worked out by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from bench_native import Prompt, Session, in_turn
from native_llama import SPECULATIVE, clear, find, parse_answer
from native_prompts import KINDS, prompts
from native_report import NATIVE_PLAIN, OWN_AUTO, OWN_PLAIN, Report, Sample, markdown, tables
from rich.console import Console
from supervised import CommandError

from edgespec.errors import UsageError
from edgespec.settings import Request

LOG = """0.00.100.000 I n_ctx = 2048
0.01.100.000 I encoded   31 tokens in    0.126 seconds, speed:  246.031 t/s
0.02.100.000 I decoded  129 tokens in    1.500 seconds, speed:   86.000 t/s
I n_draft   = 3
I n_predict = 129
I n_drafted = 48
I n_accept  = 12
"""
NGRAM = "llama.cpp ngram-mod"


def sample(who: str, kind: str, rate: float, *, text: str = "same", turn: int = 0, tokens: int = 100) -> Sample:
    return Sample(who, kind, f"{kind}-01", turn, 30, tokens, tokens / rate, 10, 4, text)


def test_an_answer_is_what_follows_the_prompt_and_its_figures_are_in_the_log() -> None:
    answer = parse_answer("\n\nWhat?\nParis.\n\n\n\n\n", LOG, "What?\n")
    assert (answer.prompt_tokens, answer.tokens, answer.seconds) == (31, 129, 1.5)
    assert (answer.drafted, answer.accepted, answer.text) == (48, 12, "Paris.\n")


@pytest.mark.parametrize(("out", "log"), [("\n\nWhen?\nParis.\n\n\n\n", LOG), ("\n\nWhat?\nParis.", "ended")])
def test_anything_else_is_shown_instead_of_counted(out: str, log: str) -> None:
    with pytest.raises(CommandError, match="unexpected"):
        parse_answer(out, log, "What?\n")


def test_only_the_programs_are_kept_of_a_build(tmp_path: Path) -> None:
    for name in ("llama_cpp_python-0.3.36/vendor", "tools/bin", "build/vendor", "build/bin/Release"):
        (tmp_path / name).mkdir(parents=True)
    for name in (SPECULATIVE, f"{SPECULATIVE}.exe"):
        (tmp_path / "build" / "bin" / "Release" / name).touch()
    clear(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["build"]
    assert [path.name for path in (tmp_path / "build").iterdir()] == ["bin"]
    found = find(tmp_path / "build" / "bin", SPECULATIVE)
    assert found is not None and found.stem == SPECULATIVE
    assert find(tmp_path, "llama-cli") is None


def test_there_are_prompts_of_every_kind_in_turns() -> None:
    asked = prompts(3)
    assert [item.category for item in asked[:9]] == list(KINDS)
    assert Counter(item.category for item in asked) == dict.fromkeys(KINDS, 3)
    assert len({item.id for item in asked}) == len({item.prompt for item in asked}) == 27


def test_everyone_answers_every_prompt_and_nobody_always_begins() -> None:
    asked = [Prompt(item, item.prompt, Request(item.prompt), 1) for item in prompts(1)]
    everyone = ["a", "b", "c", "d"]
    order = list(in_turn(asked, everyone, 0))
    assert Counter((prompt.item.id, who) for prompt, who in order) == Counter(
        (prompt.item.id, who) for prompt in asked for who in everyone
    )
    assert {who for _, who in order[::4]} == set(everyone)


def test_speeds_are_medians_over_turns_and_geometric_means_over_kinds() -> None:
    report = Report(
        [
            *(sample(NATIVE_PLAIN, kind, 50) for kind in ("maths", "edit")),
            *(sample(OWN_PLAIN, kind, 50) for kind in ("maths", "edit")),
            *(sample(OWN_AUTO, "maths", rate, turn=turn) for turn, rate in enumerate((49, 50, 900))),
            sample(OWN_AUTO, "edit", 200),
            sample(NGRAM, "maths", 40),
            sample(NGRAM, "edit", 160),
        ]
    )
    rows = {row.who: row for row in report.rows}
    assert rows[OWN_AUTO].by_kind == pytest.approx({"maths": 1.0, "edit": 4.0})
    assert rows[OWN_AUTO].mean == pytest.approx(2.0)
    assert rows[NGRAM].mean == pytest.approx(1.6)
    assert report.best == rows[NGRAM]
    mean, kind, least = report.gain(rows[NGRAM])
    assert kind == "maths"
    assert (mean, least) == pytest.approx((1.25, 1.25))
    assert rows[NGRAM].acceptance == pytest.approx(0.4)


def test_tokens_that_llama_cpp_accepted_behind_the_end_of_an_answer_do_not_count() -> None:
    beyond = replace(sample(NGRAM, "edit", 100), tokens=150)
    report = Report([sample(NATIVE_PLAIN, "edit", 50), beyond, sample(OWN_AUTO, "edit", 100, tokens=99)])
    assert report.rate(NGRAM, "edit-01") == pytest.approx(100)
    assert report.rate(OWN_AUTO, "edit-01") == pytest.approx(100)


def test_texts_are_compared_with_plain_decoding_and_where_they_part_is_reported() -> None:
    report = Report(
        [
            sample(NATIVE_PLAIN, "edit", 50, text="one two\ufffd"),
            sample(NATIVE_PLAIN, "maths", 50),
            sample(NGRAM, "edit", 50, text="one three"),
            sample(NGRAM, "maths", 50),
            sample(OWN_PLAIN, "edit", 50, text="one two"),
            sample(OWN_PLAIN, "maths", 50, text="salt"),
            sample(OWN_AUTO, "edit", 50, text="one two"),
            sample(OWN_AUTO, "maths", 50, text="salt"),
        ]
    )
    assert {row.who: row.same_text for row in report.rows} == {NATIVE_PLAIN: 2, NGRAM: 1, OWN_PLAIN: 2, OWN_AUTO: 2}
    assert report.partings() == ["maths-01 after 2 characters"]


def test_a_prompt_that_not_everyone_has_answered_is_left_out() -> None:
    report = Report([sample(NATIVE_PLAIN, "edit", 50), sample(NATIVE_PLAIN, "maths", 50), sample(OWN_AUTO, "edit", 60)])
    assert list(report.kinds) == ["edit"]
    assert Report([sample(OWN_AUTO, "edit", 60)]).rows == []
    assert Report([]).rows == []


def test_tables_name_the_best_native_setting_in_the_terminal_and_in_markdown() -> None:
    report = Report([sample(NATIVE_PLAIN, "edit", 50), sample(NGRAM, "edit", 80), sample(OWN_AUTO, "edit", 100)])
    console = Console(width=120, record=True)
    console.print(tables(report, [("CPU", "a|b")]))
    text = markdown(report, [("CPU", "Xeon")], "python scripts/bench_native.py --model x.gguf")
    for shown in (console.export_text(), text):
        assert f"{NGRAM}; {OWN_AUTO} is 1.25 times as fast" in shown
    assert f"| **{OWN_AUTO}** | **2.00** | **2.00** | **40%** | **1/1** |" in text
    assert f"| **{NGRAM}** | **1.25** | **1.25** | **edit** |" in text
    console.print(tables(Report([]), []))  # an interruption before the first prompt was answered by everyone


def test_a_session_goes_on_where_it_stopped_and_refuses_other_settings(tmp_path: Path) -> None:
    path = tmp_path / "samples.json"
    session = Session(path, {"model": "a.gguf"})
    session.facts = [("CPU", "Xeon")]
    session.add(sample(OWN_AUTO, "edit", 60))
    again = Session(path, {"model": "a.gguf"})
    assert again.samples == session.samples
    assert again.facts == session.facts
    assert again.has(OWN_AUTO, "edit-01", 0)
    assert not again.has(OWN_AUTO, "edit-01", 1)
    with pytest.raises(UsageError, match=r"other settings \(model\)"):
        Session(path, {"model": "b.gguf"})
    path.write_text("[]")
    with pytest.raises(UsageError, match="no samples"):
        Session(path, {"model": "a.gguf"})
