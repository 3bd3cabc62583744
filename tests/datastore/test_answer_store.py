"""The store of earlier answers: its content, its size limit, and damaged files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from cli_program import edgespec_alone
from drafted import Text, first_draft

import edgespec
from edgespec.datastore import answer_store
from edgespec.datastore.answer_store import LEAST_TOKENS, AnswerStore, clear, stored
from edgespec.datastore.corpus import START
from edgespec.drafters.base import Budget
from edgespec.drafters.suffix import SuffixDrafter

ANSWER = list(range(10, 30))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test starts without a store."""
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    return tmp_path


def drafted(store: AnswerStore, tokens: list[int]) -> list[int]:
    return first_draft(SuffixDrafter(store), Text(tokens), Budget(4)).tokens


def test_an_answer_is_known_at_once_and_to_the_next_process(home: Path) -> None:
    store = AnswerStore("v", "m.gguf")
    assert not drafted(store, [1, 10, 11, 12])
    store.add(ANSWER)
    assert drafted(store, [1, 10, 11, 12]) == [13, 14, 15, 16]
    store.save()
    assert drafted(store, [1, 10, 11, 12]) == [13, 14, 15, 16]
    assert drafted(AnswerStore("v", "m.gguf"), [1, 10, 11, 12]) == [13, 14, 15, 16]
    if os.name == "posix":
        assert store.file.parent.stat().st_mode & 0o777 == 0o700
    assert not drafted(AnswerStore("w", "m.gguf"), [1, 10, 11, 12])


def test_a_text_in_the_making_hears_of_answers_that_end_beside_it(home: Path) -> None:
    store = AnswerStore("v", "m.gguf")
    drafter, text = SuffixDrafter(store), Text([1, 10, 11])
    assert not first_draft(drafter, text, Budget(4))
    store.add(ANSWER)
    text.tokens += [12]
    assert drafter.propose([text], [Budget(4)])[0].tokens == [13, 14, 15, 16]
    store.save()
    text.tokens += [13]
    assert drafter.propose([text], [Budget(4)])[0].tokens == [14, 15, 16, 17]


def test_nothing_is_drafted_beyond_the_end_of_an_answer(home: Path) -> None:
    store = AnswerStore("v", "m.gguf")
    for answer in (ANSWER, [40 + token for token in ANSWER]):
        store.add(answer)
        store.save()
    assert drafted(store, [27, 28, 29]) == []
    assert drafted(store, [27, 28]) == [29]


def test_short_answers_are_not_kept(home: Path) -> None:
    store = AnswerStore("v", "m.gguf")
    store.add(ANSWER[: LEAST_TOKENS - 1])
    store.save()
    assert not store.file.exists()


def test_tokens_are_counted_without_the_marks_between_answers(home: Path) -> None:
    store = AnswerStore("words", "m.gguf")
    for _ in range(2):
        store.add([3] * LEAST_TOKENS + [5, 9])
    store.save()
    assert store.counts(8).tolist() == [0, 0, 0, 2 * LEAST_TOKENS, 0, 2, 0, 0]


def test_the_oldest_leave_when_there_are_too_many(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_store, "MOST_TOKENS", 2 * len(ANSWER))
    store = AnswerStore("v", "m.gguf")
    for first in (0, 100, 200):
        store.add([first + token for token in ANSWER])
        store.save()
    assert [entry["tokens"] for entry in stored()] == [2 * len(ANSWER) - 2]
    assert not drafted(store, [10, 11, 12]) and drafted(store, [210, 211, 212])


def test_many_new_tokens_are_saved_before_the_end(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_store, "SAVED_AT", 2 * len(ANSWER))
    store = AnswerStore("v", "m.gguf")
    store.add(ANSWER)
    assert not store.file.exists()
    store.add(ANSWER)
    assert store.file.exists()


def test_two_processes_on_one_store_lose_nothing(home: Path) -> None:
    one, other = AnswerStore("v", "m.gguf"), AnswerStore("v", "m.gguf")
    one.add(ANSWER)
    other.add([100 + token for token in ANSWER])
    one.save()
    other.save()
    both = AnswerStore("v", "m.gguf")
    assert drafted(both, [10, 11, 12]) and drafted(both, [110, 111, 112])


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "old", "order", "tokens"])
def test_a_store_that_cannot_be_read_is_begun_anew_with_one_line(home: Path, damage: str) -> None:
    store = AnswerStore("v", "m.gguf")
    store.add(ANSWER)
    store.save()
    data = store.file.read_bytes()
    damaged = {
        "cut": data[: len(data) // 2],
        "empty": b"",
        "text": b"no store",
        "old": data.replace(b'"version": 1', b'"version": 0', 1),
        "order": data[:-1] + b"\xff",
        "tokens": data[:START] + b"\xff" + data[START + 1 :],
    }
    store.file.write_bytes(damaged[damage])
    said: list[str] = []
    store = AnswerStore("v", "m.gguf", said.append)
    assert len(said) == 1 and "starting a new one" in said[0]
    assert not stored() or damage in ("order", "tokens")  # only reading all of it finds these
    store.add(ANSWER)
    store.save()
    assert drafted(AnswerStore("v", "m.gguf", said.append), [1, 10, 11, 12])


def test_a_disk_that_cannot_be_written_loses_nothing_in_this_process(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    store = AnswerStore("v", "m.gguf")
    store.add(ANSWER)
    with monkeypatch.context() as patch:
        patch.setattr(answer_store, "complete", full)
        store.save()
    assert drafted(store, [1, 10, 11, 12]) == [13, 14, 15, 16]
    store.save()
    assert store.file.exists()


def test_stores_are_listed_and_cleared(home: Path) -> None:
    for name in ("v", "w"):
        store = AnswerStore(name, f"{name}.gguf")
        store.add(ANSWER)
        store.save()
    assert [(entry["name"], entry["model"], entry["answers"]) for entry in stored()] == [
        ("v", "v.gguf", 1),
        ("w", "w.gguf", 1),
    ]
    assert clear() == 2 and not stored() and clear() == 0


def test_what_is_kept_and_what_is_not(home: Path) -> None:
    settings: dict[str, Any] = {"max_tokens": 16, "ignore_eos": True}
    with edgespec.load("demo", spec_type="suffix", store=False, pace="fixed:3", threads=1) as llm:
        list(llm.generate("import os\n", **settings))
    assert not stored()
    with edgespec.load("demo", spec_type="suffix", pace="fixed:3", threads=1) as llm:
        list(llm.generate("import os\n", reference=(5,) * 16, **settings))
        list(llm.generate("import os\n", **settings))
    assert [(entry["answers"], entry["tokens"]) for entry in stored()] == [(1, 16)]


@pytest.mark.long
def test_the_command(tmp_path: Path) -> None:
    def call(*arguments: str) -> str:
        done = edgespec_alone(*arguments, home=tmp_path)
        assert done.returncode == 0, done.stderr
        return str(done.stdout.decode() + done.stderr.decode())

    assert "no answers are stored yet" in call("store", "ls")
    call("run", "--raw", "import os", "-n", "16", "--ignore-eos", "--spec-type", "suffix", "-t", "1")
    row = call("store", "ls").splitlines()[2].split()
    assert "target.gguf" in row and row[-4:-2] == ["1", "16"]  # answers and tokens, before the size
    assert "1 deleted" in call("store", "clear", "--yes")
    assert "no answers are stored yet" in call("store", "ls")
