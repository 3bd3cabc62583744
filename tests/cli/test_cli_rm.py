"""`edgespec rm` of whole repositories, and of files that another program uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_program import Finished, edgespec_here
from filelock import FileLock

NAME = "owner/tiny-GGUF"
COMMITS = ("c" * 40, "d" * 40)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A repository with two models, one of them in another revision too, something else, and a download that was
    begun."""
    folder = tmp_path / "hub" / "models--owner--tiny-GGUF"
    for commit, names in zip(
        COMMITS, (["a-Q8_0.gguf", "deep/a-F16.gguf", "config.json"], ["a-Q8_0.gguf"]), strict=True
    ):
        for name in names:
            path = folder / "snapshots" / commit / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(name.encode() * 100)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMITS[0])
    (folder / "refs" / "v1").write_text(COMMITS[1])
    (folder / "blobs").mkdir()
    (folder / "blobs" / f"{'e' * 64}.incomplete").write_bytes(b"begun")
    return folder


def rm(home: Path, *args: str) -> Finished:
    return edgespec_here("rm", *args, home=home, HF_HUB_CACHE=str(home / "hub"))


@pytest.mark.parametrize("spec", [NAME, f"hf:{NAME}"])
def test_all_models_of_a_repository_go_and_nothing_else(tmp_path: Path, kept: Path, spec: str) -> None:
    done = rm(tmp_path, spec, "--all", "-y")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().count("a-Q8_0.gguf") == 2
    assert sorted(path.name for path in kept.rglob("*") if path.is_file()) == ["config.json", "main"]


def test_a_name_that_means_several_models_is_answered_with_them(tmp_path: Path, kept: Path) -> None:
    (kept / "blobs" / f"{'e' * 64}.incomplete").unlink()
    (kept / "snapshots" / COMMITS[0] / "x.gguf").write_bytes(b"x")
    done = rm(tmp_path, NAME, "-y")
    assert done.returncode == 3
    hint = done.stderr.decode().splitlines()[-1].strip()
    for spec in (f"hf:{NAME}:Q8_0", f"hf:{NAME}:F16", f"hf:{NAME}/x.gguf"):
        assert spec in hint
    assert hint.endswith(f"to delete all of them: edgespec rm --all {NAME}")


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        ([f"{NAME}:Q8_0", "--all"], 2, f"use {NAME}\n"),
        (["demo", "--all"], 2, "'demo' is not a repository"),
        (["./a.gguf", "--all"], 2, "'./a.gguf' is not a repository"),
        (["owner/none", "--all"], 3, "nothing of owner/none is on this machine"),
        ([NAME, "--all", "--unfinished"], 2, "cannot be combined"),
    ],
)
def test_what_cannot_be_meant_by_all_is_refused(
    tmp_path: Path, kept: Path, args: list[str], code: int, said: str
) -> None:
    done = rm(tmp_path, *args, "-y")
    assert (done.returncode, said in done.stderr.decode()) == (code, True), done.stderr
    assert len([path for path in kept.rglob("*") if path.is_file()]) == 7


def test_all_of_a_repository_stays_while_something_of_it_is_fetched(tmp_path: Path, kept: Path) -> None:
    lock = tmp_path / "hub" / ".locks" / kept.name / f"{'e' * 64}.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        done = rm(tmp_path, NAME, "--all", "-y")
    assert done.returncode == 1
    assert f"nothing of {NAME} was deleted: a download from it is running" in done.stderr.decode()
