"""Lookahead decoding: the target's predictions after rejected tokens are drafted next, and n-grams of them return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from drafted import Text, first_draft

import edgespec
from edgespec.core.draft import Draft
from edgespec.core.sampling import FloatRow
from edgespec.core.verify import verify
from edgespec.drafters import lookahead
from edgespec.drafters.base import Budget, Outcome
from edgespec.drafters.lookahead import WINDOW, LookaheadDrafter, NGrams
from edgespec.events import TokenEvent
from edgespec.settings import Request

TEXT = "import os\n" + "    self.assertEqual(os.path.join('a', 'b'), 'a/b')\n" * 2


def step(drafter: LookaheadDrafter, text: Text, says: Callable[[Sequence[int]], int], budget: Budget) -> int:
    """Simulate a target that chooses one token after each text; returns how many draft tokens were accepted."""
    [draft] = drafter.propose([text], [budget])
    tokens = list(text.tokens)

    def row(node: int) -> FloatRow:
        path: list[int] = []
        at = node
        while at >= 0:
            path.insert(0, draft.tokens[at])
            at = draft.parents[at]
        logits = np.zeros(text.sampler.n_vocab, np.float32)
        logits[says(tokens + path)] = 9
        return logits

    result = verify("coupled", draft, row, text.sampler, tokens, lambda token: False)
    accepted = [draft.tokens[node] for node in result.path]
    text.tokens += [choice.id for choice in result.choices]
    drafter.observe(Outcome(text, [tokens[-1], *accepted], draft, result.path, row))
    return len(accepted)


def n_accepted(text: Text, says: Callable[[Sequence[int]], int], steps: int, budget: Budget) -> list[int]:
    drafter = LookaheadDrafter()
    drafter.begin(text)
    return [step(drafter, text, says, budget) for _ in range(steps)]


@pytest.mark.parametrize("leaves", [1, 4])
def test_what_is_predicted_behind_rejected_tokens_is_the_next_window(leaves: int) -> None:
    """A text that depends on the position only is known after one step; after a whole accepted window nothing is
    known."""
    assert n_accepted(Text([7]), lambda tokens: 10 + len(tokens), 6, Budget(9, leaves)) == [0, WINDOW] * 3


@pytest.mark.parametrize("leaves", [1, 4])
def test_n_grams_of_a_periodic_text_are_accepted(leaves: int) -> None:
    accepted = n_accepted(Text([1]), lambda tokens: tokens[-1] % 7 + 1, 20, Budget(9, leaves))
    assert min(accepted[8:]) >= 2


def test_the_draft_has_the_window_and_n_grams_that_begin_with_the_last_token() -> None:
    drafter, text = LookaheadDrafter(), Text([5, 1, 8, 6, 1, 9, 7, 1])
    drafter.begin(text)
    for end in (5, 8):  # 1 8 6, then 1 9 7
        draft = Draft.empty()
        drafter.observe(Outcome(Text(text.tokens[: end - 1]), [0], draft, [], lambda node: np.zeros(100, np.float32)))
    [draft] = drafter.propose([text], [Budget(9, 4)])
    first, second = draft.children(-1)[:2]
    assert [draft.tokens[first], draft.tokens[second]] == [9, 8]
    assert [draft.tokens[node] for child in (first, second) for node in draft.children(child)] == [7, 6]
    assert not first_draft(LookaheadDrafter(), Text([]), Budget(4))


def test_of_n_grams_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookahead, "POOL", 8)
    grams = NGrams()
    for number in range(1000):
        grams.add((number % 100, number, 0))
        grams.add((1000, number % 5, 0))
    assert len(grams) == 8 and grams.after(99) == [(999, 0)] and not grams.after(50)
    assert grams.after(1000) == [(4, 0), (3, 0), (2, 0)]


def test_drafts_that_are_accepted_gain_confidence() -> None:
    drafter, text = LookaheadDrafter(), Text([1])
    drafter.begin(text)
    for _ in range(30):
        step(drafter, text, lambda tokens: tokens[-1] % 7 + 1, Budget(3))
    again = LookaheadDrafter()
    again.restore(drafter.state())
    for known in (drafter, again):
        known.begin(text)
        step(known, text, lambda tokens: tokens[-1] % 7 + 1, Budget(3))
    assert again.state() == drafter.state() != LookaheadDrafter().state()


@pytest.mark.long(but=1)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("spec_type", "tree"), [("lookahead", 1), ("lookahead", 4), ("suffix,lookahead", 4)])
def test_lookahead_changes_no_text(spec_type: str, tree: int, temperature: float, home: Any) -> None:
    requests = [
        Request(TEXT * n, max_tokens=40, sampling=edgespec.SamplingSettings(temperature=temperature), ignore_eos=True)
        for n in (1, 2)
    ]
    with edgespec.load("demo", spec_type="none", spec_tree=tree, threads=1) as plain:
        want = [[event.id for event in plain.submit(request)] for request in requests]
    for sequences in (1, 2):
        with edgespec.load(
            "demo", spec_type=spec_type, pace="fixed:8", spec_tree=tree, sequences=sequences, threads=1
        ) as llm:
            got: list[list[int]] = [[], []]
            accepted = 0
            for index, event in llm.stream(requests):
                assert isinstance(event, TokenEvent)
                got[index].append(event.id)
                accepted += event.from_draft and event.source == "lookahead"
            assert got == want
            assert accepted > 4 or spec_type != "lookahead"


def test_with_rejection_the_same_seed_gives_the_same_text(home: Any) -> None:
    with edgespec.load("demo", spec_type="lookahead", pace="fixed:3", threads=1) as llm:
        texts = {"".join(event.text for event in llm.generate(TEXT, max_tokens=40, verify="rejection")) for _ in "ab"}
        assert len(texts) == 1 and llm.stats.proposed
