"""The prefix cache: content that slots lose is restored from main memory with the same bits, if that is faster."""

from __future__ import annotations

from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from steps import Steps, text
from tiny_gguf import CHATML, EXACT, HYBRID, RECURRENT, write_model
from tiny_head import write_bigram, write_block_drafter, write_head

import edgespec
from edgespec.cancel import CancelFlag
from edgespec.engine.prefix_cache import MOST_CHECKPOINTS, MOST_USELESS, STILL_SAVED
from edgespec.engine.slot import LEFT_OUT
from edgespec.engine.slots import BETWEEN_STOPS
from edgespec.runtime.runtime import Runtime
from edgespec.settings import Message

UNCUT = (*HYBRID, *RECURRENT)
ROOM = 10**6


def cached(steps: Steps, tokens: list[int], **options: Any) -> int:
    return steps.answer(tokens, **options).stats.cached_tokens


# --- what is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("can_roll_back", [True, False])
@pytest.mark.parametrize("sequences", [1, 2])
def test_chats_that_take_turns_read_only_what_is_new(sequences: int, can_roll_back: bool) -> None:
    steps = Steps(ROOM, sequences=sequences, can_roll_back=can_roll_back)
    chats = [text(200, seed) for seed in range(5)]
    for turn in range(3):
        for number, chat in enumerate(chats):
            answer = steps.answer(chat)
            assert answer.stats.cached_tokens == (len(chat) - 31 if turn else 0)
            chats[number] = [*answer.tokens, *text(30, 9)]
    assert steps.slots.cache.hits == 10


def test_short_chats_that_take_turns_keep_their_answers() -> None:
    steps = Steps(ROOM, sequences=1)
    first, _ = steps.answer(text(20)), steps.answer(text(20, 1))
    assert cached(steps, [*first.tokens, *text(30, 2)]) == len(first.tokens) - 1


def test_a_prompt_that_ends_otherwise_takes_what_it_shares_and_leaves_the_rest_to_others() -> None:
    steps = Steps(ROOM, sequences=1)
    first = steps.answer(text(400))
    steps.answer(text(100, 1))
    assert cached(steps, [*text(300), *text(50, 2)]) == 300
    steps.answer(text(100, 3))
    assert cached(steps, [*first.tokens, 5]) == 403


def test_what_begins_a_longer_text_is_not_kept_beside_it() -> None:
    steps = Steps(ROOM, sequences=1)
    first = steps.answer(text(200))
    steps.answer(text(100, 1))
    second = steps.answer([*first.tokens, *text(100, 2)])
    steps.answer(text(100, 3))
    assert [len(saved.slot.tokens) for saved in steps.slots.cache._saved] == [103, len(second.tokens) - 1]


def test_what_was_not_used_for_longest_goes() -> None:
    steps = Steps(4 * 103 * 3, sequences=1)
    chats = [steps.answer(text(100, seed)).tokens for seed in range(3)]
    steps.answer(text(100, 3))
    assert cached(steps, [*chats[0], 5]) == 103
    steps.answer(text(100, 4))
    assert cached(steps, [*chats[1], 5]) == 0
    assert steps.slots.cache.n_bytes <= 4 * 103 * 3


def test_states_that_nobody_asks_for_are_soon_saved_now_and_then_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the states of a batch job."""
    steps, n = Steps(4 * 250, sequences=1), 60
    saves = list[int]()
    save = type(steps.context).save

    def counting(context: Any, sequence: int, *, partial: bool = False) -> Any:
        saves.append(sequence)
        return save(context, sequence, partial=partial)

    monkeypatch.setattr(type(steps.context), "save", counting)
    for seed in range(n):
        steps.answer(text(100, seed))
    assert len(saves) <= 2 + MOST_USELESS + n / STILL_SAVED
    last = steps.answer(text(100, 99))
    for seed in range(100, 100 + 2 * STILL_SAVED):
        steps.answer([*last.tokens, 5]), steps.answer(text(100, seed))
    assert steps.slots.cache.hits


def test_nothing_is_copied_that_is_read_as_fast_or_not_asked_for() -> None:
    steps = Steps(ROOM, sequences=1)
    steps.slots.cache.observe_read(1000, 1e-9)
    first = steps.answer(text(200))
    steps.answer(text(100, 1))
    assert cached(steps, [*first.tokens, 5]) == 0
    steps = Steps(ROOM, sequences=1)
    first = steps.answer(text(200))
    steps.answer(text(100, 1))
    assert cached(steps, [*first.tokens, 5], reuse="running") == 0


def test_what_is_to_be_forgotten_is_not_in_main_memory_either() -> None:
    steps = Steps(ROOM, sequences=1)
    first = steps.answer(text(200))
    steps.answer(text(100, 1))
    steps.slots.forget()
    assert cached(steps, [*first.tokens, 5]) == 0


def test_a_state_that_cannot_be_restored_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(ROOM, sequences=1)
    first = steps.answer(text(200))
    steps.answer(text(100, 1))

    def failing(context: Any, sequence: int, *_: Any, **__: Any) -> bool:
        context.forget(sequence)
        return False

    monkeypatch.setattr(type(steps.context), "restore", failing)
    assert cached(steps, [*first.tokens, *text(20, 2)]) == 0


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [True, False])
def test_an_answer_is_made_again_from_before_the_end_of_its_prompt(exact: bool) -> None:
    steps = Steps(ROOM, sequences=1, exact=exact, can_roll_back=False)
    prompt = text(400)
    steps.answer(prompt, 50)
    assert cached(steps, prompt) == 400 - LEFT_OUT
    # Also a chat whose template leaves out the last tokens of the prompt and a part of the answer.
    assert cached(steps, [*prompt[:-LEFT_OUT], *text(90, 1)]) == 400 - LEFT_OUT


def test_the_second_turn_is_answered_again_from_its_own_beginning() -> None:
    steps = Steps(ROOM, sequences=1, can_roll_back=False)
    first = steps.answer(text(400), 300)
    second = [*first.tokens, *text(20, 1)]
    assert cached(steps, second) == len(first.tokens) - 1
    assert cached(steps, second) == len(first.tokens) - 1


def test_where_texts_part_a_checkpoint_is_made_for_the_third() -> None:
    steps = Steps(ROOM, sequences=2, can_roll_back=False)
    system = text(500)
    assert [cached(steps, [*system, *text(150, seed)]) for seed in range(1, 6)] == [0, 0, 500, 500, 500]


@pytest.mark.parametrize("exact", [True, False])
def test_samples_of_one_prompt_wait_for_its_checkpoint(exact: bool) -> None:
    steps = Steps(ROOM, sequences=3, exact=exact, n_batch=100, can_roll_back=False)
    answers = [steps.add(text(400), 3, reuse="all") for _ in range(3)]
    steps.run()
    assert [answer.stats.cached_tokens for answer in answers] == [0, 400 - LEFT_OUT, 400 - LEFT_OUT]


def test_a_slot_has_a_few_checkpoints_and_none_behind_what_it_holds() -> None:
    steps = Steps(ROOM, sequences=1, can_roll_back=False, n_ctx=10**5)
    chat = text(300)
    for turn in range(2 * MOST_CHECKPOINTS):
        chat = [*steps.answer(chat).tokens, *text(300, turn)]
    slot = steps.slots.all[0]
    places = sorted(slot.checkpoints)
    assert len(places) == MOST_CHECKPOINTS and places[0] == 300 - LEFT_OUT
    assert all(later - earlier >= BETWEEN_STOPS for earlier, later in pairwise(places))
    steps.answer([*text(300), *text(50, 99)])
    assert [*slot.checkpoints] == [300 - LEFT_OUT]


def test_after_a_pass_that_was_broken_off_the_last_checkpoint_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(ROOM, sequences=1, can_roll_back=False)
    sequence = steps.add(text(400), 50)
    for _ in range(5):
        steps.step()
    truncate = type(steps.context).truncate
    refuse = iter([False])
    monkeypatch.setattr(type(steps.context), "truncate", lambda *args: next(refuse, None) is None and truncate(*args))
    steps.slots.keep(sequence, sequence.n_decoded)
    assert sequence.n_decoded == 400 - LEFT_OUT
    steps.run()
    assert sequence.finish == "length"


# --- real models ------------------------------------------------------------------------------------------------------

KINDS = ("llama", "qwen2", "gemma3", "qwen2moe", *UNCUT)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {
        name: str(write_model(folder / f"{name}.gguf", name, width=128, chat_template=CHATML))
        for name in ("llama", "qwen2", "gemma3", "qwen2moe", *UNCUT)
    }


def talk(llm: Runtime, n_chats: int = 4, n_turns: int = 3) -> tuple[list[Any], list[int]]:
    """Run chats alternately; returns tokens, log-probabilities, and how many tokens of each prompt were read."""
    found, read = list[Any](), list[int]()
    chats = [[Message("user", f"print the number {number} " * 12)] for number in range(n_chats)]
    for turn in range(n_turns):
        for number, chat in enumerate(chats):
            events = list(llm.chat(chat, max_tokens=12, temperature=0.9, seed=number, ignore_eos=True, logprobs=1))
            found.append([(event.id, event.logprob) for event in events])
            read.append(llm.stats.prompt_tokens - llm.stats.cached_tokens)
            answer = [event.id for event in events if event.id >= 0]
            chat += [
                Message("assistant", "".join(event.text for event in events), tokens=tuple(answer)),
                Message("user", "return x " * (3 + 20 * (turn == 1))),
            ]
    again = list(llm.chat(chats[0][:-2], max_tokens=20, temperature=0.9, seed=0, ignore_eos=True, logprobs=1))
    found.append([(event.id, event.logprob) for event in again])
    read.append(llm.stats.prompt_tokens - llm.stats.cached_tokens)
    return found, read


@pytest.mark.long(but=1)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
@pytest.mark.usefixtures("home")
def test_who_lost_its_slot_goes_on_with_the_same_bits(files: dict[str, str], kind: str, cache_type: str) -> None:
    settings: dict[str, Any] = {"threads": 1, "ctx_size": 1024, "cache_type_k": cache_type, "cache_type_v": cache_type}
    if kind in HYBRID:  # its sequences share a cache: the order of cells decides how sums round
        settings |= EXACT
    with edgespec.load(files[kind], sequences=6, cache_ram=16, **settings) as roomy:
        expected, read = talk(roomy)
        assert roomy.engine.slots.cache.hits == 0
    for sequences in (1, 2):
        with edgespec.load(files[kind], sequences=sequences, cache_ram=16, **settings) as llm:
            llm.engine.slots.cache.observe_read(10**6, 10**6)  # a small model reads as fast as it copies
            found, read_again = talk(llm)
            assert found == expected if kind not in HYBRID else alike(found, expected)
            assert read_again[4:] == read[4:]
            assert llm.engine.slots.cache.hits >= 8


def alike(found: list[Any], expected: list[Any]) -> bool:
    """Return whether the tokens are the same and the log-probabilities nearly so."""
    for (id, logprob), (other, other_logprob) in zip(chain(*found), chain(*expected), strict=True):
        if id != other or abs((logprob or 0) - (other_logprob or 0)) > 1e-3:
            return False
    return True


@pytest.mark.long(but=1)
@pytest.mark.parametrize("kind", ["llama", "eagle3", "dspark", "qwen35"])
@pytest.mark.usefixtures("home")
def test_drafters_catch_up_with_what_was_restored(files: dict[str, str], tmp_path: Path, kind: str) -> None:
    settings: dict[str, Any] = {"threads": 1, "ctx_size": 1024, "sequences": 2, "cache_ram": 16}
    is_head = kind in ("eagle3", "dspark")
    target, draft = files["llama" if is_head else kind], files["llama"]
    if is_head:
        target, draft = str(write_bigram(tmp_path / "target.gguf")), str(tmp_path / "draft.gguf")
        if kind == "eagle3":
            write_head(Path(draft), knows_bigrams=True)
        else:
            write_block_drafter(Path(draft), kind, knows_bigrams=True)
        settings |= {"ctx_size": 512}
    drafting: dict[str, Any] = {"draft_model": draft, "spec_type": kind if is_head else "draft"}
    with edgespec.load(target, spec_type="none", **settings) as plain:
        plain.engine.slots.cache.observe_read(10**6, 10**6)
        expected, _ = complete(plain)
    with edgespec.load(target, pace="fixed:3", **drafting, **settings) as llm:
        llm.engine.slots.cache.observe_read(10**6, 10**6)
        assert complete(llm) == (expected, True)
        assert llm.engine.slots.cache.hits >= 4 and not any("is off" in note for note in llm.notes)


def complete(llm: Runtime) -> tuple[list[list[int]], bool]:
    """Run texts alternately, each twice; returns them, and whether drafts were accepted in the second answers."""
    found, accepted = list[list[int]](), 0
    for turn in range(2):
        for number in range(4):
            asked = f"def f{number}(x):\n    return " * 16
            found.append([event.id for event in llm.generate(asked, max_tokens=24, temperature=0.0, ignore_eos=True)])
            accepted += turn * llm.stats.accepted
    return found, accepted > 0


@pytest.mark.usefixtures("home")
def test_a_cancelled_answer_costs_a_hybrid_no_more_than_its_end(files: dict[str, str]) -> None:
    messages, cancel = [Message("user", "print the number " * 40)], CancelFlag()
    with edgespec.load(files["lfm2"], threads=1, ctx_size=1024, cache_ram=16) as llm:
        llm.engine.slots.cache.observe_read(10**6, 10**6)
        events = llm.chat(messages, cancel=cancel, max_tokens=200, ignore_eos=True)
        next(events)
        cancel.set()
        assert [*events][-1].finish_reason == "cancelled"
        list(llm.chat(messages, max_tokens=4))
        assert llm.stats.prompt_tokens - llm.stats.cached_tokens <= LEFT_OUT
