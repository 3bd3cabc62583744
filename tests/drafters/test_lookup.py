"""Prompt lookup: the most recent of the longest matches, found without looking at the whole text again."""

from __future__ import annotations

from typing import Any

import pytest
from drafted import Text, first_draft
from hypothesis import given
from hypothesis import strategies as st

import edgespec
from edgespec.drafters.base import Budget
from edgespec.drafters.lookup import GRAM, Index, LookupDrafter

TEXT = "import os\n" + "    self.assertEqual(os.path.join('a', 'b'), 'a/b')\n" * 6


def by_rescan(tokens: list[int]) -> tuple[int, int]:
    """Where the longest earlier occurrence of the end ends, the most recent of several, and its length."""
    n, best, longest = len(tokens), 0, 0
    for end in range(1, n):
        length = 0
        while length < end and tokens[end - 1 - length] == tokens[n - 1 - length]:
            length += 1
        if length and length >= longest:
            best, longest = end, length
    return best, longest


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 7))
def test_a_growing_index_finds_what_a_rescan_finds(tokens: list[int], step: int) -> None:
    index = Index()
    for n in range(1, len(tokens) + 1, step):
        index.extend(tokens[:n])
        assert index.longest_match() == by_rescan(tokens[:n])


def test_each_token_is_indexed_once() -> None:
    looked_at = 0

    class Counting(list[int]):
        def __getitem__(self, key):  # type: ignore[no-untyped-def]
            nonlocal looked_at
            if isinstance(key, slice):
                looked_at += len(range(*key.indices(len(self))))
            return super().__getitem__(key)

    index = Index()
    tokens = Counting(range(2000))
    index.extend(tokens)
    first, looked_at = looked_at, 0
    tokens.append(5)
    index.extend(tokens)
    assert first > 2000
    assert looked_at <= GRAM * (GRAM + 1) / 2


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], []),
        ([1], []),
        ([1, 2, 3], []),
        ([7, 8, 7], [8]),  # as many tokens as the match is long
        ([1, 2, 9, 8, 1, 2], [9, 8]),
        ([1, 2, 3, 9, 8, 7, 1, 2, 3], [9, 8, 7]),
        ([1, 2, 5, 1, 2, 6, 1, 2], [6, 1]),  # the most recent of equal matches
        ([3, 1, 2, 5, 4, 1, 2, 6, 3, 1, 2], [5, 4, 1]),  # a longer one goes before a more recent one
        ([4, 4, 4, 4], [4, 4, 4]),  # a text that repeats goes on doing so
        ([1, 2, 1, 2, 1, 2], [1, 2, 1, 2]),
    ],
)
def test_what_followed_the_last_time_is_drafted(tokens: list[int], expected: list[int]) -> None:
    draft = first_draft(LookupDrafter(), Text(tokens), Budget(8))
    assert draft.tokens == expected
    assert draft.is_chain
    assert set(draft.distributions) <= {None}


def test_the_budget_is_kept_and_a_longer_match_is_surer() -> None:
    long, short = Text([1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 5]), Text([5, 9, 5], slot=1)
    drafter = LookupDrafter()
    drafter.begin(long)
    drafter.begin(short)
    sure, unsure = drafter.propose([long, short], [Budget(2), Budget(2)])
    assert sure.tokens == [9, 1]
    assert sure.confidence[0] > unsure.confidence[0]


def test_a_slot_that_holds_another_text_is_indexed_anew() -> None:
    drafter = LookupDrafter()
    assert first_draft(drafter, Text([1, 2, 3, 1, 2]), Budget(4))
    assert not first_draft(drafter, Text([5, 6, 1, 2]), Budget(4))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("spec_type", ["lookup", "draft,lookup"])
def test_lookup_changes_no_text_and_says_where_tokens_come_from(spec_type: str, temperature: float) -> None:
    settings: dict[str, Any] = {"max_tokens": 48, "temperature": temperature, "seed": 5, "ignore_eos": True}
    with edgespec.load("demo", spec_type="none", threads=1) as plain:
        want = [event.id for event in plain.generate(TEXT, **settings)]
    with edgespec.load("demo", spec_type=spec_type, pace="fixed:6", threads=1) as llm:
        got = list(llm.generate(TEXT, **settings))
        assert [event.id for event in got] == want
        sources = {event.source for event in got if event.from_draft}
        assert "lookup" in sources
        assert llm.stats.by_source["lookup"].accepted > 0
        assert sum(counts.accepted for counts in llm.stats.by_source.values()) == llm.stats.accepted
        assert ("draft" in llm.stats.by_source) == ("draft" in spec_type)
        assert (llm.draft is None) == ("draft" not in spec_type)
