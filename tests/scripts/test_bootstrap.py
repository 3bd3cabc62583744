"""Setting up without a compiler, and when `.venv` is made again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import bootstrap
import llama_build
import pytest
from bootstrap import CommandError, llama_wheel
from llama_build import Machine

BARE = Machine("Linux", "x86_64", "flags : avx2")


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "LOG", tmp_path / "build.log")


def test_without_a_compiler_the_error_says_how_to_install_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    monkeypatch.setattr(bootstrap, "BUILD", tmp_path / "llama-build")
    for name in ("CC", "CXX", "CMAKE_ARGS", "EDGESPEC_LLAMA_WHEEL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(CommandError) as caught:
        llama_wheel([sys.executable, "-c", "raise SystemExit('nothing may be compiled')"], BARE, "cpu", keep=False)
    assert "no C++ compiler was found" in str(caught.value)
    assert "apt install g++" in str(caught.value)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a project whose `.venv` is ready."""
    monkeypatch.delenv("EDGESPEC_BACKEND", raising=False)
    venv, llama = tmp_path / ".venv", tmp_path / "scripts" / "llama"
    places = {"ROOT": tmp_path, "VENV": venv, "STAMP": venv / "installed", "PYTHON": venv / "bin" / "python"}
    for name, place in places.items():
        monkeypatch.setattr(bootstrap, name, place)
    monkeypatch.setattr(llama_build, "ADDITIONS", llama)
    llama.mkdir(parents=True)
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch(mode=0o755)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (llama / "kernels.c").write_text("int bounds;\n")
    bootstrap.stamp("cpu", dev=False)
    return tmp_path


def is_ready_by_shell(root: Path) -> bool:
    script = f'root={root}; . "{bootstrap.__file__.removesuffix("bootstrap.py")}venv.sh"; venv_is_ready'
    return subprocess.run(["sh", "-c", script], check=False).returncode == 0


def change_pyproject(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "pyproject.toml").write_text("[project]\nname='x'\n")


def change_kernels(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "scripts" / "llama" / "kernels.c").write_text("int other_bounds;\n")


def add_kernels(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "scripts" / "llama" / "more.c").touch()


def choose_another_backend(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_BACKEND", "cuda")


CHANGES = [
    change_pyproject,
    change_kernels,
    add_kernels,
    choose_another_backend,
]


@pytest.mark.skipif(sys.platform == "win32", reason="scripts/venv.sh")
@pytest.mark.parametrize("change", CHANGES)
def test_what_it_was_made_from_makes_it_again(made: Path, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    assert (is_ready(), is_ready_by_shell(made)) == (True, True)
    change(made, monkeypatch)
    assert (is_ready(), is_ready_by_shell(made)) == (False, False)


def is_ready() -> bool:
    return bootstrap.is_ready(os.environ.get("EDGESPEC_BACKEND", ""), False)
