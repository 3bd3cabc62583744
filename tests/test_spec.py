"""What model specs mean, and what is said about those that mean nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgespec.errors import ModelNotFoundError
from edgespec.models.spec import BUNDLED, ResolvedModel, is_path, resolve


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two model files, to stand in."""
    for name in ("tiny-Q4_0.gguf", "tiny-Q8_0.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(spec: str) -> str:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(spec)
    assert caught.value.exit_code == 3
    return str(caught.value)


@pytest.mark.skipif(not (BUNDLED / "target.gguf").is_file(), reason="the bundled pair has not been trained here")
def test_demo_is_the_bundled_pair() -> None:
    assert resolve("demo") == ResolvedModel(BUNDLED / "target.gguf", BUNDLED / "draft.gguf", "demo")
    assert resolve("demo:draft") == ResolvedModel(BUNDLED / "draft.gguf", None, "demo:draft")


def test_a_missing_bundled_pair_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr("edgespec.models.spec.BUNDLED", folder / "nowhere")
    assert "target.gguf is missing" in refusal("demo")


def test_a_path_is_a_model_without_a_draft(folder: Path) -> None:
    for spec in ("tiny-Q8_0.gguf", "./tiny-Q8_0.gguf", str(folder / "tiny-Q8_0.gguf")):
        found = resolve(spec)
        assert found.path.samefile(folder / "tiny-Q8_0.gguf")
        assert (found.default_draft, found.name) == (None, "tiny-Q8_0.gguf")


def test_the_home_folder_may_be_written_as_a_tilde(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    assert resolve("~/tiny-Q8_0.gguf").path == folder / "tiny-Q8_0.gguf"


def test_folders_and_files_of_other_names_are_left_to_the_header_check(folder: Path) -> None:
    (folder / "notes").write_text("no model")
    assert resolve(".").path.is_dir()
    assert resolve("notes").path.is_file()


def test_a_misspelt_file_name_is_answered_with_its_neighbours() -> None:
    message = refusal("./tiny-Q8_O.gguf")
    assert "'./tiny-Q8_O.gguf' was not found" in message
    assert "did you mean ./tiny-Q8_0.gguf" in message


def test_a_forgotten_suffix_is_answered_with_the_file() -> None:
    assert "did you mean tiny-Q8_0.gguf" in refusal("tiny-Q8_0")


def test_a_name_like_no_other_is_answered_with_what_is_there() -> None:
    assert "GGUF files there: tiny-Q4_0.gguf, tiny-Q8_0.gguf" in refusal("./phi.gguf")


def test_a_missing_folder_is_named() -> None:
    assert "there is no folder models" in refusal("models/phi.gguf").replace("\\", "/")


def test_a_misspelt_name_is_answered_with_the_name() -> None:
    assert "did you mean 'demo'?" in refusal("Demo")


@pytest.mark.parametrize(
    "spec",
    ["hf:owner/repo", "hf:owner/repo:Q4_K_M", "hf:owner/repo/file.gguf", "hf://owner/repo", "hf.co/owner/repo",
     "https://huggingface.co/owner/repo", "owner/repo:Q4_K_M", "owner/repo", "qwen2.5-7b"],
)  # fmt: skip
def test_models_on_the_hub_are_refused_for_now(spec: str) -> None:
    assert "only local files are supported so far" in refusal(spec)


@pytest.mark.parametrize("spec", ["", "a\0b.gguf", "x" * 5000, "~nobody-of-that-name/x.gguf"])
def test_impossible_names_are_refused_like_any_other(spec: str) -> None:
    refusal(spec)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a folder that may not be entered")
def test_a_folder_that_may_not_be_entered_is_said_to_be_so(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o000)
    assert "Permission denied" in refusal("closed/x.gguf")


@pytest.mark.parametrize(
    ("spec", "means_a_file"),
    [
        ("./x", True), ("../x", True), ("/abs/x", True), ("~/x", True), ("x.gguf", True), ("a/b/x.GGUF", True),
        (r"C:\x", True), ("c:/x", True), (r".\x", True), (r"\\server\x", True),
        ("demo", False), ("qwen2.5-7b", False), ("owner/repo", False), ("owner/repo:Q4_K_M", False),
        ("hf:owner/repo/x.gguf", False), ("https://huggingface.co/o/r/x.gguf", False),
    ],
)  # fmt: skip
def test_what_can_only_mean_a_file(spec: str, means_a_file: bool) -> None:
    assert is_path(spec) is means_a_file
