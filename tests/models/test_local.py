"""The files of a machine that are offered as models, their descriptions, and the files that are left out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import write_embedding_model, write_file, write_model, write_split, write_vocabulary

from edgespec.errors import ModelFileError, ModelNotFoundError
from edgespec.llama.model import LlamaModel
from edgespec.models.hub.cache import hub_cache
from edgespec.models.names.local import LocalModel, local_model, local_models
from edgespec.models.names.model_names import own_folders, short_name
from edgespec.models.names.other_programs import DEPTH
from edgespec.models.names.source import BUNDLED, PackageSpec
from edgespec.models.names.spec import sources

LINKS = pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home, and an empty working folder."""
    folder = tmp_path / "home"
    (folder / "work").mkdir(parents=True)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.setenv("EDGESPEC_HOME", str(folder / "settings"))
    hub = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME")
    for name in (*hub, "EDGESPEC_MODELS", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    if os.name == "nt":  # whose folders are not named by variables
        local = folder / "AppData" / "Local"
        monkeypatch.setattr("platformdirs.user_cache_path", lambda name, **kinds: local / name)
    monkeypatch.chdir(folder / "work")
    yield folder


def files(*folders: Path) -> list[LocalModel]:
    """Return the models found with these folders of the user, without the bundled pair."""
    with pytest.MonkeyPatch.context() as patch:
        if folders:
            patch.setenv("EDGESPEC_MODELS", os.pathsep.join(map(str, folders)))
        found = list(local_models())
    assert [model.spec for model in found[:2]] == ["demo", "demo:draft"]
    return found[2:]


def names(*folders: Path) -> list[str]:
    return [model.path.name for model in files(*folders)]


def tiny(path: Path, **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_model(path, "llama", **settings)


def test_a_model_is_called_by_its_catalogue_name_or_by_its_file(home: Path) -> None:
    packaged = sources("smollm2")[0]
    assert isinstance(packaged, PackageSpec)
    packaged.folder.mkdir(parents=True)
    packaged.path.write_text("it has to hold something")
    named = {packaged.path: "smollm2", BUNDLED / "draft.gguf": "demo:draft", home / "Big-Q8_0.gguf": "Big-Q8_0"}
    assert {path: short_name(path) for path in named} == named


# --- what is said of a model ------------------------------------------------------------------------------------------


def test_the_bundled_pair_comes_first_and_is_described() -> None:
    demo, draft = local_models()
    with LlamaModel(BUNDLED / "target.gguf") as model:
        assert (demo.n_params, demo.n_ctx_train, demo.n_vocab) == (model.n_params, model.n_ctx_train, model.n_vocab)
        assert (demo.name, demo.architecture) == (model.header.metadata["general.name"], model.header.architecture)
    assert demo.size_bytes == (BUNDLED / "target.gguf").stat().st_size
    assert (demo.quantisation, demo.problem) == ("Q8_0", "")
    assert (draft.spec, draft.path) == ("demo:draft", BUNDLED / "draft.gguf")


def test_one_model_is_found_by_name_or_path(home: Path) -> None:
    assert local_model("demo") == next(local_models())
    path = tiny(home / "here.gguf")
    assert (local_model(str(path)).spec, local_model(str(path)).n_vocab) == (str(path), 299)
    with pytest.raises(ModelNotFoundError):
        local_model("nothing.gguf")
    (home / "broken.gguf").write_text("no model")
    with pytest.raises(ModelFileError):
        local_model(str(home / "broken.gguf"))


@pytest.mark.parametrize(
    ("settings", "quantisation"),
    [
        ({"type": "Q8_0"}, "Q8_0"),
        ({"type": "F16"}, "F16"),
        ({"type": "Q8_0", "metadata": {"general.file_type": 15}}, "Q4_K_M"),
        ({"type": "Q8_0", "metadata": {"general.file_type": 1024}}, "Q8_0"),
    ],
)
def test_weights_are_named_as_their_quantiser_named_them_or_by_what_most_of_them_are(
    home: Path, settings: dict[str, Any], quantisation: str
) -> None:
    assert local_model(str(tiny(home / "model.gguf", **settings))).quantisation == quantisation


def test_a_split_file_is_one_model(home: Path) -> None:
    parts = write_split(home / "work", n_parts=3)
    [model] = files()
    assert model.path.name == parts[0].name
    assert model.size_bytes == sum(part.stat().st_size for part in parts)
    parts[1].unlink()
    [model] = files()
    assert "1 of them cannot be found" in model.problem


# --- where they are looked for ----------------------------------------------------------------------------------------


def test_the_usual_folders_and_those_given_are_looked_into(home: Path) -> None:
    hub = home / ".cache" / "huggingface" / "hub" / "models--owner--name" / "snapshots" / "0123abc"
    tiny(hub / "quant" / "hub.gguf")
    tiny(home / "work" / "working.gguf")
    tiny(home / "models" / "owner" / "repo" / "kept.GGUF")
    tiny(home / "elsewhere" / "given.gguf")
    assert names() == ["hub.gguf", "working.gguf", "kept.GGUF"]
    assert names(home / "elsewhere") == ["hub.gguf", "working.gguf", "kept.GGUF", "given.gguf"]
    for model in files(home / "elsewhere"):
        assert Path(model.spec).is_absolute()
        assert local_model(model.spec) == model


def test_folders_are_looked_into_so_many_levels_deep_and_hidden_ones_not_at_all(home: Path) -> None:
    deep = home / "work"
    for level in range(DEPTH + 2):
        tiny(deep / f"{level}.gguf")
        deep = deep / "below"
    tiny(home / "work" / ".hidden" / "hidden.gguf")
    assert names() == [f"{level}.gguf" for level in range(DEPTH + 1)]


def test_a_folder_that_lies_deep_in_another_is_looked_into_as_far_as_any(home: Path, monkeypatch: Any) -> None:
    tiny(home / "models" / "a" / "b" / "c" / "deep.gguf")
    monkeypatch.chdir(home)
    assert names() == ["deep.gguf"]


def test_folders_of_the_user_are_looked_into(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [home / "disk", home / "other", home / "LLMs"]
    for place in places:
        tiny(place / "owner" / f"{place.name}.gguf")
    monkeypatch.setenv("EDGESPEC_MODELS", os.pathsep.join([str(home / "disk"), "", "../other", "~/LLMs", "~/nowhere"]))
    assert names() == ["disk.gguf", "other.gguf", "LLMs.gguf"]
    assert own_folders()[2:] == [home / "LLMs", home / "nowhere"]


def test_folders_of_other_tools_are_looked_into(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny(home / ".lmstudio" / "models" / "publisher" / "model" / "studio.gguf")
    tiny(home / ".cache" / "lm-studio" / "models" / "publisher" / "model" / "older.gguf")
    usual = {"nt": "AppData/Local", "posix": "Library/Caches" if sys.platform == "darwin" else ".cache"}[os.name]
    tiny(home / usual / "llama.cpp" / "cached.gguf")
    tiny(home / "elsewhere" / "chosen.gguf")
    assert names() == ["studio.gguf", "older.gguf", "cached.gguf"]
    monkeypatch.setenv("LLAMA_CACHE", str(home / "elsewhere"))
    assert names() == ["studio.gguf", "older.gguf", "chosen.gguf"]


def test_of_a_folder_with_homes_in_it_only_the_files_are_looked_at(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny(home.parent / "here.gguf")
    tiny(home.parent / "somebody" / "theirs.gguf")
    tiny(home / "mine.gguf")
    monkeypatch.chdir(home.parent)
    assert names() == ["here.gguf"]
    assert names(home.parent) == ["here.gguf", "mine.gguf", "theirs.gguf"]  # a named folder is searched
    monkeypatch.chdir(home)
    assert names() == ["mine.gguf"]


def test_of_the_root_only_the_files_are_looked_at(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_into = []
    scan = os.scandir

    def noting(folder: Any) -> Any:
        looked_into.append(Path(folder))
        return scan(folder)

    root = Path(home.anchor)
    monkeypatch.chdir(root)
    monkeypatch.setattr(os, "scandir", noting)
    list(local_models())
    assert root in looked_into
    assert [folder for folder in looked_into if folder.parent == root != folder] == []


@pytest.mark.parametrize(
    "settings",
    [
        {"HF_HUB_CACHE": "~/hub", "HF_HOME": "~/hf"},
        {"HF_HOME": "$HOME/hf"},
        {"XDG_CACHE_HOME": "~/caches"},
        {},
    ],
)
def test_the_cache_is_where_huggingface_hub_has_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=True)
    assert hub_cache() == Path(asked.stdout.strip())


def test_folders_that_are_not_there_are_no_trouble(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(home / "nowhere"))
    (home / "file").write_text("no folder")
    assert files(home / "nothing", home / "file") == []


@pytest.mark.skipif(os.name != "posix", reason="a working folder can be removed on POSIX systems only")
def test_a_working_folder_that_is_gone_is_no_trouble(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny(home / "models" / "kept.gguf")
    monkeypatch.setenv("EDGESPEC_MODELS", "LLMs")
    (home / "work").rmdir()
    assert names() == ["kept.gguf"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a folder that may not be entered")
def test_a_folder_that_may_not_be_entered_is_left_out(home: Path) -> None:
    tiny(home / "work" / "open.gguf")
    (home / "work" / "closed").mkdir(mode=0o000)
    assert names() == ["open.gguf"]


# --- links ------------------------------------------------------------------------------------------------------------


@LINKS
def test_links_are_followed_and_each_file_is_reported_once(home: Path) -> None:
    repo = home / ".cache" / "huggingface" / "hub" / "models--owner--name"
    blob = tiny(repo / "blobs" / "0123")
    for revision in ("aaa", "bbb"):
        (repo / "snapshots" / revision).mkdir(parents=True)
        (repo / "snapshots" / revision / "model.gguf").symlink_to(blob)
    (home / "work" / "again.gguf").symlink_to(blob)
    (home / "work" / "bundled.gguf").symlink_to(BUNDLED / "target.gguf")
    assert [model.spec for model in files()] == [str(repo / "snapshots" / "aaa" / "model.gguf")]


@LINKS
def test_links_that_lead_back_are_harmless(home: Path) -> None:
    work = home / "work"
    tiny(work / "model.gguf")
    (work / "loop").symlink_to(work)
    (work / "up").symlink_to(home)
    (work / "itself").symlink_to(work / "itself")
    (work / "gone").symlink_to(work / "nowhere")
    assert names() == ["model.gguf"]


@LINKS
def test_links_that_lead_nowhere_are_reported(home: Path) -> None:
    (home / "models").mkdir()
    (home / "models" / "gone.gguf").symlink_to(home / "disk" / "model.gguf")
    (home / "models" / "itself.gguf").symlink_to("itself.gguf")
    assert {model.path.name: model.problem for model in files()} == {
        "gone.gguf": f"it is a broken link to {home / 'disk' / 'model.gguf'}",
        "itself.gguf": "it is a broken link to itself.gguf",
    }


# --- what cannot be used ----------------------------------------------------------------------------------------------


def test_what_edgespec_makes_for_itself_is_left_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(home / "work" / "edgespec"))
    cache = home / "work" / "edgespec" / "cache"
    tiny(home / "work" / "mine.gguf")
    for folder in ("drafts", "quants"):
        tiny(cache / folder / "mine-8.gguf")
    assert names() == ["mine.gguf"]
    assert names(cache / "quants") == ["mine.gguf", "mine-8.gguf"]  # a named folder


def test_files_that_go_with_a_model_are_left_out(home: Path) -> None:
    work = home / "work"
    tiny(work / "mmproj-model.gguf")
    write_file(work / "projector.gguf", {"general.architecture": "clip"}, {})
    write_file(work / "adapter.gguf", {"general.architecture": "llama", "general.type": "adapter"}, {})
    write_file(work / "imatrix.gguf", {"general.architecture": "imatrix", "general.type": "imatrix"}, {})
    (work / "notes.txt").write_text("no model")
    (work / "folder.gguf").mkdir()
    assert files() == []


def test_files_that_cannot_be_loaded_are_reported_with_the_reason(home: Path) -> None:
    work = home / "work"
    cut = tiny(work / "cut.gguf")
    cut.write_bytes(cut.read_bytes()[:-1000])
    write_embedding_model(work / "embedding.gguf")
    (work / "page.gguf").write_text("<html>not found</html>")
    write_vocabulary(work / "vocabulary.gguf")
    tiny(work / "whole.gguf")
    told = {model.path.name: model.problem for model in files()}
    assert told.pop("whole.gguf") == ""
    assert "the data ends inside" in told["cut.gguf"]
    assert "an embedding model" in told["embedding.gguf"]
    assert "it is a web page" in told["page.gguf"]
    assert "only a vocabulary" in told["vocabulary.gguf"]
    for model in files():
        if model.problem:
            assert (model.spec, model.header) == (str(work / model.path.name), None)
