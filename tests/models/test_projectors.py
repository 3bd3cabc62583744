"""The projector of a model is found where programs that download models put it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_gguf import Value, write_file, write_model
from tiny_projector import write_projector, write_seeing

from edgespec.gguf_file.header import read_header
from edgespec.models.hub.quants import ranked_projectors
from edgespec.models.names.projectors import projector_of
from edgespec.runtime.vision import projector_file


def found(model: Path) -> str | None:
    path = projector_of(read_header(model))
    return None if path is None else path.name


def test_it_is_in_the_folder_of_the_model(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", "llama")
    assert found(model) is None
    write_projector(tmp_path / "mmproj-m-Q8_0.gguf", "mlp")
    write_projector(tmp_path / "other_mmproj.gguf", "mlp")  # of a repository with another name
    assert found(model) == "mmproj-m-Q8_0.gguf"
    write_projector(tmp_path / "mmproj-m-F16.gguf", "mlp")
    assert found(model) == "mmproj-m-F16.gguf"


def test_names_of_llama_cpps_cache_begin_with_the_repository(tmp_path: Path) -> None:
    model = write_model(tmp_path / "owner_m-GGUF_m-Q4_0.gguf", "llama")
    write_projector(tmp_path / "owner_n-GGUF_mmproj-n.gguf", "mlp")
    write_projector(tmp_path / "owner_m-GGUF_mmproj-m.gguf", "mlp")
    assert found(model) == "owner_m-GGUF_mmproj-m.gguf"


def test_projectors_of_wider_models_are_passed_over(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", "llama")
    write_projector(tmp_path / "mmproj-big.gguf", "mlp", text_width=96)
    assert found(model) is None


@pytest.mark.parametrize(
    ("architecture", "kind", "fits"),
    [
        ("llama", "mlp", True),
        ("llama", "idefics3", True),
        ("llama", "gemma3", False),
        ("llama", "qwen2vl_merger", False),
        ("qwen2", "qwen2vl_merger", False),
        ("qwen2vl", "qwen2vl_merger", True),
        ("qwen2vl", "qwen2.5vl_merger", True),
        ("qwen2vl", "qwen3vl_merger", False),
        ("gemma3", "gemma3", True),
        ("gemma3", "gemma3nv", False),
        ("gemma3", "mlp", False),
        ("gemma3", "of a later llama.cpp", False),
        ("qwen3", "of a later llama.cpp", True),
    ],
)
def test_projectors_of_other_architectures_are_passed_over(
    tmp_path: Path, architecture: str, kind: str, fits: bool
) -> None:
    """Models of one width are common, and a projector of another one would only make noise of an image."""
    entries: dict[str, Value] = {"general.architecture": "clip", "clip.vision.projection_dim": 64}
    model = write_model(tmp_path / "m.gguf", architecture)
    for key in ("clip.projector_type", "clip.vision.projector_type"):
        write_file(tmp_path / "mmproj-m.gguf", entries | {key: kind}, {})
        assert found(model) == ("mmproj-m.gguf" if fits else None)


def test_of_several_the_choice_and_another_way_are_said(tmp_path: Path) -> None:
    model = write_seeing(tmp_path, "llama")
    notes: list[str] = []
    assert projector_file(None, read_header(model), notes.append) == tmp_path / "mmproj-F32.gguf"
    assert notes == []
    write_projector(tmp_path / "mmproj-F16.gguf", "mlp")
    write_projector(tmp_path / "mmproj-gemma-F16.gguf", "gemma3")
    assert projector_file(None, read_header(model), notes.append) == tmp_path / "mmproj-F16.gguf"
    assert notes == ["images are read with mmproj-F16.gguf; `mmproj` can name another projector: mmproj-F32.gguf"]
    for named in ("none", str(tmp_path / "mmproj-F32.gguf")):
        projector_file(named, read_header(model), notes.append)
    assert len(notes) == 1


def test_ollama_keeps_it_as_a_layer(tmp_path: Path) -> None:
    blobs, manifest = tmp_path / "blobs", tmp_path / "manifests/registry.ollama.ai/library/m/latest"
    blobs.mkdir()
    manifest.parent.mkdir(parents=True)
    digests = {"model": "a" * 64, "projector": "b" * 64}
    model = write_model(blobs / f"sha256-{digests['model']}", "llama")
    write_projector(blobs / f"sha256-{digests['projector']}", "mlp")
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}"}
        for kind, digest in digests.items()
    ]
    manifest.write_text(json.dumps({"layers": layers[:1]}))
    assert found(model) is None
    manifest.write_text(json.dumps({"layers": layers}))
    assert found(model) == f"sha256-{digests['projector']}"


def test_of_several_in_a_repository_the_one_in_16_bits_is_downloaded() -> None:
    names = ["m-Q4_K_M.gguf", "mmproj-m-f32.gguf", "mmproj-m-Q8_0.gguf", "mmproj-m-f16.gguf"]
    assert ranked_projectors(names) == ["mmproj-m-f16.gguf", "mmproj-m-Q8_0.gguf", "mmproj-m-f32.gguf"]
    assert ranked_projectors(names[:1]) == []
