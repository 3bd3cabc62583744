"""Setting up without a compiler, and when `.venv` is made again."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import bootstrap
import gpu_tools
import llama_build
import pytest
from bootstrap import llama_wheel
from llama_build import Compiler, Machine
from long_commands import CommandError

ADDITIONS = "4dd616837b55"  # the digest of scripts/llama in the version that kernels.h names
REQUIRED = f"llama-cpp-python=={bootstrap.llama_version()}"
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
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder of wheels. Nothing is installed, and there is no release page."""
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    monkeypatch.setattr(bootstrap, "BUILD", tmp_path / "llama-build")
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    monkeypatch.setattr(bootstrap, "RELEASES", f"{tmp_path}/page-")
    monkeypatch.setattr(bootstrap, "_installed_llama", lambda: "")
    for name in ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CMAKE_ARGS", "EDGESPEC_LLAMA_WHEEL"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "wheels"
    folder.mkdir()
    return folder


def made_wheel(folder: Path, version: str = "", tag: str = "any", library: str = "") -> Path:
    """Write a wheel of llama-cpp-python without files, or with one library."""
    version = version or llama_build.library_version(bootstrap.llama_version())
    path = folder / f"llama_cpp_python-{version}-py3-none-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        info = f"llama_cpp_python-{version}.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-{tag}\n")
        archive.writestr(f"{info}/RECORD", "")
        if library:
            archive.writestr(f"llama_cpp/lib/{library}", "")
    return path


PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def test_a_prebuilt_wheel_in_a_folder_is_taken(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = made_wheel(wheels)
    monkeypatch.setenv("EDGESPEC_LLAMA_WHEEL", str(wheels))
    name, found = llama_wheel(PIP, BARE, "cpu", keep=True)
    assert name.endswith("(prebuilt)")
    assert found is not None
    assert found.read_bytes() == wheel.read_bytes()
    bootstrap.BUILD.write_text(name)
    again = llama_wheel(PIP, BARE, "cpu", keep=True)[1]
    assert again is not None  # the wheel in the folder may have changed
    monkeypatch.delenv("EDGESPEC_LLAMA_WHEEL")
    assert llama_wheel(PIP, BARE, "cpu", keep=True) == (name, None)


def test_a_prebuilt_wheel_replaces_a_compiled_build_if_the_user_wants_it(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = bootstrap.llama_version()
    compiled = llama_build.cache_name(version, BARE, "cpu", dict(os.environ))
    bootstrap.BUILD.write_text(compiled)
    assert llama_wheel(PIP, BARE, "cpu", keep=True) == (compiled, None)
    made_wheel(wheels)
    monkeypatch.setenv("EDGESPEC_LLAMA_WHEEL", wheels.name)
    monkeypatch.chdir(wheels.parent)
    assert llama_wheel(PIP, BARE, "cpu", keep=True)[0].endswith("(prebuilt)")


def test_a_build_for_the_cpu_of_apple_silicon_is_not_replaced_by_the_wheel_for_metal(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wheels.parent / "dist").mkdir()
    made_wheel(wheels.parent / "dist")
    monkeypatch.setattr(bootstrap, "ROOT", wheels.parent)
    monkeypatch.setattr(bootstrap, "project", lambda: {"dependencies": [REQUIRED], "version": "1"})
    mac = Machine("Darwin", "arm64", "Apple M1")
    assert llama_wheel(PIP, mac, "metal", keep=True)[0].endswith("(prebuilt)")
    with pytest.raises(CommandError, match="no C\\+\\+ compiler was found"):
        llama_wheel(PIP, mac, "cpu", keep=True)


@pytest.mark.parametrize(
    ("version", "tag"), [("0.0.1+edgespec.2", "any"), ("", "win_amd64"), ("", "manylinux_2_17_s390x")]
)
def test_a_folder_without_a_fitting_wheel_is_an_error(
    wheels: Path, version: str, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_wheel(wheels, version, tag)
    monkeypatch.setenv("EDGESPEC_LLAMA_WHEEL", str(wheels))
    with pytest.raises(CommandError, match=r"is not a folder or web page with llama-cpp-python==.* for this system"):
        llama_wheel(PIP, BARE, "cpu", keep=True)


def test_a_wheel_of_another_version_or_a_part_of_one_is_refused(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = made_wheel(wheels)
    part.write_bytes(part.read_bytes()[:100])
    for wheel, why in (
        (made_wheel(wheels, "0.0.1"), "this is another version"),
        (part, "is incomplete"),
        (wheels / part.name.replace("any", "none"), "there is no file"),
    ):
        monkeypatch.setenv("EDGESPEC_LLAMA_WHEEL", str(wheel))
        with pytest.raises(CommandError, match=why):
            llama_wheel(PIP, BARE, "cpu", keep=True)


def test_the_users_own_folder_is_used_also_with_flags_or_a_backend(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_wheel(wheels)
    monkeypatch.setenv("EDGESPEC_LLAMA_WHEEL", str(wheels))
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=on")
    assert llama_wheel(PIP, BARE, "cuda", keep=False)[0].endswith("(prebuilt)")


@pytest.mark.parametrize("variable", ["CMAKE_ARGS", "EDGESPEC_LLAMA_WHEEL"])
def test_who_asks_for_a_build_gets_no_prebuilt_wheel(
    wheels: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wheels.parent / "dist").mkdir()
    wheel = made_wheel(wheels.parent / "dist")
    monkeypatch.setattr(bootstrap, "ROOT", wheels.parent)
    monkeypatch.setattr(bootstrap, "project", lambda: {"dependencies": [REQUIRED], "version": "1"})
    found = llama_wheel(PIP, BARE, "cpu", keep=True)[1]
    assert found is not None
    assert found.name == wheel.name
    monkeypatch.setenv(variable, "compile")
    with pytest.raises(CommandError, match="no C\\+\\+ compiler was found"):
        llama_wheel(PIP, BARE, "cpu", keep=True)


def test_a_prebuilt_wheel_is_used_for_vulkan_if_it_has_that_backend(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (wheels.parent / "dist").mkdir()
    monkeypatch.setattr(bootstrap, "ROOT", wheels.parent)
    monkeypatch.setattr(bootstrap, "project", lambda: {"dependencies": [REQUIRED], "version": "1"})
    made_wheel(wheels.parent / "dist")
    bootstrap.BUILD.write_text(llama_wheel(PIP, BARE, "cpu", keep=True)[0])
    with pytest.raises(CommandError, match="no C\\+\\+ compiler was found"):
        llama_wheel(PIP, BARE, "vulkan", keep=False)
    made_wheel(wheels.parent / "dist", library="libggml-vulkan.so")
    name, found = llama_wheel(PIP, BARE, "vulkan", keep=False)
    assert name.endswith("(prebuilt)")
    assert found is not None
    bootstrap.BUILD.write_text(name)
    assert llama_wheel(PIP, BARE, "vulkan", keep=True) == (name, None)
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_VULKAN_VALIDATE=ON")
    with pytest.raises(CommandError, match="no C\\+\\+ compiler was found"):
        llama_wheel(PIP, BARE, "vulkan", keep=False)


def test_nothing_is_compiled_if_a_part_of_the_backend_is_missing(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(machine: Machine, backend: str, _environ: object) -> None:
        raise CommandError(f"{backend} needs glslc, with {machine.compiler}")

    monkeypatch.setattr(gpu_tools, "check", fail)
    monkeypatch.setenv("EDGESPEC_LLAMA_WHEEL", "compile")
    pip = [sys.executable, "-c", "raise SystemExit('nothing may be compiled')"]
    machine = BARE._replace(compiler=Compiler("gcc", (14, 2)))
    with pytest.raises(CommandError, match="vulkan needs glslc"):
        llama_wheel(pip, machine, "vulkan", keep=False)


PACKAGES = """
import pathlib, sys
assert sys.argv[1] == "install" and sys.argv[-1].startswith("cuda-toolkit[nvcc,"), sys.argv
root = pathlib.Path(sys.argv[sys.argv.index("--target") + 1], "nvidia/cu13")
(root / "bin").mkdir(parents=True)
(root / "bin/nvcc").touch()
"""


def test_the_cuda_toolkit_is_installed_once_and_used_for_the_gpus_here(
    wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, environs = list[Machine](), list[dict[str, str]]()
    monkeypatch.setattr(gpu_tools, "check", lambda machine, *_arguments: checked.append(machine))
    monkeypatch.setattr(gpu_tools, "complete_toolkit", lambda root, _compiler: (root / "complete").touch())
    run = bootstrap.run

    def compiling(title: str, command: list[str], environ: dict[str, str] | None = None, hint: str = "") -> None:
        if title != "compiling llama.cpp":
            return run(title, command)
        environs.append(environ or {})
        raise CommandError(f"stop here\n{hint}")

    monkeypatch.setattr(bootstrap, "run", compiling)
    machine = BARE._replace(compiler=Compiler("gcc", (14, 2)), gpus="L4", capabilities="89", driver="580.65")
    for pip in ([sys.executable, "-c", PACKAGES], [sys.executable, "-c", "raise SystemExit('it is installed')"]):
        with pytest.raises(CommandError, match="stop here\nThe CUDA toolkit"):
            llama_wheel(pip, machine, "cuda", keep=False)
    nvcc = wheels.parent / f"cache/cuda-{gpu_tools.CUDA_VERSION}/bin/nvcc"
    assert [machine.nvcc for machine in checked] == [str(nvcc)] * 2
    assert (nvcc.parent.parent / "complete").exists()
    assert environs[1]["CUDACXX"] == str(nvcc)
    assert environs[1]["LDFLAGS"] == f"-Wl,-rpath,{nvcc.parent.parent / 'lib'}"
    assert "-DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES='89'" in environs[1]["CMAKE_ARGS"]


def test_each_change_of_the_additions_has_a_version() -> None:
    """A wheel of another version of these files must not be taken for this one."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(llama_build.ADDITIONS.iterdir()))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    assert (llama_build.library_version(""), digest) == ("+edgespec.7", ADDITIONS), "raise EDGESPEC_VERSION"


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


@pytest.mark.skipif(sys.platform == "win32", reason="scripts/venv.sh")
def test_a_chosen_python_that_is_too_old_or_missing_is_an_error(made: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3.8"
    old.write_text(f"#!{sys.executable}\nimport sys\nsys.version_info = (3, 8)\nexec(sys.argv[2])\n")
    old.chmod(0o755)
    script = f'root={made}; . "{bootstrap.__file__.removesuffix("bootstrap.py")}venv.sh"; run_python -c "print(1)"'
    for python, said in ((str(old), "is not a Python 3.11"), ("/none", "is not a Python 3.11"), (sys.executable, "")):
        environ = {**os.environ, "EDGESPEC_PYTHON": python}
        done = subprocess.run(["sh", "-c", script], env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == ((1, "") if said else (0, "1\n"))
        assert said in done.stderr


def is_ready() -> bool:
    return bootstrap.is_ready(os.environ.get("EDGESPEC_BACKEND", ""), False)
