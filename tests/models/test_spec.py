"""The meaning of model specs, and the messages for invalid ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgespec.errors import ModelNotFoundError
from edgespec.models.names.model_names import name_of, short_name
from edgespec.models.names.source import BUNDLED, HEADS, HubSpec, is_path
from edgespec.models.names.spec import NotFetchedError, ResolvedModel, resolve, sources


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with two model files."""
    for name in ("tiny-Q4_0.gguf", "tiny-Q8_0.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def hub_specs(spec: str) -> list[HubSpec]:
    return [source for source in sources(spec) if isinstance(source, HubSpec)]


def refusal(spec: str) -> str:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(spec)
    assert caught.value.exit_code == 3
    return str(caught.value)


@pytest.mark.skipif(not (BUNDLED / "target.gguf").is_file(), reason="the bundled pair has not been trained here")
def test_demo_is_the_bundled_pair() -> None:
    assert resolve("demo") == ResolvedModel(BUNDLED / "target.gguf", BUNDLED / "draft.gguf", "demo")
    assert resolve("demo:draft") == ResolvedModel(BUNDLED / "draft.gguf", None, "demo:draft")


def test_a_bundled_head_is_found_by_the_name_of_its_file() -> None:
    for path in HEADS.glob("*.gguf"):
        assert resolve(name_of(path)) == ResolvedModel(path, None, short_name(path))


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


def test_a_bare_name_is_answered_with_files_of_other_folders(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("home")
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "cache"))
    for file in (home / "models" / "My-7B-Q4_K_M.gguf", folder / "below" / "text.gguf", home / "models" / "text.gguf"):
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"GGUF")
    in_cache(home / "cache", "o/r", "cached-Q8_0.gguf")
    in_home = Path("~", "models", "My-7B-Q4_K_M.gguf")
    for spec in ("My-7B-Q4_K_M", "my-7b-q4_k_m.gguf", "My-7B-Q4_K_N", "My-7BQ4_K_M.gguf"):
        assert f"did you mean {in_home}?" in refusal(spec)
    assert f"did you mean {Path('below', 'text.gguf')} or {Path('~', 'models', 'text.gguf')}?" in refusal("text.gguf")
    assert "did you mean o/r:Q8_0?" in refusal("cached-Q8_0")
    assert "did you mean" not in refusal("./text.gguf")  # a path is never taken for a name
    assert resolve(str(in_home)).path == home / "models" / "My-7B-Q4_K_M.gguf"


def test_a_missing_folder_is_named() -> None:
    assert "there is no folder models" in refusal("models/phi.gguf").replace("\\", "/")


def test_a_misspelt_name_is_answered_with_the_name() -> None:
    assert "did you mean 'demo'?" in refusal("Demo")


@pytest.mark.parametrize(
    ("spec", "means"),
    [
        ("hf:o/r", HubSpec("o/r")),
        ("HF:o/r:q4_k_m", HubSpec("o/r", quant="Q4_K_M")),
        ("hf:o/r@v1.0:Q8_0", HubSpec("o/r", quant="Q8_0", revision="v1.0")),
        ("hf:o/r/x.gguf", HubSpec("o/r", "x.gguf")),
        ("hf:o/r@v1/deep/x.GGUF", HubSpec("o/r", "deep/x.GGUF", revision="v1")),
        ("hf:o/r/Q8_0/x-00001-of-00003.gguf", HubSpec("o/r", "Q8_0/x-00001-of-00003.gguf")),
        ("hf://o/r:Q5_K_S", HubSpec("o/r", quant="Q5_K_S")),
        ("hf.co/o/r", HubSpec("o/r")),
        ("huggingface.co/o/r:UD-Q4_K_XL", HubSpec("o/r", quant="UD-Q4_K_XL")),
        ("https://huggingface.co/o/r/", HubSpec("o/r")),
        ("https://huggingface.co/o/r/tree/main", HubSpec("o/r")),
        ("https://huggingface.co/o/r/blob/main/x.gguf", HubSpec("o/r", "x.gguf")),
        ("https://huggingface.co/o/r/resolve/v2/a/x.gguf?download=true", HubSpec("o/r", "a/x.gguf", revision="v2")),
        ("http://hf.co/o/r", HubSpec("o/r")),
        ("https://huggingface.co/o/r/blob/main/a%20b%2Bc.gguf", HubSpec("o/r", "a b+c.gguf")),
        ("https://huggingface.co/o/r/blob/main/x.gguf#L1", HubSpec("o/r", "x.gguf")),
        ("https://huggingface.co/o/r/blob/refs%2Fpr%2F1/x.gguf", HubSpec("o/r", "x.gguf", revision="refs/pr/1")),
        ("hf:o/r@refs%2Fpr%2F1:F16", HubSpec("o/r", quant="F16", revision="refs/pr/1")),
        ("hf:o/r@refs/x.gguf", HubSpec("o/r", "x.gguf", revision="refs")),
        ("o/r@a%2Fb%20c:q8_0", HubSpec("o/r", quant="Q8_0", revision="a/b c")),
        ("hf:o/r/blob/main/x%20y.gguf", HubSpec("o/r", "blob/main/x%20y.gguf")),
        ("hf:o/r/50%#?.gguf", HubSpec("o/r", "50%#?.gguf")),
        ("o/r", HubSpec("o/r")),
        ("o/r:Q8_0", HubSpec("o/r", quant="Q8_0")),
        ("o/r@main:Q8_0", HubSpec("o/r", quant="Q8_0")),
        ("o/r:fp16", HubSpec("o/r", quant="F16")),
        ("bartowski/Llama-3.2-1B-Instruct-GGUF", HubSpec("bartowski/Llama-3.2-1B-Instruct-GGUF")),
    ],
)
def test_repositories_of_the_hub(spec: str, means: HubSpec) -> None:
    assert hub_specs(spec) == [means]
    assert hub_specs(str(means)) == [means]
    assert refusal(spec) == f"model '{spec}' is not on this machine\n  download it: edgespec pull {spec}"


@pytest.mark.parametrize("spec", ["qwen2.5-7b", "Qwen2.5-7B:q8_0"])
def test_names_of_the_catalogue_bring_their_drafts(spec: str) -> None:
    target, *drafts = hub_specs(spec)
    assert target.repository == "Qwen/Qwen2.5-7B-Instruct-GGUF"
    assert target.quant == ("Q8_0" if ":" in spec else "Q4_K_M")
    assert drafts[0].repository == "Qwen/Qwen2.5-0.5B-Instruct-GGUF"
    why = f"it is hf:Qwen/Qwen2.5-7B-Instruct-GGUF:{target.quant}"
    assert refusal(spec) == f"model '{spec}' is not on this machine: {why}\n  download it: edgespec pull {spec}"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("hf:", "there is no repository of that name"),
        ("hf:owner", "there is no repository of that name"),
        ("hf:a b/c", "there is no repository of that name"),
        ("hf:../../etc", "there is no repository of that name"),
        ("hf:o/r/../../x.gguf", "cannot be a GGUF file in a repository"),
        ("hf:o/r//x.gguf", "cannot be a GGUF file in a repository"),
        ("hf:o/r/..\\x.gguf", "cannot be a GGUF file in a repository"),
        ("hf:o/r/C:x.gguf", "cannot be a GGUF file in a repository"),
        ("https://huggingface.co/o/r/blob/main/%2e%2e/x.gguf", "cannot be a GGUF file in a repository"),
        ("hf:o/r@..", "is not a valid revision"),
        ("hf:o/r@..%2F..%2Fx:Q8_0", "is not a valid revision"),
        ("hf:o/r@a%00b", "is not a valid revision"),
        ("hf:o/r@feature/x:Q8_0", "cannot be a GGUF file"),
        ("hf:o/r/x.safetensors", "cannot be a GGUF file"),
        ("a/b/c", "neither a file here nor a repository"),
        ("o/r:", "neither a file here nor a repository"),
        ("hf:o/r@main:", "there is no repository of that name"),
        ("o/r/x.gguf", "there is no folder o/r\n  did you mean hf:o/r/x.gguf?"),
        ("o/r@v1/deep/x.gguf", "did you mean hf:o/r@v1/deep/x.gguf?"),
        ("https://example.com/o/r/x.gguf", "only addresses of the hub are supported"),
        ("https://huggingface.co", "only addresses of the hub are supported"),
        ("ollama://library/x", "only addresses of the hub are supported"),
        ("file:///a/b%20c.gguf", "only addresses of the hub are supported"),
        ("qwen2.5-8b", "did you mean 'qwen2.5-"),
        ("smolm2", "did you mean 'smollm2' or 'smollm2-360m' or 'smollm2-135m'?"),
        ("smollm2-hydr", "did you mean 'smollm2-hydra' or 'smollm2'"),
        ("qwen2.5", "'edgespec ls --catalog' lists the names"),
        ("whisper", "'edgespec ls --catalog' lists names"),
        ("llama3.2:1b", "did you mean 'llama3.2-1b' or 'llama3.2-3b'"),
        ("llama3.2:3b-instruct-q4_K_M", "did you mean 'llama3.2-3b' or 'llama3.2-1b'"),
        ("deepseek-r1:7b", "did you mean 'deepseek-r1-qwen-7b' or"),
    ],
)
def test_what_can_be_no_model_is_said(spec: str, why: str) -> None:
    assert why in refusal(spec).replace("no folder o\\r", "no folder o/r")


def test_a_path_that_is_there_wins_over_a_repository(folder: Path) -> None:
    (folder / "o").mkdir()
    (folder / "o" / "r").write_bytes(b"GGUF")
    assert resolve("o/r").path == Path("o/r")


def in_cache(cache: Path, repository: str, *names: str, revision: str = "main") -> Path:
    """Write empty files in the layout of huggingface_hub's cache."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    commit = "c" * 40
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs" / revision).write_text(commit)
    for name in names:
        file = folder / "snapshots" / commit / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"GGUF")
    return folder / "snapshots" / commit


def test_what_was_fetched_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "cache"))
    here = in_cache(
        folder / "cache", "o/r", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-F16.gguf", "deep/s-Q2_K-00001-of-00002.gguf"
    )
    assert resolve("o/r").path == here / "m-Q4_K_M.gguf"
    assert resolve("hf:o/r:q8_0").path == here / "m-Q8_0.gguf"
    assert resolve("hf:o/r/m-Q8_0.gguf").name == "m-Q8_0.gguf"
    assert resolve("hf:o/r@" + "c" * 40).path == here / "m-Q4_K_M.gguf"
    for missing in ("o/r:Q2_K", "o/r:Q5_0", "hf:o/r@v2", "hf:o/other"):
        with pytest.raises(NotFetchedError):
            resolve(missing)
    in_cache(folder / "cache", "o/r", "deep/s-Q2_K-00002-of-00002.gguf")
    for whole in ("o/r:Q2_K", "hf:o/r/deep/s-Q2_K-00002-of-00002.gguf"):
        assert resolve(whole).path == here / "deep" / "s-Q2_K-00001-of-00002.gguf"


def test_a_branch_leads_nowhere_but_to_a_commit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "cache"))
    here = in_cache(folder / "cache", "o/r", "m-Q8_0.gguf")
    in_cache(folder / "cache", "o/other", "m-Q2_K.gguf")
    assert resolve("o/other").path.name == "m-Q2_K.gguf"
    (folder / "cache" / "models--o--other" / "refs" / "main").write_text(f"../../models--o--r/snapshots/{here.name}")
    with pytest.raises(NotFetchedError):
        resolve("o/other")


def test_a_draft_of_the_catalogue_comes_along_if_it_is_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "cache"))
    target, *drafts = hub_specs("qwen2.5-7b")
    in_cache(folder / "cache", target.repository, "a-q4_k_m.gguf")
    assert resolve("qwen2.5-7b").default_draft is None
    assert resolve("Qwen2.5-7B:q4_k_m").missing_draft == "qwen2.5-0.5b"
    here = in_cache(folder / "cache", drafts[1].repository, f"b-{drafts[1].quant}.gguf")
    assert resolve("qwen2.5-7b").default_draft == here / f"b-{drafts[1].quant}.gguf"
    assert resolve("qwen2.5-7b").missing_draft == ""


def test_what_has_no_draft_misses_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "cache"))
    here = in_cache(folder / "cache", hub_specs("qwen2.5-0.5b")[0].repository, "a-q8_0.gguf")
    for spec in ("qwen2.5-0.5b", "tiny-Q8_0.gguf", str(here / "a-q8_0.gguf")):
        assert resolve(spec).missing_draft == ""


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
        ("https://example.com/x.gguf", False), ("file:///x.gguf", False),
    ],
)  # fmt: skip
def test_what_can_only_mean_a_file(spec: str, means_a_file: bool) -> None:
    assert is_path(spec) is means_a_file
