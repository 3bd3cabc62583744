"""Where prompts come from."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from edgespec.bench.suites import shipped
from edgespec.errors import UsageError
from edgespec.history import Store, new_id
from edgespec.training.prompts import Passages, from_chats, from_path, held_out, is_usable, seeds
from edgespec.training.seeds import KINDS, seed_prompt

SENTENCE = "The lighthouse stands on a rock, and nobody has lived in it for a hundred years. "


def test_seeds_are_of_all_kinds_and_go_on_where_they_stopped() -> None:
    passages = Passages()
    passages.add(SENTENCE * 4)
    prompts = [*islice(seeds(0, passages), 40)]
    assert {prompt.kind for prompt in prompts} == {*KINDS}
    assert [prompt.text for prompt in islice(seeds(20, passages), 20)] == [prompt.text for prompt in prompts[20:]]
    assert seed_prompt(5)[0] not in ("summary", "repeat")  # there is no passage to be about


def test_the_prompts_of_the_benchmark_are_held_out() -> None:
    asked = {item.prompt for item in shipped()}
    assert {prompt.text for chat in (True, False) for prompt in held_out(chat=chat)} == asked
    assert all(prompt.is_held_out for prompt in held_out(chat=True))
    passages = Passages()
    assert asked.isdisjoint(prompt.text for prompt in islice(seeds(0, passages), 500))


def test_a_passage_ends_with_a_sentence() -> None:
    passages = Passages()
    passages.add("Too short.")
    assert passages.take() == ""
    passages.add(SENTENCE * 30)
    assert passages.take().endswith("hundred years.")
    assert len(passages.take()) <= 700


def test_files_are_prompts_or_passages(tmp_path: Path) -> None:
    rows = [
        {"prompt": "One?"},
        {"turns": ["Two?", "Three?"]},
        {"messages": [{"role": "user", "content": "Four?"}, {"role": "assistant", "content": "Yes."}]},
    ]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "notes.md").write_text(SENTENCE * 20)
    passages = Passages()
    assert [prompt.text for prompt in from_path(tmp_path, passages)] == ["One?", "Two?", "Four?"]
    assert passages.take().startswith("The lighthouse")


def test_what_is_no_prompt_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "One?"}\n{"no": 1}\n')
    with pytest.raises(UsageError, match="line 2"):
        from_path(tmp_path / "a.jsonl", Passages())
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="there are no prompts"):
        from_path(tmp_path / "empty", Passages())


def test_own_chats_are_asked_turn_by_turn() -> None:
    with Store.in_memory() as store:
        chat = new_id()
        store.create(chat)
        first = store.append(chat, None, "user", "One?")
        answer = store.append(chat, first.key, "assistant", "1.")
        store.append(chat, answer.key, "user", "Two?")
        prompts = from_chats(store)
    assert [prompt.text for prompt in prompts] == ["One?", "Two?"]
    assert [message.content for message in prompts[1].messages] == ["One?", "1.", "Two?"]


def test_a_prompt_that_the_target_writes_again_is_not_used() -> None:
    known: set[str] = set()
    assert is_usable("What is a lighthouse?", known)
    assert not is_usable("what is  a lighthouse?", known)
    assert not is_usable("Hi", known)
