"""`bench_server`: requests are counted, and figures can be worked out by hand."""

from __future__ import annotations

import asyncio

from bench_server import NATIVE, OWN, Answer, Sample, load, table, text_of
from serving import serving

import edgespec


def test_a_load_is_answered_and_counted() -> None:
    asked = [text_of(30, seed) for seed in range(3)]
    assert len(set(asked)) == 3 and {len(text.split()) for text in asked} == {30 + 11}
    with edgespec.Worker(edgespec.LoadSettings("demo", threads=1, sequences=2)) as worker, serving(worker) as at:
        answers = asyncio.run(load(at.url, 2, asked, 6))
    assert len(answers) == 3 and all(0 < answer.tokens <= 6 for answer in answers)
    assert all(answer.prompt_tokens > 60 and answer.gap_s < answer.took_s for answer in answers)
    assert all(0 < answer.first_s <= answer.took_s for answer in answers)


def test_the_table_compares_medians_of_turns() -> None:
    def sample(who: str, turn: int, seconds: float, first_s: float, gap_s: float) -> Sample:
        answers = [Answer(first_s, gap_s / 2, seconds, 100, 10), Answer(2 * first_s, gap_s, seconds, 100, 10)]
        return Sample(who, 2, 40, turn, seconds, answers)

    own = [sample(OWN, turn, seconds, 0.1, 0.02) for turn, seconds in enumerate((1.0, 2.0, 4.0))]
    native = [sample(NATIVE, turn, 1.0, 0.2, 0.01) for turn in range(3)]
    [row] = table(own + native)
    assert row == ("2", "100", "10 / 20", "0.50", "150 / 300", "0.50", "200 / 400", "0.50", "20 / 10", "2.00")
    assert not [*table(own)]
