"""`edgespec draft convert`, `graft` and `trim`, each up to what tune says of its file."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_program import edgespec_here
from fake_hub import FakeHub, edgespec_with
from published_heads import config, eagle3, eagle31, peagle, write_head
from tiny_gguf import CHATML, write_model
from tiny_head import write_head as write_file_of_head
from tiny_mtp import LAYERS, write_mtp

from edgespec.cli.commands import draft
from edgespec.gguf_file.head_check import check_draft_file
from edgespec.gguf_file.header import read_header
from edgespec.models.pair.self_draft import slice_layers


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "CHECK_S", 0.1)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_model(tmp_path / "target.gguf", "llama", n_layers=4, chat_template=CHATML)


@pytest.mark.slow
def test_a_published_head_is_converted_and_tried(target: Path, tmp_path: Path) -> None:
    folder, out = write_head(tmp_path / "published", config(), eagle3([3, 9, 60, 97])), tmp_path / "head.gguf"
    done = edgespec_here("draft", "convert", str(folder), str(target), "-o", str(out), "--type", "F16", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"head.gguf: eagle3, " in done.stdout
    assert b"eagle3 fixed:3" in done.stdout and b"recommendation" in done.stdout
    assert check_draft_file(out).tensors["fc.weight"].type == "F16"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eagle3", "peagle"])
def test_a_converted_head_drafts_for_its_model(target: Path, tmp_path: Path, kind: str) -> None:
    """One of EAGLE-3.1, and one of P-EAGLE with three layers."""
    ids, n_vocab = [3, 9, 60, 97], read_header(target).n_vocab
    settings, tensors = config(fc_norm=True, norm_output=True), eagle31(ids)
    if kind == "peagle":
        settings, tensors = config(num_hidden_layers=3, mask_token_id=7), peagle(ids, n_vocab)
    folder, out = write_head(tmp_path / "published", settings, tensors), tmp_path / "head.gguf"
    done = edgespec_here("draft", "convert", str(folder), str(target), "-o", str(out), "--no-check", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"head.gguf: {kind}, ".encode() in done.stdout
    run = ["run", "def the class", "-m", str(target), "-n", "24", "--temp", "0"]
    plain, alone, found = (
        edgespec_here(*run, *more, home=tmp_path)
        for more in (
            ["--spec-type", "none"],
            ["-md", str(out), "--spec-type", kind, "--pace", "fixed:3"],
            ["--explain"],
        )
    )
    for each in (alone, found):
        assert each.returncode == 0, each.stderr
        assert each.stdout == plain.stdout
    assert b"head.gguf: found near target.gguf" in found.stderr  # and it drafts without options


def test_a_folder_without_a_head_is_refused(target: Path, tmp_path: Path) -> None:
    done = edgespec_here("draft", "convert", str(tmp_path), str(target), "-o", str(tmp_path / "h.gguf"), home=tmp_path)
    assert done.returncode == 2
    assert b"is not a published draft head: there is no config.json\n  give the folder" in done.stderr


@pytest.mark.slow
def test_a_repository_is_downloaded_and_converted(target: Path, tmp_path: Path) -> None:
    folder, out = write_head(tmp_path / "published", config(), eagle3([3, 9, 60, 97])), tmp_path / "head.gguf"
    names = ("config.json", "model.safetensors")
    command = ("draft", "convert", "owner/head", str(target), "-o", str(out), "--no-check")
    with FakeHub() as hub:
        hub.add("owner/head", {name: (folder / name).read_bytes() for name in names} | {"training.pt": b"large"})
        done = edgespec_with(hub, *command, home=tmp_path, HF_HUB_OFFLINE="1")
        assert done.returncode == 3 and b"owner/head is not on this machine: --offline or HF_HUB_OFFLINE" in done.stderr
        done = edgespec_with(hub, *command, home=tmp_path)
        assert done.returncode == 0, done.stderr
        assert b"owner/head is model.safetensors and 1 more file, " in done.stderr
        assert {file.name for file in tmp_path.rglob("snapshots/*/*")} == {*names}
        assert check_draft_file(out).name == "head"
        out.unlink()
        assert edgespec_with(hub, *command, home=tmp_path, HF_HUB_OFFLINE="1").returncode == 0
        hub.add("owner/pickled", {"config.json": b"{}", "pytorch_model.bin": b"PK"})
        done = edgespec_with(hub, "draft", "convert", "owner/pickled", *command[3:], home=tmp_path)
        assert done.returncode == 3 and b"owner/pickled has no published draft head" in done.stderr


@pytest.mark.slow
def test_a_block_is_grafted_and_tried(tmp_path: Path) -> None:
    base, tuned, out = (tmp_path / f"{name}.gguf" for name in ("base", "tuned", "out"))
    write_mtp(base, knows_bigrams=True)
    slice_layers(base, tuned, LAYERS)
    done = edgespec_here("draft", "graft", str(base), str(tuned), "-o", str(out), home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"tuned.gguf with the MTP block of base.gguf" in done.stdout
    assert b"recommendation" in done.stdout


@pytest.mark.slow
def test_a_draft_is_trimmed_and_tried(target: Path, tmp_path: Path) -> None:
    draft, text = tmp_path / "draft.gguf", tmp_path / "text.txt"
    slice_layers(target, draft, 2)
    text.write_text("return self.print(the class)")
    command = ["draft", "trim", str(draft), "--tokens", "280", "--texts", str(text), "--target", str(target)]
    done = edgespec_here(*command, "-o", str(tmp_path / "t.gguf"), home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"t.gguf: 280 of " in done.stdout
    assert b"recommendation" in done.stdout


@pytest.mark.slow
def test_a_head_is_trimmed_and_tried(target: Path, tmp_path: Path) -> None:
    head, out = write_file_of_head(tmp_path / "head.gguf"), tmp_path / "t.gguf"
    command = ["draft", "trim", str(head), "--tokens", "100", "-o", str(out)]
    done = edgespec_here(*command, home=tmp_path)
    assert done.returncode == 2 and b"name the model that it drafts for (--target MODEL)" in done.stderr
    done = edgespec_here(*command, "--target", str(target), home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"t.gguf: 100 of " in done.stdout
    assert b"recommendation" in done.stdout


def test_without_a_check_the_file_is_only_written(target: Path, tmp_path: Path) -> None:
    command = ["draft", "trim", str(target), "--tokens", "280", "--target", str(target), "--no-check"]
    done = edgespec_here(*command, "-o", str(tmp_path / "t.gguf"), home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"recommendation" not in done.stdout
    assert b"the tokens with the lowest ids are kept" in done.stderr
    assert edgespec_here(*command, "-o", "x", "--tokens", "ak", home=tmp_path).returncode == 2
