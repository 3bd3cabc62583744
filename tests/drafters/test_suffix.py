"""Suffix drafting: the automaton, the index over fixed texts, and the drafts made from both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from drafted import Text, first_draft
from hypothesis import given
from hypothesis import strategies as st

import edgespec
from edgespec.core.index.automaton import COUNTED, SuffixAutomaton
from edgespec.core.index.context_index import DEPTH, ContextIndex, order_of
from edgespec.core.index.continuation import BROAD, InText, Trie, likely, reliability
from edgespec.core.sampler import Sampler
from edgespec.core.sampling import SamplingSettings
from edgespec.drafters.base import Budget
from edgespec.drafters.suffix import SuffixDrafter

TOKENS = st.lists(st.integers(0, 2), max_size=40)
TEXT = "import os\n" + "    self.assertEqual(os.path.join('a', 'b'), 'a/b')\n" * 6


def occurrences(text: Sequence[int], run: Sequence[int]) -> list[int]:
    """Find all ends of a run of tokens in a text, by looking at every position."""
    return [end for end in range(len(run), len(text) + 1) if list(text[end - len(run) : end]) == list(run)]


def longest_known(text: Sequence[int], known: Sequence[int], most: int = 1000) -> int:
    """Return how many of the last tokens of `text` occur together in `known`."""
    return max(n for n in range(min(most, len(text)) + 1) if n == 0 or occurrences(known, text[-n:]))


# --- the automaton ----------------------------------------------------------------------------------------------------


@given(TOKENS)
def test_the_longest_run_that_occurred_before_is_found_at_every_token(tokens: list[int]) -> None:
    automaton = SuffixAutomaton()
    for n, token in enumerate(tokens, 1):
        automaton.extend([token])
        length = automaton.lengths[automaton.match]
        assert length == max(k for k in range(n) if k == 0 or len(occurrences(tokens[:n], tokens[n - k : n])) > 1)


@given(st.lists(st.integers(0, 2), max_size=20))
def test_every_run_leads_to_a_state_that_knows_how_often_it_occurred(tokens: list[int]) -> None:
    automaton = SuffixAutomaton()
    automaton.extend(tokens)
    assert len(automaton.lengths) <= max(2, 2 * len(tokens))
    for start in range(len(tokens)):
        state = 0
        for end in range(start, len(tokens)):
            state = automaton.edges[state][tokens[end]]
            assert automaton.counts[state] == len(occurrences(tokens, tokens[start : end + 1]))


@given(TOKENS, TOKENS, TOKENS)
def test_another_text_can_be_followed_while_the_automaton_grows(
    known: list[int], more: list[int], text: list[int]
) -> None:
    automaton, state, length = SuffixAutomaton(), 0, 0
    automaton.extend(known)
    for n, token in enumerate(text):
        if n == len(text) // 2:
            automaton.extend(more)
            known = known + more
        state, length = automaton.step(state, length, token)
        if n < len(text) // 2:
            assert length == longest_known(text[: n + 1], known)
        assert not length or occurrences(known, text[n + 1 - length : n + 1])


@pytest.mark.slow
def test_a_text_of_one_token_takes_no_longer_than_others() -> None:
    steps = 0

    class Counts(list[int]):
        def __setitem__(self, key: Any, value: Any) -> None:
            nonlocal steps
            steps += 1
            super().__setitem__(key, value)

    automaton = SuffixAutomaton()
    automaton.counts = Counts(automaton.counts)
    automaton.extend([1] * 1000)
    assert steps <= COUNTED * 1000


# --- the index --------------------------------------------------------------------------------------------------------


@given(TOKENS, TOKENS)
def test_the_index_finds_all_places_of_the_longest_run(known: list[int], text: list[int]) -> None:
    tokens = np.array(known, np.uint32)
    index = ContextIndex(tokens, order_of(tokens))
    length, found = index.search(text)
    assert length == longest_known(text, known, DEPTH)
    if length:
        assert sorted(index.order[found.start : found.stop].tolist()) == occurrences(known, text[-length:])
        behind = index.behind(found, 3, 100)
        assert sorted(behind) == sorted(known[end : end + 3] for end in occurrences(known, text[-length:]))
        assert len(index.behind(found, 3, 2)) <= 2


def test_runs_longer_than_the_depth_are_found_as_far_as_that() -> None:
    tokens = np.arange(100, dtype=np.uint32)
    length, found = ContextIndex(tokens, order_of(tokens)).search(list(range(40)))
    assert (length, len(found)) == (DEPTH, 1)


# --- what may come next -----------------------------------------------------------------------------------------------


def test_the_longest_run_says_most_and_counts_decide_between_tokens() -> None:
    long, short = Trie(3, [[1, 9], [1, 8], [2]]), Trie(1, [[3]])
    distribution = likely([short, long], 4)
    assert next(iter(distribution)) == 1 and distribution[1] > 2 * distribution[2] and sum(distribution.values()) < 1
    assert distribution[1] == pytest.approx(2 / 3 * reliability(3, 2 / 3))
    assert distribution[3] == pytest.approx((1 - reliability(3)) * reliability(1))
    there = long.behind(1)
    assert there is not None and there.length == 4 and set(there.counts()) == {8, 9}
    assert long.behind(5) is None


def test_a_run_is_the_surer_the_longer_it_is_and_unsure_where_it_went_on_in_several_ways() -> None:
    by_length = [reliability(length) for length in (1, 2, 4, 8, 16, 64)]
    assert by_length == sorted(by_length) and 0.3 < by_length[0] < 0.5 and by_length[-1] > 0.97
    assert reliability(3, 0.5) < reliability(1)


def test_a_shorter_run_makes_no_token_surer_that_the_longest_one_knows() -> None:
    long, short = Trie(3, [[1]]), Trie(1, [[1], [2]])
    assert likely([long, short], 2)[1] == likely([long], 2)[1]
    assert set(likely([long, short], 2)) == {1, 2}


def test_a_run_that_anything_followed_says_nothing() -> None:
    automaton = SuffixAutomaton()
    for token in range(1, BROAD + 3):
        automaton.extend([0, token])
    assert not InText(automaton, automaton.edges[0][0], 1).counts()


# --- drafts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], []),
        ([1], []),
        ([1, 2, 3], []),
        ([1, 2, 9, 8, 1, 2], [9, 8, 1, 2]),
        ([3, 1, 2, 5, 4, 1, 2, 6, 3, 1, 2], [5, 4, 1, 2]),  # a longer match wins over a more recent one
        ([1, 2, 5, 1, 2, 6, 1, 2, 6, 1, 2], [6, 1, 2, 6]),  # the more frequent continuation
        ([4, 4, 4, 4], [4, 4, 4, 4]),  # a text that repeats itself is expected to continue so
    ],
)
def test_what_followed_most_often_is_drafted(tokens: list[int], expected: list[int]) -> None:
    draft = first_draft(SuffixDrafter(), Text(tokens), Budget(4))
    assert draft.tokens == expected[: len(draft)] and bool(draft) == bool(expected)
    assert draft.is_chain and set(draft.distributions) <= {None}


def test_a_tree_has_what_else_may_come() -> None:
    text = Text([1, 2, 5, 0, 1, 2, 6, 0, 1, 2])
    draft = first_draft(SuffixDrafter(), text, Budget(8, leaves=2))
    assert draft.n_leaves == 2 and {draft.tokens[node] for node in draft.children(-1)} == {5, 6}
    assert draft.reaches() and max(draft.confidence) < 1


def test_with_noise_the_target_s_own_noise_chooses_between_tokens() -> None:
    chosen = set()
    for seed in range(20):
        text = Text([1, 2, 5, 0, 1, 2, 6, 0, 1, 2], sampler=Sampler(SamplingSettings(temperature=1), seed, 0, 100))
        chosen |= set(first_draft(SuffixDrafter(), text, Budget(1)).tokens)
    assert chosen == {5, 6}


def test_a_slot_that_holds_another_text_is_indexed_anew() -> None:
    drafter = SuffixDrafter()
    assert first_draft(drafter, Text([1, 2, 3, 1, 2]), Budget(4))
    assert not first_draft(drafter, Text([5, 6, 1, 2]), Budget(4))


def test_drafts_that_are_accepted_gain_confidence() -> None:
    drafter, text = SuffixDrafter(), Text([1, 2, 3, 4] * 3)
    first = first_draft(drafter, text, Budget(4))
    for _ in range(20):
        text.tokens += [1, 2, 3, 4]
        [last] = drafter.propose([text], [Budget(4)])
    assert last.confidence[0] > first.confidence[0]
    again = SuffixDrafter()
    again.restore(drafter.state())
    restored = first_draft(again, Text([1, 2, 3, 4] * 3), Budget(4))
    assert restored.confidence[0] > first.confidence[0]


@pytest.mark.long(but=3)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("spec_type", "tree"), [("suffix", 1), ("suffix", 4), ("draft,suffix", 1)])
def test_suffix_drafting_changes_no_text(spec_type: str, tree: int, temperature: float, home: Any) -> None:
    settings: dict[str, Any] = {"max_tokens": 48, "temperature": temperature, "seed": 5, "ignore_eos": True}
    with edgespec.load("demo", spec_type="none", spec_tree=tree, threads=1) as plain:
        want = [event.id for event in plain.generate(TEXT, **settings)]
    with edgespec.load("demo", spec_type=spec_type, pace="fixed:6", spec_tree=tree, threads=1) as llm:
        for _ in range(2):  # the second time, the first answer is known
            got = list(llm.generate(TEXT, **settings))
            assert [event.id for event in got] == want
        assert {event.source for event in got if event.from_draft} == {"suffix"}
        assert llm.stats.by_source["suffix"].accepted > 0


class Earlier:
    """A store with one earlier answer."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.recent = SuffixAutomaton()
        self.recent.extend(tokens)

    def places(self, text: Sequence[int]) -> list[InText]:
        return []


def test_earlier_answers_are_drafted_from_unless_the_text_itself_says_more() -> None:
    earlier = Earlier([7, 8, 9, 1, 2, 3])
    assert first_draft(SuffixDrafter(earlier), Text([5, 7, 8]), Budget(4)).tokens == [9, 1, 2, 3]
    own = first_draft(SuffixDrafter(earlier), Text([5, 6, 7, 8, 4, 5, 6, 7, 8]), Budget(2))
    assert own.tokens == [4, 5]


def test_what_it_has_to_read_first_is_known() -> None:
    drafter, text = SuffixDrafter(), Text([1, 2, 3, 4, 5])
    drafter.begin(text)
    assert drafter.n_unread(text) == 4
    drafter.propose([text], [Budget(4)])
    assert drafter.n_unread(text) == 0
    text.tokens += [6, 7, 8]
    assert drafter.n_unread(text) == 2
    drafter.begin(Text([1, 2, 3]))  # another text in the same slot
    assert drafter.n_unread(Text([1, 2, 3])) == 2
