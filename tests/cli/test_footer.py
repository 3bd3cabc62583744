"""The statistics of an answer: three lines with --stats, and details with --explain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgespec.cli.footer import exactness, explanation, footer
from edgespec.core.draft import Draft
from edgespec.core.policy.policy import PolicyVerdict
from edgespec.core.stats import Stats
from edgespec.core.verify import VerifyRule
from edgespec.llm.info import ModelInfo

INFO = ModelInfo("demo", drafters=("suffix", "draft"), rounding=0.02, made_exact_by="--strict")


def verdict(drafter: str, *, rests: bool) -> PolicyVerdict:
    return PolicyVerdict(drafter, rests, gain=0.022, cost=0.0063, step=0.1, widths={2: 1.2, 3: 1.3})


PACE = [verdict("suffix", rests=False), verdict("recycling", rests=False), verdict("draft", rests=True)]


def stats(cost: float | None = 6.0) -> Stats:
    """40 tokens in 20 steps: 20 of 30 drafted tokens were accepted, for the time of `cost` tokens."""
    made = Stats(prompt_tokens=12, prompt_s=0.35, generation_s=2.0)
    for accepted in [2] * 10 + [0] * 10:
        draft = Draft.chain([1, 2], [0.5, 0.5], "suffix") if accepted else Draft.chain([1], [0.5], "suffix")
        made.count_round(draft, range(accepted), accepted + 1)
    made.count_draft("suffix", 0.1)
    if cost is not None:
        made.count_cost("suffix", cost)
    return made


def lines(made: Stats, verdicts: list[PolicyVerdict] = PACE, verify: VerifyRule = "coupled", **facts: Any) -> list[str]:
    return footer(made, replace(INFO, **facts), details=True, verify=verify, pace=verdicts)


def test_three_lines_say_how_fast_what_drafting_earned_and_why() -> None:
    assert lines(stats()) == [
        "40 tokens · 20 tok/s · first token after 0.35 s",
        "speculative decoding: acceptance rate 67 % · 2.0 tokens per step · speed-up 1.54x",
        "active: suffix, recycling; backed off: draft · "
        "same text as plain decoding up to rounding; --strict makes it exact",
    ]


def test_drafts_made_ahead_are_counted() -> None:
    made = stats()
    made.count_ahead("suffix", 0.0, is_begun=True)
    made.count_ahead("suffix", 0.0, is_begun=False)
    assert lines(made)[1].endswith(" · speed-up 1.54x · 0 of 1 drafts made ahead were used")


def test_statistics_print_as_one_line() -> None:
    summary = "40 tokens in 2.00 s (20.0 tok/s), 20 of 30 draft tokens accepted, speed-up 1.54x"
    assert str(stats()) == summary
    assert str(stats(None)) == summary.rpartition(",")[0]
    assert str(Stats(generated_tokens=8, generation_s=0.5)) == "8 tokens in 0.50 s (16.0 tok/s)"


def test_a_terminal_gets_one_line_unasked() -> None:
    short = footer(stats(), INFO, details=False, verify="coupled", pace=PACE)
    drafted = "67 % of drafts accepted · 1.5x faster with drafts"
    assert short == [f"20 tok/s · 40 tokens · {drafted}"]


@pytest.mark.parametrize("details", [False, True])
def test_a_loop_is_reported_and_no_speed_up(details: bool) -> None:
    looping = stats()
    looping.repeated_tokens = 1200
    said = "\n".join(footer(looping, INFO, details=details, verify="coupled", pace=PACE))
    assert "67 %" in said and " · the answer repeats itself (1200 tokens)" in said
    assert "faster" not in said and "speed-up" not in said


def test_the_speed_up_is_reported_where_it_is_known() -> None:
    assert stats(6.0).speedup == pytest.approx(40 / (40 - 20 + 6))
    assert stats(None).speedup is None
    assert stats(-9.0).speedup == stats(0.0).speedup == pytest.approx(2.0)  # chance made the wider passes look quicker
    assert "speed-up" not in lines(stats(None), [])[1]
    assert Stats(generated_tokens=5, rounds=5).speedup == 1.0


def test_without_drafts_it_is_plain_decoding() -> None:
    made = Stats(generated_tokens=5, rounds=5, generation_s=1.0)
    assert lines(made, [])[1:] == ["speculative decoding: no token was drafted", "plain decoding"]
    assert lines(made, [], drafters=())[1].startswith("speculative decoding: off; ")
    assert lines(made, [], pace="fixed:3")[2] == "draft length fixed:3 · plain decoding"


@pytest.mark.parametrize(
    ("verify", "facts", "said"),
    [
        ("coupled", {"rounding": 0.0}, "output identical with and without speculation on this machine"),
        (
            "coupled",
            {"rounding": 0.0, "width_class": (3, 4), "measured_depth": 3840},
            "output identical with and without speculation (passes of 3 to 4 tokens, measured up to 3,840 tokens)",
        ),
        ("coupled", {"rounding": None, "exact": False}, "up to rounding; --strict makes it exact"),
        ("rejection", {"rounding": 0.0}, "another text (--verify rejection)"),
        ("block", {}, "another text (--verify block)"),
        ("coupled", {"made_exact_by": ""}, "same text as plain decoding up to rounding"),
    ],
)
def test_what_is_said_about_exactness_is_what_is_known(verify: VerifyRule, facts: dict[str, Any], said: str) -> None:
    assert said in exactness(stats(), replace(INFO, **facts), verify)


def test_no_way_to_exactness_is_named_where_there_is_none() -> None:
    """The state of a recurrent model cannot be rolled back, so nothing can be measured."""
    assert (
        exactness(stats(), replace(INFO, rounding=None, made_exact_by=""), "coupled")
        == "same text as plain decoding up to rounding"
    )


def test_the_rest_is_explained_and_each_figure_once() -> None:
    said = "\n".join(explanation(stats(), PACE)[1])
    assert said.count("passes of the target:") == 1
    for part in (
        "prompt: 12 tokens in 0.35 s",
        "by position 50 %, 100 %",
        "draft: backed off (0.022 expected tokens per draft, cost 0.0063 of a pass, 0.1 for each token)",
    ):
        assert part in said
