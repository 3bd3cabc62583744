"""Loops in answers are found, and similar texts without a loop are not reported."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.text.repetition import EVERY, FEWEST, LONGEST, REPEATS, Repetition, RepetitionDetector, repetition


def noticed_at(tokens: list[int]) -> int | None:
    """Return the number of tokens after which the detector reported a loop."""
    detector = RepetitionDetector()
    return next((n for n, token in enumerate(tokens, 1) if detector.add(token)), None)


@pytest.mark.parametrize("period", [1, 2, 14, 60, LONGEST])
def test_a_run_that_comes_again_and_again_is_noticed_soon(period: int) -> None:
    start = [1000 + n for n in range(50)]
    looping = start + list(range(period)) * (4 * REPEATS * FEWEST // period)
    seen = noticed_at(looping)
    assert seen is not None
    assert seen - len(start) <= max(FEWEST, REPEATS * period) + EVERY


def test_it_tells_once_and_counts_on() -> None:
    detector = RepetitionDetector()
    told = [detector.add(token) for token in [7, 8, 9] * 926]
    assert told.count(True) == 1
    assert detector.found == Repetition(3, 2778)
    assert str(detector.found) == "the same 3 tokens, 926 times in a row"


def test_a_loop_that_has_ended_stays_reported_and_the_longest_counts() -> None:
    detector = RepetitionDetector()
    for token in [5] * 200 + list(range(100, 400)) + [7, 8] * 300:
        detector.add(token)
    assert detector.found == Repetition(2, 600)
    for token in range(1000, 1100):
        detector.add(token)
    assert detector.found == Repetition(2, 600)


def test_text_rulers_refrains_and_lists_that_count_are_no_loops() -> None:
    chance = random.Random(7)
    text = [chance.randrange(500) for _ in range(3000)]
    assert noticed_at(text) is None
    assert noticed_at(text[:300] + [9] * (FEWEST - 1) + text[300:600]) is None
    assert noticed_at((text[:40] * (REPEATS - 1) + text[100:400]) * 2) is None
    assert noticed_at([token for n in range(200) for token in (n, 1000, 1001, 1002, 1003, 1004)]) is None


@given(
    st.lists(st.integers(0, 3), max_size=30),
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
    st.integers(0, 40),
)
def test_what_is_found_is_there_and_nothing_shorter(start: list[int], unit: list[int], times: int) -> None:
    tokens = start + unit * times
    found = repetition(tokens)

    def repeats(period: int, n: int) -> bool:
        end = tokens[len(tokens) - n :]
        return n >= max(FEWEST, REPEATS * period) and all(a == b for a, b in zip(end, end[period:], strict=False))

    periods = [p for p in range(1, len(tokens) // REPEATS + 1) if repeats(p, max(FEWEST, REPEATS * p))]
    if len(tokens) < FEWEST:
        periods = []
    assert (found is None) == (not periods)
    if found is not None:
        assert found.period == periods[0]
        assert repeats(found.period, found.tokens)
        longer = found.tokens + 1
        assert longer > len(tokens) or not repeats(found.period, longer)
