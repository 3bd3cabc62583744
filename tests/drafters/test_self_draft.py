"""Drafts made from the target itself: its first layers, or smaller weights; and writing them as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
from cli_program import edgespec_here
from tiny_gguf import write_model

import edgespec
from edgespec.errors import EdgespecError, UsageError
from edgespec.models.names.spec import resolve
from edgespec.models.pair import self_draft as making
from edgespec.models.pair.self_draft import self_draft, slice_layers
from edgespec.settings import LoadSettings
from edgespec.validation import check_spec_type

TARGET = resolve("demo").path


@pytest.mark.slow
def test_a_slice_has_the_first_layers_as_they_are_and_says_so(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", "llama", n_layers=4)
    slice_layers(model, tmp_path / "s.gguf", 3)
    ours, theirs = gguf.GGUFReader(tmp_path / "s.gguf"), gguf.GGUFReader(model)
    tensors = {tensor.name: tensor for tensor in theirs.tensors}
    assert ours.fields["llama.block_count"].contents() == 3
    assert {tensor.name for tensor in ours.tensors} == {
        name for name in tensors if not name.startswith("blk.") or int(name.split(".")[1]) < 3
    }
    for tensor in ours.tensors:
        assert tensor.tensor_type == tensors[tensor.name].tensor_type
        assert (tensor.data == tensors[tensor.name].data).all()
    same = ours.fields.keys() - {"llama.block_count", "GGUF.tensor_count"}
    assert all(ours.fields[name].contents() == theirs.fields[name].contents() for name in same)


@pytest.mark.long(but=1)
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma"])
def test_slices_of_other_models_can_be_loaded(tmp_path: Path, architecture: str) -> None:
    model = write_model(tmp_path / "m.gguf", architecture)
    slice_layers(model, tmp_path / "s.gguf", 1)
    with edgespec.load(str(tmp_path / "s.gguf"), threads=1) as llm:
        assert llm.model.n_layer == 1


@pytest.mark.parametrize("layers", [0, 10, 99])
def test_layers_that_do_not_exist_are_refused(tmp_path: Path, layers: int) -> None:
    with pytest.raises(UsageError, match="has 10 layers"):
        slice_layers(TARGET, tmp_path / "s.gguf", layers)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_full_disk_is_not_said_to_be_a_fault_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gguf.GGUFWriter.write_tensor_data", full)
    with pytest.raises(EdgespecError, match="No space left") as caught:
        slice_layers(TARGET, tmp_path / "s.gguf", 3)
    assert caught.value.exit_code == 1
    assert not list(tmp_path.iterdir())


def test_a_model_is_not_replaced_by_its_own_slice_and_no_other_file_by_one(tmp_path: Path) -> None:
    model, notes = tmp_path / "m.gguf", tmp_path / "notes.txt"
    model.write_bytes(TARGET.read_bytes())
    notes.write_text("precious")
    for destination, why in ((model, "with itself"), (notes, "another kind of file"), (tmp_path, "is a folder")):
        with pytest.raises(UsageError, match=why):
            slice_layers(model, destination, 2)
    with pytest.raises(UsageError, match="no folder"):
        slice_layers(model, tmp_path / "missing" / "x.gguf", 2)
    assert model.read_bytes() == TARGET.read_bytes() and notes.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "notes.txt"]


@pytest.mark.long(but=1)
@pytest.mark.parametrize("what", ["9", "q4_0", "Q8_0"])
def test_a_target_drafts_for_itself_and_changes_nothing(what: str, home: Path) -> None:
    settings: dict[str, Any] = {"max_tokens": 32, "temperature": 0.0, "ignore_eos": True}
    with edgespec.load("demo", spec_type="none", threads=1) as plain:
        want = [event.id for event in plain.generate("import os\n", **settings)]
    for _ in range(2):
        with edgespec.load("demo", spec_type=f"self:{what}", pace="fixed:3", threads=1) as llm:
            assert [event.id for event in llm.generate("import os\n", **settings)] == want
            assert llm.stats.by_source["self"].accepted > llm.stats.by_source["self"].proposed / 2
            assert llm.draft is not None and llm.draft.path.parent == home / "cache" / "drafts"


@pytest.mark.slow
def test_it_is_made_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = self_draft(TARGET, "2")
    monkeypatch.setattr(making, "slice_layers", lambda *_: pytest.fail("made again"))
    assert self_draft(TARGET, "2") == first


def test_what_is_no_draft_or_has_no_room_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for what in ("", "x", "Q9_K", "-1"):
        with pytest.raises(UsageError, match="is not a draft"):
            self_draft(TARGET, what)
    with pytest.raises(UsageError, match="has 10 layers"):
        self_draft(TARGET, "64")
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(UsageError, match="may not fit"):
        self_draft(TARGET, "4")


@pytest.mark.parametrize("spec_type", ["self", "self:", "draft,self:2", "self:2,self:3", "auto,draft", "", "x"])
def test_lists_that_mean_nothing_are_refused(spec_type: str) -> None:
    with pytest.raises(UsageError):
        check_spec_type(spec_type)
    assert LoadSettings("demo", spec_type="suffix,self:2").self_draft == "2"


def test_the_command(tmp_path: Path) -> None:
    def call(*arguments: str, status: int = 0) -> str:
        done = edgespec_here("draft", "self", *arguments, "-o", str(tmp_path / "out.gguf"), home=tmp_path)
        assert done.returncode == status, done.stderr
        return str(done.stdout.decode() + done.stderr.decode())

    assert "first 2 layers" in call("demo", "2")
    assert "has 10 layers" in call("demo", "20", status=2)
    assert "loses quality again" in call("demo", "q4_0")
    call("demo", "Q99", status=2)
