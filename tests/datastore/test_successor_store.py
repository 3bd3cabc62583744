"""Saved tables of successors: which model reads them, two processes, damaged files, and what is not saved."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_program import edgespec_here
from numpy.typing import NDArray
from tiny_gguf import write_model

import edgespec
from edgespec.core.index.successor_table import Context, Row, SuccessorTable
from edgespec.datastore import successor_store
from edgespec.datastore.successor_store import SUFFIX, SuccessorStore, clear, stored
from edgespec.errors import EdgespecError
from edgespec.gguf_file.header import Header
from edgespec.gguf_file.model_check import check_model
from edgespec.gguf_file.weights import target_print
from edgespec.models.names.source import HEADS

ROW: Row = np.array([7, 8], np.int32), np.array([1.0, 0.5], np.float32)


class Known(SuccessorTable):
    """A table that remembers which of its rows are new."""

    def __init__(self, n_vocab: int) -> None:
        super().__init__()
        self.n_vocab = n_vocab
        self.new = SuccessorTable()

    def restore(self, state: Mapping[str, NDArray[Any]], n_vocab: int = 0) -> None:
        super().restore(state, self.n_vocab)

    def unsaved(self) -> SuccessorTable:
        new, self.new = self.new, SuccessorTable()
        return new


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Header:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "home"))
    (tmp_path / "models").mkdir()
    return check_model(write_model(tmp_path / "models" / "m.gguf", "llama"))


def opened(model: Header, *folders: Path, saves: bool = True) -> tuple[SuccessorStore, Known]:
    known = Known(model.n_vocab)
    return SuccessorStore(model, known, folders, saves=saves), known


def save(model: Header, context: Context) -> None:
    store, known = opened(model)
    known.new.put(context, ROW)
    store.save()


def test_the_next_process_knows_what_was_learned(model: Header) -> None:
    save(model, (1, 2))
    _, known = opened(model)
    assert [part.tolist() for part in known.get(1, 2) or ()] == [[7, 8], [1.0, 0.5]]
    assert [(each["model"], each["contexts"]) for each in stored()] == [("m.gguf", 1)]
    if os.name == "posix":
        [file] = successor_store.store().folder.glob(f"*{SUFFIX}")
        assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    assert clear() == 1
    assert not stored() and not len(opened(model)[1])


def test_another_model_has_another_table(model: Header) -> None:
    save(model, (1, 2))
    other = check_model(write_model(model.path.with_name("other.gguf"), "llama", seed=5))
    assert not len(opened(other)[1])
    same = check_model(write_model(model.path.with_name("same.gguf"), "qwen2"))
    assert len(opened(same)[1]) == 1


def test_the_command_shows_and_deletes_tables(model: Header, tmp_path: Path) -> None:
    save(model, (1, 2))
    row = edgespec_here("store", "ls", home=tmp_path / "home").stdout.splitlines()[2].split()
    assert row[:2] == [b"m.gguf", b"1"]
    assert b"1 deleted" in edgespec_here("store", "clear", "--yes", home=tmp_path / "home").stderr
    assert not stored()


def test_two_processes_lose_nothing(model: Header) -> None:
    (one, known), (other, others) = opened(model), opened(model)
    known.new.put((1, 2), ROW)
    others.new.put((3, 4), ROW)
    one.save()
    other.save()
    assert len(opened(model)[1]) == 2


def test_without_the_store_nothing_is_read_or_written(model: Header) -> None:
    save(model, (1, 2))
    store, known = opened(model, saves=False)
    assert not len(known)
    known.new.put((3, 4), ROW)
    store.save()
    assert len(opened(model)[1]) == 1


def test_tables_in_folders_come_before_what_was_learned(model: Header) -> None:
    save(model, (1, 2))
    shutil.copytree(successor_store.store().folder, folder := model.path.parent / "tables")
    clear()
    save(model, (3, 4))
    store, known = opened(model, folder, folder / "missing")
    assert len(known) == 2
    known.new.put((5, 6), ROW)
    store.save()
    assert len(opened(model)[1]) == 2  # the table in the folder is not copied


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "deep", "old", "large"])
def test_a_damaged_table_is_begun_anew(model: Header, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save(model, (1, 2))
    [file] = successor_store.store().folder.glob(f"*{SUFFIX}")
    data = file.read_bytes()
    if damage == "old":
        monkeypatch.setattr(successor_store, "VERSION", 0)
    elif damage == "large":
        monkeypatch.setattr(successor_store, "MOST_IN_A_FILE", 10)
    else:
        np.savez(deep := io.BytesIO(), about=np.array("[" * 100_000))
        damaged = {"cut": data[: len(data) // 2], "empty": b"", "text": b"no table", "deep": deep.getvalue()}
        file.write_bytes(damaged[damage])
    assert not len(opened(model)[1]) and not stored()
    monkeypatch.undo()
    monkeypatch.setenv("EDGESPEC_HOME", str(file.parents[2]))
    save(model, (3, 4))
    assert opened(model)[1].get(3, 4) is not None


@pytest.mark.slow
def test_no_damaged_byte_is_an_error(model: Header) -> None:
    save(model, (1, 2))
    [file] = successor_store.store().folder.glob(f"*{SUFFIX}")
    whole, n_read = file.read_bytes(), 0
    places = [*range(1024), *range(len(whole) - 1024, len(whole))]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        file.write_bytes(damaged)
        n_read += len(opened(model)[1])
        assert len(stored()) <= 1
    assert 0 < n_read < len(places)


def test_what_a_replaced_model_learned_is_saved(model: Header) -> None:
    store, known = opened(model)
    known.new.put((1, 2), ROW)
    whole = model.path.read_bytes()
    model.path.write_bytes(whole[:100])
    store.save()
    model.path.write_bytes(whole)
    assert len(opened(model)[1]) == 1


def test_the_weights_are_read_again_only_for_another_file(model: Header, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[Path]()

    def print_of(header: Header) -> NDArray[np.float32]:
        read.append(header.path)
        return target_print(header)

    monkeypatch.setattr(successor_store, "target_print", print_of)
    save(model, (1, 2))
    assert len(opened(model)[1]) == 1 and read == [model.path]
    [cached] = (successor_store.store().folder.parent / "prints").iterdir()
    cached.write_text("{}")
    assert len(opened(model)[1]) == 1 and read == [model.path] * 2
    other = check_model(write_model(model.path, "llama", seed=5))
    assert not len(opened(other)[1]) and read == [model.path] * 3


def test_only_the_table_of_the_model_is_unpacked(model: Header, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(3):
        other = write_model(model.path.with_name(f"{seed}.gguf"), "llama", seed=seed + 5)
        save(check_model(other), (1, 2))
    others = successor_store.store().files()
    shown = list[str]()
    read = np.lib.npyio.NpzFile.__getitem__

    def show(archive: Any, name: str) -> Any:
        shown.append(name)
        return read(archive, name)

    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", show)
    save(model, (1, 2))
    assert shown == ["about"] * 3
    shown.clear()
    for file, _ in {*successor_store.store().files()} - {*others}:
        os.utime(file, (1, 1))
    assert len(opened(model)[1]) == 1
    assert shown[0] == "about" and {*shown[1:]} == {"contexts", "ids", "lengths", "logits"}  # first its own file


def test_tables_are_not_deleted_while_they_are_saved(model: Header, monkeypatch: pytest.MonkeyPatch) -> None:
    save(model, (1, 2))
    monkeypatch.setattr(successor_store, "LOCK_S", 0.0)
    with successor_store.lock(), pytest.raises(EdgespecError, match="cannot be cleared"):
        clear()
    assert clear() == 1


def test_a_full_disk_is_no_error(model: Header, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgespec.files.bounded_folder.free_in", lambda folder: 0)
    save(model, (1, 2))
    assert not stored()


def test_it_is_saved_now_and_then(model: Header, monkeypatch: pytest.MonkeyPatch) -> None:
    store, known = opened(model)
    known.new.put((1, 2), ROW)
    store.save(now=False)
    assert not stored()
    monkeypatch.setattr(successor_store, "SAVE_EVERY_S", -1.0)
    store.save(now=False)
    assert stored()


def test_a_runtime_drafts_from_what_earlier_ones_learned(model: Header) -> None:
    settings: dict[str, Any] = {"spec_type": "recycling", "pace": "fixed:3", "threads": 1}
    asked: dict[str, Any] = {
        "prompt": "import os\n",
        "max_tokens": 24,
        "ignore_eos": True,
        "temperature": 0.8,
        "seed": 4,
    }
    texts, rounds = [], []
    unkept: list[dict[str, Any]] = [{"remembered": False}, {"reference": (5,) * 24}]
    for store, kept in ((False, {}), *((True, each) for each in [*unkept, {}, {}])):
        with edgespec.load("demo", store=store, **settings) as llm:
            texts.append([event.id for event in llm.generate(**asked, **kept)])
            rounds.append(llm.stats.rounds)
        assert bool(stored()) == (len(rounds) > 3)
    assert texts[0] == texts[1] == texts[3] == texts[4]
    assert rounds[0] == rounds[1] == rounds[3] > rounds[4]


def test_the_tables_that_come_with_the_program_are_whole_and_small() -> None:
    files = [*HEADS.glob(f"*{SUFFIX}")]
    assert files
    for file in files:
        about, arrays = successor_store.read_table(file)
        Known(1 << 18).restore(arrays)
        assert about["tokens"] > 0 and file.stat().st_size < 1_000_000
        assert f"{about['tokens'] // 1000}k tokens" in file.with_name(f"{file.stem}-ngram.md").read_text(
            encoding="utf-8"
        )
