"""The drafts near a model: where they are looked for, and which can draft for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiny_gguf import write_model
from tiny_head import write_head, write_hydra

from edgespec.gguf_file.model_check import check_model
from edgespec.models.pair.near import drafts_near

LINKS = pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
COMMITS = ("c" * 40, "d" * 40)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "edgespec"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def near(target: Path) -> dict[str, str]:
    """Return the drafts by their names, the best first, with what is wrong with them."""
    return {draft.path.name: draft.problem for draft in drafts_near(check_model(target))}


def target_in(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return write_model(folder / "target.gguf", "llama", n_layers=8)


def test_the_header_makes_a_head_and_the_name_makes_a_draft_model(home: Path) -> None:
    target = target_in(home / "models")
    write_model(home / "models" / "another.gguf", "llama", n_layers=1)
    write_model(home / "models" / "tiny-draft.gguf", "llama", n_layers=1)
    write_model(home / "models" / "mtp-target.gguf", "llama", n_layers=1)  # named as a block without its model
    write_head(home / "models" / "x.gguf", draft_tokens=[1, 2])
    assert list(near(target).items()) == [("x.gguf", ""), ("tiny-draft.gguf", "")]


def test_of_several_heads_the_one_with_the_best_training_is_first(home: Path) -> None:
    target = target_in(home)
    for name, share in (("a", 0.4), ("b", 0.6), ("c", 0.5)):
        write_head(home / f"{name}.gguf", metadata={"edgespec.head.acceptance": [share, share / 2]})
    assert [*near(target)] == ["b.gguf", "c.gguf", "a.gguf"]


def test_what_cannot_draft_comes_last_with_the_reason(home: Path) -> None:
    target = target_in(home)
    write_hydra(home / "a.gguf", n_vocab=5)
    (home / "b-eagle3.gguf").write_bytes(b"junk")
    write_model(home / "draft-large.gguf", "llama", n_layers=4)
    write_hydra(home / "z.gguf")
    found = near(target)
    assert next(iter(found)) == "z.gguf" and not found.pop("z.gguf")
    assert "5 tokens" in found["a.gguf"]
    assert "'junk'" in found["b-eagle3.gguf"]
    assert "times smaller than the target" in found["draft-large.gguf"]


@LINKS
def test_each_draft_of_a_repository_is_found_once_in_any_revision(home: Path) -> None:
    folder = home / "hub" / "models--owner--name"
    blobs, (old, new) = folder / "blobs", (folder / "snapshots" / commit for commit in COMMITS)
    for each in (blobs, old / "deep", new):
        each.mkdir(parents=True)
    target_in(blobs).rename(blobs / "1")
    write_hydra(blobs / "2")
    (new / "target.gguf").symlink_to(blobs / "1")
    (new / "target-again.gguf").symlink_to(blobs / "1")
    (new / "head.gguf").symlink_to(blobs / "2")
    (old / "deep" / "head.gguf").symlink_to(blobs / "2")
    assert near(new / "target.gguf") == {"head.gguf": ""}


def test_heads_in_edgespecs_own_folder_are_found(home: Path) -> None:
    target, own = target_in(home / "elsewhere"), home / "edgespec" / "data" / "models" / "heads"
    own.mkdir(parents=True)
    write_hydra(own / "head.gguf")
    assert near(target) == {"head.gguf": ""}
