"""Setting up on a machine without a compiler: what is said, and that a compiler which was downloaded goes again."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import bootstrap
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
        llama_wheel([sys.executable, "-c", "raise SystemExit('nothing may be compiled')"], BARE, "cpu", keep=False)
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
