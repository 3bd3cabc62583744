"""The prompts that a target answers: from files, from chats and bundled."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from edgespec.bench.suites import shipped
from edgespec.errors import UsageError
from edgespec.training.prompts import (
    KINDS,
    Passages,
    bundled,
    bundled_prompt,
    from_files,
    held_out,
    is_usable,
)

SENTENCE = "The lighthouse stands on a rock, and nobody has lived in it for a hundred years. "


def test_bundled_prompts_are_of_all_kinds_and_resume() -> None:
    passages = Passages([SENTENCE * 4])
    prompts = [*islice(bundled(0, passages), 40)]
    assert {prompt.kind for prompt in prompts} == {*KINDS}
    assert [prompt.text for prompt in islice(bundled(20, passages), 20)] == [prompt.text for prompt in prompts[20:]]
    assert bundled_prompt(5)[0] not in ("summary", "repeat")  # there is no passage to be about


def test_the_prompts_of_the_benchmark_are_held_out() -> None:
    asked = {item.prompt for item in shipped()}
    assert {prompt.text for chat in (True, False) for prompt in held_out(chat=chat)} == asked
    assert all(prompt.is_held_out for prompt in held_out(chat=True))
    passages = Passages()
    assert asked.isdisjoint(prompt.text for prompt in islice(bundled(0, passages), 500))


def test_a_passage_ends_with_a_sentence() -> None:
    passages = Passages()
    passages.learn("Too short.")
    assert passages.take() == ""
    passages.learn(SENTENCE * 30)
    assert passages.take().endswith("hundred years.")
    assert len(passages.take()) <= 700


def test_files_are_prompts_or_passages(tmp_path: Path) -> None:
    rows = [
        {"prompt": "One?"},
        {"turns": ["Two?", "Three?"]},
    ]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "notes.md").write_text(SENTENCE * 20)
    prompts, texts = from_files([tmp_path])
    assert [prompt.text for prompt in prompts] == ["One?", "Two?"]
    passages = Passages(texts)
    passages.learn("An answer of the target, which is not used here. " * 10)
    assert passages.take().startswith("The lighthouse") and passages.take().startswith("The lighthouse")


def test_files_without_prompts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"no": 1}\n')
    with pytest.raises(UsageError, match="no prompts"):
        from_files([tmp_path / "a.jsonl"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no prompts"):
        from_files([tmp_path / "empty"])


def test_a_prompt_that_the_target_writes_again_is_not_used() -> None:
    known: set[str] = set()
    assert is_usable("What is a lighthouse?", known)
    assert not is_usable("what is  a lighthouse?", known)
    assert not is_usable("Hi", known)
