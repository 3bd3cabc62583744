"""Setting up on a machine without a compiler: what is said, and that a compiler which was downloaded goes again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bootstrap
import llama_build
import pytest
from bootstrap import building_environment, llama_wheel
from llama_build import ZIG, Compiler, Machine
from supervised import CommandError

BARE = Machine("Linux", "x86_64", "flags : avx2")
WITH_ZIG = BARE._replace(compiler=Compiler("zig", (0, 17)))
FAKE_PIP = """
import sys
from pathlib import Path
assert sys.argv[1] == "install", sys.argv
target = Path(sys.argv[sys.argv.index("--target") + 1])
(target / "ziglang").mkdir(parents=True)
(target / "ziglang" / "zig").write_text(sys.argv[-1])
"""


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "LOG", tmp_path / "build.log")


@pytest.fixture
def pip(tmp_path: Path) -> list[str]:
    script = tmp_path / "pip.py"
    script.write_text(FAKE_PIP)
    return [sys.executable, str(script)]


def test_without_a_compiler_the_command_that_does_without_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    monkeypatch.setattr(bootstrap, "BUILD", tmp_path / "llama-build")
    for name in ("CC", "CXX", "CMAKE_ARGS", "EDGESPEC_LLAMA_WHEEL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(CommandError) as caught:
        llama_wheel([sys.executable, "-c", "raise SystemExit('nothing may be compiled')"], BARE, "cpu", {}, keep=False)
    assert "no C++ compiler was found" in str(caught.value)
    assert "EDGESPEC_COMPILER=zig" in str(caught.value)


def test_zig_is_there_while_it_compiles_and_gone_afterwards(tmp_path: Path, pip: list[str]) -> None:
    package = tmp_path / "build.zig"
    package.mkdir()
    (package / "left by a run that was killed").touch()
    with building_environment(pip, WITH_ZIG, {"LANG": "C"}, package) as environ:
        assert (package / "ziglang" / "zig").read_text() == f"ziglang=={ZIG}"
        assert (package / "ziglang" / "zig").as_posix() in environ["CMAKE_ARGS"]
        assert environ["LANG"] == "C"
        assert len(list(package.iterdir())) == 1
    assert not package.exists()


def test_zig_goes_when_the_build_fails_too(tmp_path: Path, pip: list[str]) -> None:
    with (
        pytest.raises(CommandError, match="no room"),
        building_environment(pip, WITH_ZIG, {}, tmp_path / "build.zig"),
    ):
        raise CommandError("no room")
    assert not (tmp_path / "build.zig").exists()


def test_a_compiler_of_the_system_needs_nothing(tmp_path: Path) -> None:
    environ: Mapping[str, str] = os.environ
    with building_environment([], BARE._replace(compiler=Compiler("gcc", (14, 1))), environ, tmp_path / "zig") as same:
        assert same is environ


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project whose `.venv` is ready."""
    for name in ("EDGESPEC_BACKEND", "EDGESPEC_COMPILER", "EDGESPEC_RPC"):
        monkeypatch.delenv(name, raising=False)
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
    bootstrap.stamp({"backend": "cpu", "compiler": "system", "rpc": "1"}, dev=False)
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


def choose_another_compiler(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_COMPILER", "zig")


def choose_another_backend(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_BACKEND", "cuda")


def choose_no_rpc(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_RPC", "0")


CHANGES = [
    change_pyproject,
    change_kernels,
    add_kernels,
    choose_another_compiler,
    choose_another_backend,
    choose_no_rpc,
]


@pytest.mark.skipif(sys.platform == "win32", reason="scripts/venv.sh")
@pytest.mark.parametrize("change", CHANGES)
def test_what_it_was_made_from_makes_it_again(made: Path, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    assert (is_ready(), is_ready_by_shell(made)) == (True, True)
    change(made, monkeypatch)
    assert (is_ready(), is_ready_by_shell(made)) == (False, False)


def is_ready() -> bool:
    choices = {name: os.environ.get(f"EDGESPEC_{name.upper()}", "") for name in ("backend", "compiler", "rpc")}
    return bootstrap.is_ready(choices, False)
