"""`bench_native`: the output of llama.cpp's programs is parsed, and figures can be worked out by hand."""

from __future__ import annotations

from collections import Counter

import pytest
from bench_native import (
    KINDS,
    NATIVE_PLAIN,
    OWN_AUTO,
    OWN_PLAIN,
    Answer,
    Sample,
    parse_answer,
    prompts,
    table,
)

from edgespec.errors import EdgespecError

LOG = """0.00.100.000 I n_ctx = 2048
0.01.100.000 I encoded   31 tokens in    0.126 seconds, speed:  246.031 t/s
0.02.100.000 I decoded  129 tokens in    1.500 seconds, speed:   86.000 t/s
I n_draft   = 3
I n_predict = 129
I n_drafted = 48
I n_accept  = 12
"""
NGRAM = "llama.cpp ngram-mod"


def sample(who: str, kind: str, rate: float, *, text: str = "same", tokens: int = 100) -> Sample:
    return Sample(who, kind, f"{kind}-01", Answer(31, tokens, tokens / rate, 10, 4, text))


def test_an_answer_is_what_follows_the_prompt_and_its_figures_are_in_the_log() -> None:
    answer = parse_answer("\n\nWhat?\nParis.\n\n\n\n\n", LOG, "What?\n")
    assert (answer.prompt_tokens, answer.tokens, answer.seconds) == (31, 129, 1.5)
    assert (answer.drafted, answer.accepted, answer.text) == (48, 12, "Paris.\n")


@pytest.mark.parametrize(("out", "log"), [("\n\nWhen?\nParis.\n\n\n\n", LOG), ("\n\nWhat?\nParis.", "ended")])
def test_anything_else_is_shown_instead_of_counted(out: str, log: str) -> None:
    with pytest.raises(EdgespecError, match="unexpected"):
        parse_answer(out, log, "What?\n")


def test_there_are_prompts_of_every_kind_in_turns() -> None:
    asked = prompts(3)
    assert [item.category for item in asked[:9]] == list(KINDS)
    assert Counter(item.category for item in asked) == dict.fromkeys(KINDS, 3)
    assert len({item.id for item in asked}) == len({item.prompt for item in asked}) == 27


def cells(*samples: Sample) -> dict[str, list[str]]:
    """Return the cells of the table by the first cell of their row."""
    rows = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in table(samples).splitlines()]
    return {row[0]: row[1:] for row in rows}


def test_speeds_are_medians_over_turns_and_geometric_means_over_kinds() -> None:
    found = cells(
        *(sample(who, kind, 50) for who in (NATIVE_PLAIN, OWN_PLAIN) for kind in ("maths", "edit")),
        *(sample(OWN_AUTO, "maths", rate) for rate in (49, 50, 900)),
        sample(OWN_AUTO, "edit", 200, text="other"),
        sample(NGRAM, "maths", 40),
        # Of these tokens, 100 were accepted after the end of the answer.
        Sample(NGRAM, "edit", "edit-01", Answer(31, 200, 100 / 160, 10, 4, "same")),
    )
    assert found[""] == ["maths", "edit", "mean", "accepted", "same text"]
    assert found[OWN_AUTO] == ["1.00", "4.00", "2.00", "40%", "1/2"]
    assert found[NGRAM] == ["0.80", "3.20", "1.60", "40%", "2/2"]
    assert found["tokens/s of 1.00"][:3] == ["50.0", "50.0", "50.0"]


def test_a_prompt_that_was_not_answered_in_every_way_is_left_out() -> None:
    found = cells(sample(NATIVE_PLAIN, "edit", 50), sample(NATIVE_PLAIN, "maths", 50), sample(OWN_AUTO, "edit", 60))
    assert found[""][0] == "edit" and found[OWN_AUTO][0] == "1.20"
    assert len(cells()) == 2
