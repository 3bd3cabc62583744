"""Sequences with different LoRA adapters: they take turns, and use no cached tokens of each other."""

from __future__ import annotations

import pytest
from steps import Steps, text

from edgespec.engine.turns import TURN

ONE, TWO = ((0, 1.0),), ((0, 0.5), (1, 1.0))


@pytest.mark.parametrize("exact", [False, True])
def test_sets_of_adapters_take_turns(exact: bool) -> None:
    steps = Steps(sequences=3, exact=exact)
    answers = [steps.add(text(20, seed), 200, adapters=adapters) for seed, adapters in enumerate((ONE, TWO, ONE))]
    turns: list[object] = []
    while not any(answer.finish for answer in answers):
        scheduled = steps.scheduler.schedule()
        turns.append(scheduled[0].sequence.adapters)
        steps.run_pass(scheduled)
    changes = [place for place in range(1, len(turns)) if turns[place] != turns[place - 1]]
    assert {*turns} == {ONE, TWO}
    assert [later - earlier for earlier, later in zip([0, *changes], changes, strict=False)] == [TURN] * len(changes)
    assert len(changes) > 4


@pytest.mark.parametrize("can_roll_back", [False, True])
@pytest.mark.parametrize("n_slots", [1, 2])
def test_cached_tokens_are_those_of_the_same_adapters(n_slots: int, can_roll_back: bool) -> None:
    steps = Steps(cache_bytes=10**7, sequences=n_slots, can_roll_back=can_roll_back)
    prompt = text(400)
    first = steps.answer(prompt, adapters=ONE)
    assert steps.answer(prompt, adapters=TWO).stats.cached_tokens == 0
    assert steps.answer(prompt).stats.cached_tokens == 0
    for adapters in (ONE, TWO, ()):  # also those that lost their slot
        assert steps.answer(first.tokens[:401], adapters=adapters).stats.cached_tokens > 300


def test_a_prompt_is_shared_only_with_the_same_adapters() -> None:
    steps = Steps(sequences=4)
    answers = [steps.add(text(300), adapters=adapters) for adapters in (ONE, ONE, TWO, ())]
    assert [answer.shares is not None for answer in answers] == [False, True, False, False]
    steps.run()
    assert steps.context.n_decoded < 4 * 300
    assert all(answer.finish == "length" for answer in answers)
