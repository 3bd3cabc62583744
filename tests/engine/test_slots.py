"""Slots: which slot a prompt gets, how much of it is cached already, and that no slot is lost."""

from __future__ import annotations

import random
from typing import get_args

import numpy as np
import pytest
from fake_context import FakeContext
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import Steps, text

from edgespec.cancel import CancelFlag
from edgespec.engine.reading import FEW, WIDE, ReadingCosts
from edgespec.engine.sequence import NO_SLOT, Reuse, Sequence
from edgespec.engine.slot import Slot
from edgespec.engine.slots import LEAST_SHARED

# --- the rule ---------------------------------------------------------------------------------------------------------


def slot(n_read: int, n_generated: int = 0, *, seed: int = 0) -> Slot:
    """Make a slot that holds a prompt and its answer."""
    return Slot(0, text(n_read + n_generated, seed), n_read)


@pytest.mark.parametrize(
    ("n_prompt", "n_cached"), [(200, 160), (160, 159), (100, 99), (1, 0)]
)  # the last token is decoded for its logits
def test_a_prompt_uses_all_tokens_that_it_shares(n_prompt: int, n_cached: int) -> None:
    assert slot(120, 40).prefix(text(n_prompt)) == n_cached
    assert slot(120, 40, seed=1).prefix(text(n_prompt)) == 0
    assert slot(120, 40).prefix([*text(50), *text(n_prompt, 7)]) == 50


def test_a_memory_that_cannot_be_cut_is_used_up_to_a_checkpoint_or_its_end() -> None:
    held = slot(120, 40)
    held.checkpoints = {40: np.empty(0, np.uint8), 90: np.empty(0, np.uint8)}
    assert [held.prefix(text(n), cuttable=False) for n in (200, 161, 160, 91, 90, 41, 40)] == [
        160,
        160,
        90,
        90,
        40,
        40,
        0,
    ]


@given(st.integers(0, 400), st.integers(0, 200), st.integers(1, 600), st.integers(0, 600))
def test_the_last_token_is_always_decoded(n_read: int, n_generated: int, n_prompt: int, n_same: int) -> None:
    prompt = [*text(n_same), *text(n_prompt, 7)][:n_prompt]
    found = slot(n_read, n_generated).prefix(prompt)
    assert found == min(n_read + n_generated, n_same, n_prompt - 1)


# --- which slot -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("n_later", [10, 100])
def test_an_answer_that_is_continued_after_a_later_message_was_taken_back_has_something_to_decode(
    n_later: int, exact: bool
) -> None:
    steps = Steps(sequences=1, exact=exact)
    first = steps.answer(text(40))
    read = first.tokens[: first.n_decoded]
    steps.answer([*read, *text(n_later, 3)])
    again = steps.answer(read)
    assert 40 <= again.stats.cached_tokens < len(read)
    assert again.stats.rounds


@pytest.mark.parametrize("exact", [True, False])
def test_two_chats_with_the_same_beginning_do_not_read_again(exact: bool) -> None:
    steps = Steps(sequences=4, exact=exact)
    system = text(150)
    chats = [[*system, *text(30, seed)] for seed in (1, 2)]
    for turn in range(4):
        for number, chat in enumerate(chats):
            answer = steps.answer(chat)
            assert answer.stats.cached_tokens >= (len(chat) - 31 if turn else (150 if number else 0))
            chats[number] = [*answer.tokens, *text(30, 3 + turn)]


def test_an_answer_that_is_made_again_takes_the_place_of_the_first() -> None:
    steps = Steps(sequences=4)
    for _ in range(5):
        assert steps.answer(text(100), 50).slot == 0
    assert [bool(slot.tokens) for slot in steps.slots.all] == [True, False, False, False]


def test_what_was_not_used_for_longest_goes() -> None:
    steps = Steps(sequences=3)
    first, second, third = (steps.answer(text(60, seed)) for seed in (1, 2, 3))
    assert steps.answer([*first.tokens, 5]).slot == first.slot
    assert steps.answer(text(60, 4)).slot == second.slot
    assert steps.answer([*third.tokens, 5]).stats.cached_tokens == 63


def test_prompts_wait_for_one_that_reads_the_same_and_take_what_it_left() -> None:
    steps = Steps(sequences=3, n_batch=100)
    answers = [steps.add(text(400), 1, reuse="running") for _ in range(3)]
    assert [waits(answer) for answer in answers] == [False, True, True] and answers[0].is_prefill
    steps.run()  # each ends with its first token
    assert steps.context.n_decoded <= 400 + 4
    assert [answer.stats.cached_tokens for answer in answers] == [0, 399, 399]


def test_what_a_cancelled_prompt_has_read_is_not_read_again() -> None:
    steps, cancel = Steps(sequences=2, n_batch=100), CancelFlag()
    first, second = steps.add(text(400), cancel=cancel), steps.add(text(400))
    for _ in range(3):
        steps.step()
    cancel.set()
    steps.run()
    assert (first.finish, second.finish) == ("cancelled", "length")
    assert second.stats.cached_tokens == 300


def test_prompts_of_other_texts_in_one_pass_need_no_more_than_a_few_tokens_of_each_other() -> None:
    steps = Steps(sequences=2)
    steps.answer(text(LEAST_SHARED - 1))
    assert steps.answer([*text(LEAST_SHARED - 1), *text(20, 5)]).stats.cached_tokens == LEAST_SHARED - 1  # in its place
    assert steps.answer([*text(LEAST_SHARED - 6), *text(20, 6)]).stats.cached_tokens == 0  # not worth a copy


def test_a_beginning_that_the_slot_has_itself_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as rows of a batch that have the same system prompt."""
    steps, system = Steps(sequences=2, streams=True), text(100)
    copies = list[int]()
    monkeypatch.setattr(FakeContext, "copy", lambda *_: copies.append(1))
    for seed in (1, 2):
        steps.add([*text(30, seed), *text(30, 9)])
    steps.run()
    for slot in steps.slots.all:
        slot.tokens, slot.n_prompt = [*system, *text(20, slot.number)], 120
        steps.context.held[slot.number] = [*slot.tokens]
    for seed in range(3, 7):
        assert steps.answer([*system, *text(20, seed)]).stats.cached_tokens == 100
    assert not copies


def test_a_memory_that_cannot_be_cut_is_of_use_to_what_goes_on_behind_all_of_it() -> None:
    steps = Steps(sequences=2, can_roll_back=False)
    first = steps.answer(text(100))
    second = steps.answer([*first.tokens, *text(20, 1)])
    assert second.stats.cached_tokens == 103
    assert steps.answer([*first.tokens, *text(20, 1)]).stats.cached_tokens == 0
    steps.add(text(50)), steps.add(text(50))
    steps.run()
    assert steps.context.held[0] != []


def test_what_somebody_else_has_overwritten_is_not_used() -> None:
    steps = Steps(sequences=2)
    first = steps.answer(text(100))
    steps.slots.forget()
    assert steps.answer([*first.tokens, 5]).stats.cached_tokens == 0


# --- prompts while others generate ------------------------------------------------------------------------------------


def passes(steps: Steps, sequence: Sequence) -> list[list[tuple[bool, int]]]:
    """For each pass until this prompt is read, return for each sequence whether it reads its prompt, and its number of
    tokens."""
    made = []
    while sequence.is_prefill:
        scheduled = steps.scheduler.schedule()
        made.append([(part.sequence.is_prefill, part.n_pending) for part in scheduled])
        steps.run_pass(scheduled)
    return made


@given(n_prompt=st.integers(1, 1500), sequences=st.integers(2, 4), few=st.integers(0, 900))
@settings(max_examples=60, deadline=None)
def test_a_prompt_holds_up_nobody_for_more_than_a_piece(n_prompt: int, sequences: int, few: int) -> None:
    steps = Steps(sequences=sequences, exact=True, n_ctx=4096)
    for seed in range(1, sequences):
        steps.add(text(10, seed), 1000)
    while any(sequence.is_prefill for sequence in steps.scheduler.active):
        steps.step()
    steps.step()
    steps.scheduler.costs.pass_s, steps.scheduler.costs.token_s = few / FEW, 1.0
    made = passes(steps, steps.add(text(n_prompt, 9)))
    kinds = [{is_prompt for is_prompt, _ in each} for each in made]
    assert all(len(kind) == 1 for kind in kinds)
    assert kinds == [{number % 2 == 0} for number in range(len(kinds))]  # in turns
    pieces = [n for each in made for is_prompt, n in each if is_prompt]
    assert sum(pieces) == n_prompt
    assert all(piece == min(512, max(few, WIDE)) for piece in pieces[:-1]) and pieces[-1] <= max(few, WIDE)
    assert all(len(each) == sequences - 1 for each, kind in zip(made, kinds, strict=True) if kind == {False})


def test_some_short_prompts_are_read_at_once() -> None:
    steps = Steps(sequences=9, exact=True)
    steps.add(text(10), 1000)
    steps.step()
    steps.step()
    for seed in range(1, 8):
        last = steps.add(text(5, seed), 1000)
    made = passes(steps, last)
    assert [each == [(True, 5)] for each in made] == [True] * 4 + [False] + [True] * 3


def test_where_prompts_and_answers_share_passes_these_read_little_too() -> None:
    steps = Steps(sequences=3)
    steps.add(text(10, 1), 1000)
    steps.step()
    longer, long = steps.add(text(900, 3)), steps.add(text(200, 2))
    assert passes(steps, long) == [[(False, 1), (True, WIDE)]] * 3 + [
        [(False, 1), (True, 200 - 3 * WIDE), (True, 4 * WIDE - 200)]
    ]
    assert longer.n_decoded == 4 * WIDE - 200


@pytest.mark.parametrize("exact", [True, False])
def test_alone_a_prompt_is_read_in_whole_batches(exact: bool) -> None:
    steps = Steps(sequences=2, exact=exact, n_ctx=2048)
    made = passes(steps, steps.add(text(1100)))
    assert [n for each in made for _, n in each] == [512, 512, 76]


def test_a_piece_takes_as_long_as_a_few_passes_did() -> None:
    costs = ReadingCosts()
    costs.observe(512, 0, 5.12)
    assert costs.most == WIDE
    costs.observe(0, 3, 0.2)
    assert costs.most == int(FEW * 0.2 / 0.01)
    costs.observe(5, 0, 9.0)  # too few to measure
    costs.observe(100, 1, 1.2)  # together with others, whose pass it was
    assert costs.most == int(FEW * 0.2 / 0.01)
    for _ in range(50):
        costs.observe(0, 3, 0.0)
    assert costs.most == WIDE


# --- waiting and cancelling -------------------------------------------------------------------------------------------


def test_where_a_pass_is_too_narrow_for_all_each_has_its_turn() -> None:
    steps = Steps(sequences=4, exact=True)
    steps.scheduler.most_rows = 3
    sequences = [steps.add(text(40, seed), 100) for seed in range(4)]
    for _ in range(44):
        steps.step()
    made = [len(sequence.tokens) - sequence.n_prompt for sequence in sequences]
    assert min(made) > 25 and max(made) - min(made) <= 2


def test_sequences_wait_for_a_slot_in_their_order_and_can_be_cancelled_there() -> None:
    steps, cancel = Steps(sequences=2), CancelFlag()
    answers = [steps.add(text(20, seed), cancel=cancel if seed == 3 else None) for seed in range(5)]
    assert [waits(answer) for answer in answers] == [False, False, True, True, True]
    assert all(answer.is_prefill for answer in answers)
    assert answers[3].slot == NO_SLOT
    cancel.set()
    steps.step()
    assert steps.scheduler.finished() == [answers[3]]
    steps.run()
    assert [answer.finish for answer in answers] == [*["length"] * 3, "cancelled", "length"]
    assert answers[4].n_decoded == 23


def test_what_is_cancelled_before_its_turn_takes_no_slot_and_nothing_from_the_cache() -> None:
    steps, cancel = Steps(sequences=1), CancelFlag()
    first = steps.add(text(100))
    second = steps.add(text(100, 1), cancel=cancel)
    while first.finish is None:
        steps.step()
    cancel.set()
    steps.run()
    assert (second.finish, second.slot) == ("cancelled", NO_SLOT)
    assert steps.answer([*first.tokens, 5]).stats.cached_tokens > 100


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32),
    exact=st.booleans(),
    sequences=st.integers(1, 5),
    can_roll_back=st.booleans(),
    n_bytes=st.sampled_from([0, 3000, 10**6]),
)
@settings(max_examples=60, deadline=None)
def test_no_slot_is_lost_whatever_comes_and_goes(
    seed: int, exact: bool, sequences: int, can_roll_back: bool, n_bytes: int
) -> None:
    """`Steps.step` also checks that each slot holds what its record says."""
    chance = random.Random(seed)
    steps = Steps(
        sequences=sequences, exact=exact, can_roll_back=can_roll_back, n_ctx=2048, n_batch=128, cache_bytes=n_bytes
    )
    running: list[tuple[Sequence, CancelFlag]] = []
    texts = [text(40), text(200), text(300, 1)]
    for _ in range(150):
        if chance.random() < 0.4:
            known = chance.choice(texts)
            n_known = chance.choice([len(known), chance.randint(1, len(known))])
            prompt = [*known[:n_known], *text(chance.choice([0, chance.randint(0, 400)]), chance.randint(5, 7))]
            flag, reuse = CancelFlag(), chance.choice(get_args(Reuse))
            adapters = chance.choice([(), ((0, 1.0),)])
            sequence = steps.add(prompt[:1500], chance.randint(0, 6), reuse=reuse, cancel=flag, adapters=adapters)
            running.append((sequence, flag))
        if running and chance.random() < 0.15:
            chance.choice(running)[1].set()
        steps.step()
        for sequence in steps.scheduler.finished():
            texts[chance.randrange(3)] = sequence.tokens
            steps.scheduler.remove(sequence)
        assert steps.slots.cache.n_bytes <= n_bytes
    steps.run()
    assert all(sequence.finish for sequence, _ in running)
    assert all(slot.running is None for slot in steps.slots.all)
    assert not steps.scheduler.active and not steps.scheduler.waiting
    for held in steps.slots.all:
        if held.tokens:
            assert steps.context.held[held.number] == held.tokens


def waits(answer: Sequence) -> bool:
    """Return whether a sequence waits for a slot, or for a prompt that another sequence reads."""
    return answer.slot == NO_SLOT or answer.shares is not None
