"""The draft head of a model in a few words: in its file, here, or not here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_assistant import write_assistant, write_gemma4
from tiny_gguf import write_embedding_model, write_model
from tiny_head import write_head, write_hydra
from tiny_mtp import write_mtp

from edgespec.models.hub.cache import repository_folder
from edgespec.models.names.catalog import catalogue, published_for
from edgespec.models.names.local import LocalModel, local_models, read_model
from edgespec.models.pair.known_heads import KnownHeads, head_of, head_of_entry

CATALOGUE = """
[tiny]
repository = "owner/tiny-GGUF"
heads = ["eagle3 owner/tiny-eagle3", "dflash owner/tiny-DFlash-GGUF"]

[blocked]
repository = "owner/blocked-MTP-GGUF"
heads = ["mtp", "dflash owner/blocked-DFlash"]

[assisted]
repository = "owner/assisted-GGUF"
heads = ["assistant owner/assisted-assistant"]
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HOME", "USERPROFILE", "EDGESPEC_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("EDGESPEC_MODELS", raising=False)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "models.toml").write_text(CATALOGUE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def keep(repository: str, name: str, write: Callable[[Path], Path]) -> Path:
    """Write a file of a repository in the hub's cache."""
    folder = repository_folder(repository)
    path = folder / "snapshots" / ("c" * 40) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text("c" * 40)
    return write(path)


def llama(path: Path) -> Path:
    return write_model(path, "llama", n_layers=4)


def words(path: Path) -> str:
    [model] = read_model(path, str(path), embeds=True)
    found = head_of(model)
    everywhere = KnownHeads(local_models(embeds=True)).of(model)  # finds the same among all models
    assert everywhere == found
    return str(found or "")


def test_an_mtp_block_that_llama_cpp_runs_is_in_the_file(home: Path) -> None:
    assert words(write_mtp(home / "block.gguf")) == "mtp in its file"


def test_a_head_that_fits_is_here_and_the_best_trained_one_counts(home: Path) -> None:
    (home / "models" / "a").mkdir(parents=True)
    target = llama(home / "models" / "a" / "x.gguf")
    assert words(target) == ""
    write_hydra(home / "models" / "misfit.gguf", n_vocab=5)
    assert words(target) == ""
    write_hydra(home / "models" / "hydra.gguf", metadata={"edgespec.head.acceptance": [0.4]})
    write_head(target.with_name("head.gguf"), metadata={"edgespec.head.acceptance": [0.5]})
    assert words(target) == "eagle3 here"
    assert words(target.with_name("head.gguf")) == ""
    assert words(write_embedding_model(home / "models" / "vectors.gguf")) == ""


def test_a_published_head_is_not_here_until_it_is_downloaded(home: Path) -> None:
    target = keep("owner/tiny-GGUF", "tiny-Q4_K_M.gguf", llama)
    assert words(target) == "eagle3 not here"
    [model] = read_model(target, str(target))
    found = head_of(model)
    assert found is not None and found.with_command("tiny") == "eagle3 not here: edgespec pull tiny --head"
    assert found.as_json == {"kind": "eagle3", "place": "not here", "spec": "owner/tiny-eagle3"}
    head = keep("owner/tiny-DFlash-GGUF", "tiny-DFlash-Q8_0.gguf", write_head)  # found in the repository of a head
    assert words(target) == "eagle3 here"
    assert words(keep("other/tiny-GGUF", "tiny-Q8_0.gguf", llama)) == "eagle3 here"  # another owner's conversion
    assert words(llama(home / "tiny-Q2_K.gguf")) == "eagle3 here"
    head.unlink()
    assert words(llama(home / "different-Q2_K.gguf")) == ""


def test_a_head_that_llama_cpp_has_no_graph_for_is_not_offered() -> None:
    assert words(keep("owner/tiny-GGUF", "tiny-Q4_K_M.gguf", lambda path: write_model(path, "mamba"))) == ""


def test_an_assistant_next_to_its_model_is_here(home: Path) -> None:
    target = keep("owner/assisted-GGUF", "assisted-Q4_K_M.gguf", write_gemma4)
    assert words(target) == ""  # what was published cannot be converted
    keep("owner/assisted-GGUF", "MTP/assisted-MTP-Q8_0.gguf", write_assistant)
    assert words(target) == "assistant here"


def test_an_entry_of_the_catalogue_has_the_head_of_its_file_or_a_published_one() -> None:
    entries = catalogue()
    found = {name: str(head_of_entry(entries[name]) or "") for name in ("tiny", "blocked", "assisted", "qwen2.5-7b")}
    assert found == {
        "tiny": "eagle3 not here", "blocked": "mtp in its file", "assisted": "", "qwen2.5-7b": ""
    }  # fmt: skip
    assert published_for(entries["tiny"], "mamba") is None and published_for(None) is None
    keep("owner/tiny-GGUF", "tiny-Q4_K_M.gguf", llama)
    keep("owner/tiny-GGUF", "eagle3-tiny-Q8_0.gguf", write_head)
    assert str(head_of_entry(entries["tiny"])) == "eagle3 here"


def test_the_heads_of_many_models_are_found_without_reading_a_header_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        llama(home / f"{number}.gguf")
    write_head(home / "head.gguf")
    models: list[LocalModel] = list(local_models())
    monkeypatch.setattr("edgespec.models.names.local.read_header", None)
    heads = KnownHeads(models)
    here = [str(heads.of(model)) for model in models if model.path.parent == home and not model.is_head]
    assert here == ["eagle3 here"] * 5
