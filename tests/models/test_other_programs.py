"""The models of LM Studio and llama.cpp: their folders and names, and that their files are only read."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tiny_gguf import write_model

from edgespec.errors import ModelNotFoundError, UsageError
from edgespec.models.hub.removal import plan_removal
from edgespec.models.names.local import local_models
from edgespec.models.names.model_names import known_names, name_of
from edgespec.models.names.other_programs import (
    PROGRAMS,
    files_elsewhere,
    llama_cpp_folders,
    lm_studio_folders,
    program_of,
)
from edgespec.models.names.source import is_path
from edgespec.models.names.spec import resolve, sources

REPOSITORY = "publisher/Tiny-Instruct-GGUF"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home."""
    for name in ("HOME", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model.gguf", "llama")


def put(model: Path, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(model, file)
    return file


def in_studio(model: Path, home: Path, name: str, repository: str = REPOSITORY) -> Path:
    return put(model, home / ".lmstudio" / "models" / repository / name)


def found() -> list[tuple[str, Path]]:
    return [(each.spec, each.path) for each in local_models()][2:]


def test_models_of_lm_studio_have_the_name_of_their_repository_and_are_used_where_they_are(
    home: Path, model: Path
) -> None:
    file = in_studio(model, home, "Tiny-Instruct-Q8_0.gguf")
    spec = f"lmstudio:{REPOSITORY}:Q8_0"
    assert found() == [(spec, file)]
    assert (resolve(spec).path, resolve(spec).name) == (file, spec)
    assert resolve(str(file)).name == name_of(file) == spec
    assert spec in known_names()


@pytest.mark.parametrize(
    "name",
    [
        f"lmstudio:{REPOSITORY}",
        f"lmstudio:{REPOSITORY}@q8_0",
        "lmstudio:publisher/tiny-instruct",
        "lmstudio:tiny-instruct@Q8_0",
        f"lmstudio:{REPOSITORY}/Tiny-Instruct-Q8_0.gguf",
        f"{REPOSITORY}:Q8_0",
    ],
)
def test_other_spellings_of_a_name(home: Path, model: Path, name: str) -> None:
    file = in_studio(model, home, "Tiny-Instruct-Q8_0.gguf")
    assert resolve(name).path == file


def test_files_of_one_quantisation_are_told_apart_by_their_names(home: Path, model: Path) -> None:
    names = ["a-Q8_0.gguf", "b-Q8_0.gguf", "c-Q4_K_M.gguf", "plain.gguf"]
    files = [in_studio(model, home, name) for name in names]
    specs = [f"lmstudio:{REPOSITORY}{end}" for end in ("/a-Q8_0.gguf", "/b-Q8_0.gguf", ":Q4_K_M", "/plain.gguf")]
    assert found() == list(zip(specs, files, strict=True))
    assert [resolve(spec).path for spec in specs] == files
    assert resolve(f"lmstudio:{REPOSITORY}").path == files[2]  # the usual quantisation
    with pytest.raises(ModelNotFoundError, match=f"LM Studio has {specs[0]}"):
        resolve(f"lmstudio:{REPOSITORY}:Q8_0")


def test_a_short_name_of_two_models_and_one_without_the_prefix_mean_none(home: Path, model: Path) -> None:
    for owner in ("one", "two"):
        in_studio(model, home, "Tiny-Q8_0.gguf", f"{owner}/Tiny-GGUF")
    assert resolve("lmstudio:two/tiny").path.parent.parent.name == "two"
    for name in ("lmstudio:tiny", "tiny", "lmstudio:", "lmstudio:../two/tiny", "lmstudio:a/b/c"):
        with pytest.raises(ModelNotFoundError):
            resolve(name)


def test_names_of_programs_are_no_paths() -> None:
    for program in PROGRAMS:
        assert program_of(f"{program.prefix}a/b/c.gguf") is program
        assert not is_path(f"{program.prefix}a/b/c.gguf")
        assert program_of(f"{program.prefix}//a/b") is None


def test_folders_that_lm_studio_was_moved_to(home: Path, model: Path) -> None:
    (home / ".lmstudio-home-pointer").write_text(f"{home / 'moved'}\n")
    for place, named in (("moved", home / "disk"), ("LM Studio", home / "older"), (".lmstudio", "relative")):
        (home / place).mkdir()
        (home / place / "settings.json").write_text(json.dumps({"downloadsFolder": str(named)}))
    (home / ".cache" / "lm-studio").mkdir(parents=True)
    (home / ".cache" / "lm-studio" / "settings.json").write_text("[" * 10**5)
    usual = [home / each / "models" for each in ("moved", ".lmstudio", ".cache/lm-studio")]
    assert {home / "disk", *usual} <= {*lm_studio_folders()} <= {home / "disk", home / "older", *usual}
    file = put(model, home / "disk" / REPOSITORY / "Q8_0" / "Tiny-Q8_0.gguf")
    assert found() == [(f"lmstudio:{REPOSITORY}:Q8_0", file)]


def test_files_that_lm_studio_does_not_list_are_found_by_their_paths(home: Path, model: Path) -> None:
    file = in_studio(model, home, "alone.gguf", ".")
    assert found() == [(str(file), file)]


# --- llama.cpp --------------------------------------------------------------------------------------------------------


def test_llama_cpp_keeps_models_as_the_hub_does(home: Path, model: Path) -> None:
    folder = home / "llama" / "models--owner--tiny-GGUF"
    file = put(model, folder / "snapshots" / ("c" * 40) / "deep" / "er" / "tiny-Q8_0.gguf")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("c" * 40)
    assert found() == [("llama.cpp:owner/tiny-GGUF:Q8_0", file)]
    assert resolve("owner/tiny-GGUF:Q8_0").path == file


def test_the_hubs_own_cache_keeps_its_names(home: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_CACHE", str(home / "hub"))
    assert llama_cpp_folders() == []


def manifest(home: Path, content: object, tag: str = "latest") -> None:
    (home / "llama").mkdir(exist_ok=True)
    (home / "llama" / f"manifest=owner=tiny-GGUF={tag}.json").write_text(json.dumps(content))


def test_early_versions_of_llama_cpp_kept_flat_files_with_manifests(home: Path, model: Path) -> None:
    manifest(home, {"ggufFile": {"rfilename": "deep/tiny-Q8_0.gguf"}})
    manifest(home, {"ggufFile": {"rfilename": "tiny-Q4_K_M-00001-of-00002.gguf"}}, "Q4_K_M")
    file = put(model, home / "llama" / "owner_tiny-GGUF_deep_tiny-Q8_0.gguf")
    parts = [put(model, home / "llama" / f"owner_tiny-GGUF_tiny-Q4_K_M-0000{n}-of-00002.gguf") for n in (1, 2)]
    name = "llama.cpp:owner/tiny-GGUF"
    assert [*files_elsewhere()] == [(f"{name}:Q8_0", file), (f"{name}:Q4_K_M", parts[0])]
    assert resolve("llama.cpp:owner/tiny-GGUF").path == parts[0]


@pytest.mark.parametrize(
    "content",
    [[], {}, {"ggufFile": None}, {"ggufFile": {"rfilename": "../../secret.gguf"}}, {"ggufFile": {"rfilename": 1}}],
)
def test_manifests_without_a_file_here_are_left_out(home: Path, model: Path, content: object) -> None:
    manifest(home, content)
    put(model, home / "secret.gguf")
    assert [*files_elsewhere()] == []


# --- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["lmstudio:publisher/tiny", "llama.cpp:owner/tiny"])
def test_files_are_not_deleted_and_models_not_downloaded(home: Path, model: Path, spec: str) -> None:
    in_studio(model, home, "tiny-Q8_0.gguf", "publisher/tiny")
    manifest(home, {"ggufFile": {"rfilename": "tiny-Q8_0.gguf"}})
    put(model, home / "llama" / "owner_tiny-GGUF_tiny-Q8_0.gguf")
    for name in (spec, str(resolve(spec).path)):
        with pytest.raises(UsageError, match="it belongs to "):
            plan_removal([name])
    with pytest.raises(ModelNotFoundError, match="downloads its models itself"):
        sources(spec)


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_a_link_to_a_file_of_another_program_can_be_deleted(home: Path, model: Path) -> None:
    link = home / "work" / "link.gguf"
    link.symlink_to(in_studio(model, home, "tiny-Q8_0.gguf"))
    assert [file.path for file in plan_removal([str(link)]).files] == [link]


def test_models_of_all_programs_are_offered_by_the_server_under_both_names(home: Path, model: Path) -> None:
    from edgespec.serve.offers import offers_here
    from edgespec.serve.pool import Offer
    from edgespec.settings import LoadSettings, Request

    in_studio(model, home, "tiny-Q8_0.gguf", "publisher/tiny")
    offers = offers_here({}, lambda name, spec: Offer(name, LoadSettings(spec), Request()))
    one, other = (offers[f"{prefix}publisher/tiny:Q8_0"] for prefix in ("lmstudio:", ""))
    assert one is other
    assert one.settings.model == "lmstudio:publisher/tiny:Q8_0"
