"""The models of Ollama: their names, and that their files are only read."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest
from tiny_gguf import write_model

from edgespec.errors import ModelNotFoundError, UsageError
from edgespec.models.hub.removal import plan_removal
from edgespec.models.listing import rows_to_download
from edgespec.models.names import ollama
from edgespec.models.names.local import local_models
from edgespec.models.names.model_names import known_models, known_names, name_of
from edgespec.models.names.spec import resolve, sources

LIBRARY = "registry.ollama.ai/library"
NO_COLONS = pytest.mark.skipif(sys.platform == "win32", reason="names of files there have no colon")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "ollama"
    monkeypatch.setenv("OLLAMA_MODELS", str(folder))
    return folder


def add(folder: Path, *places: str, architecture: str = "llama", mark: str = "-") -> Path:
    """Store a model as Ollama does, under these places of manifests, and return its file."""
    written = folder.parent / "written.gguf"
    write_model(written, architecture=architecture)
    digest = hashlib.sha256(written.read_bytes()).hexdigest()
    file = folder / "blobs" / f"sha256{mark}{digest}"
    file.parent.mkdir(parents=True, exist_ok=True)
    written.rename(file)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": f"sha256:{'0' * 64}"},
        {"mediaType": ollama.WEIGHTS, "digest": f"sha256:{digest}", "size": file.stat().st_size},
    ]
    for place in places:
        write(folder, place, {"schemaVersion": 2, "layers": layers})
    return file


def write(folder: Path, place: str, content: object) -> None:
    manifest = folder / "manifests" / place
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("place", "spec"),
    [
        (f"{LIBRARY}/llama3.2/1b", "ollama:llama3.2:1b"),
        ("registry.ollama.ai/somebody/model/latest", "ollama:somebody/model:latest"),
        ("hf.co/owner/repo-GGUF/Q4_K_M", "ollama:hf.co/owner/repo-GGUF:Q4_K_M"),
        pytest.param("localhost:5000/owner/model/1b", "ollama:localhost:5000/owner/model:1b", marks=NO_COLONS),
    ],
)
def test_names_are_those_of_ollama(folder: Path, place: str, spec: str) -> None:
    file = add(folder, place)
    assert [*ollama.files()] == [(spec.removeprefix("ollama:"), file)]
    assert (resolve(spec).path, resolve(spec).name) == (file, spec)
    assert resolve(str(file)).name == name_of(file) == spec
    assert spec in known_names()
    assert [model.spec for model in local_models() if model.path == file] == [spec]


def test_the_prefix_and_the_usual_tag_can_be_left_out(folder: Path) -> None:
    file = add(folder, f"{LIBRARY}/some-model/latest", f"{LIBRARY}/smollm2/135m")
    assert resolve("ollama:some-model").path == resolve("some-model").path == file
    assert resolve("smollm2:135m").path == file  # the catalogue has no such quantisation


def test_a_file_with_two_names_is_listed_once(folder: Path) -> None:
    file = add(folder, f"{LIBRARY}/a/latest", f"{LIBRARY}/a/1b")
    assert len([model for model in local_models() if model.path == file]) == 1
    assert len([*ollama.files()]) == 2


def test_each_manifest_is_read_once_however_many_there_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        add(folder, f"{LIBRARY}/model{number}/latest", architecture=("llama", "qwen2", "gemma", "phi2")[number])
    read, weights = list[Path](), ollama._weights

    def noting(folder: Path, manifest: Path) -> Path | None:
        read.append(manifest)
        return weights(folder, manifest)

    monkeypatch.setattr(ollama, "_weights", noting)
    names = [name_of(model.path, model.spec) for model in local_models()]
    assert [name for name in names if "model" in name] == [f"ollama:model{number}:latest" for number in range(4)]
    assert len(read) == 4


def test_a_model_called_as_one_of_the_catalogue_is_not_offered_for_download(folder: Path) -> None:
    file = add(folder, f"{LIBRARY}/qwen3-8b/latest")
    assert resolve("qwen3-8b").path == file
    assert ("qwen3-8b", file) in known_models()
    assert "qwen3-8b" not in [row.spec for row in rows_to_download()]


@NO_COLONS
def test_files_of_early_versions_are_found(folder: Path) -> None:
    file = add(folder, f"{LIBRARY}/a/latest", mark=":")
    assert resolve("ollama:a").path == file


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"layers": None},
        {"layers": [{"mediaType": ollama.WEIGHTS}]},
        {"layers": [{"mediaType": ollama.WEIGHTS, "digest": "sha256:../../secret"}]},
        {"layers": [{"mediaType": ollama.WEIGHTS, "digest": f"sha256:{'0' * 64}"}]},  # there is no such file
        {"layers": [{"mediaType": ollama.WEIGHTS, "digest": f"sha256:{n * 64}"} for n in "01"]},
        [[]] * 10**6,  # too large
    ],
)
def test_manifests_without_a_file_of_weights_are_left_out(folder: Path, content: object) -> None:
    write(folder, f"{LIBRARY}/bad/latest", content)
    assert [*ollama.files()] == []
    with pytest.raises(ModelNotFoundError, match="no models of Ollama were found"):
        resolve("ollama:bad")


@pytest.mark.parametrize("name", ["../../x:y", "a/b/c/d/e", "a:../b", "", "/a"])
def test_names_stay_in_the_folder(folder: Path, name: str) -> None:
    add(folder, f"{LIBRARY}/a/latest")
    with pytest.raises(ModelNotFoundError, match="Ollama has ollama:a:latest"):
        resolve(f"ollama:{name}")


def test_a_name_with_an_owner_needs_no_prefix_if_the_hub_has_no_such_model_here(folder: Path) -> None:
    file = add(folder, "registry.ollama.ai/somebody/model/1b")
    assert resolve("somebody/model:1b").path == file


def test_models_with_an_adapter_are_left_out(folder: Path) -> None:
    add(folder, f"{LIBRARY}/a/latest")
    manifest = folder / "manifests" / LIBRARY / "a" / "latest"
    content = json.loads(manifest.read_text())
    content["layers"].append({"mediaType": ollama.ADAPTER, "digest": f"sha256:{'0' * 64}"})
    manifest.write_text(json.dumps(content))
    assert [*ollama.files()] == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all folders")
def test_an_unreadable_folder_is_left_out(folder: Path) -> None:
    add(folder, f"{LIBRARY}/a/latest")
    folder.chmod(0)
    try:
        assert [*ollama.files()] == []
        assert ollama.find("a") is None
    finally:
        folder.chmod(0o700)


def test_files_are_not_deleted(folder: Path) -> None:
    file = add(folder, f"{LIBRARY}/a/latest")
    for spec in ("ollama:a", str(file)):
        with pytest.raises(UsageError, match="it belongs to Ollama") as caught:
            plan_removal([spec])
        assert caught.value.hint == "ollama rm a:latest"


def test_models_of_ollama_are_not_downloaded() -> None:
    with pytest.raises(ModelNotFoundError, match="Ollama downloads its models itself"):
        sources("ollama:a")
