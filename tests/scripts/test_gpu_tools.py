"""What a build for a GPU needs is checked before anything is compiled. The compilers are small scripts."""

from __future__ import annotations

import sys
from pathlib import Path

import gpu_tools
import pytest
from llama_build import Machine
from long_commands import CommandError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="scripts of sh stand in for the compilers")

GPU = Machine("Linux", "x86_64", "flags : avx2", gpus="NVIDIA L4", capabilities="89", driver="580.65.06")
OLD_GLSLC = "echo \"error: '#extension' : extension not supported: GL_KHR_cooperative_matrix\"; exit 1"
PRESENT = """version: (((uint32_t)(0) << 29U) | ((uint32_t)(1) << 22U) | ((uint32_t)(4) << 12U) | (uint32_t)(309))
# 1 "/sdk/include/vulkan/vulkan_core.h" 1 3 4
# 1 "/usr/include/spirv/unified1/spirv.hpp" 1"""


def program(path: Path, script: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def compiler(folder: Path, printed: str, links: bool = True) -> list[str]:
    """Return a C++ compiler whose preprocessor prints `printed`, and that finds Vulkan's loader or does not."""
    (folder / "printed").write_text(printed)
    script = f'case "$*" in *-lvulkan*) exit {0 if links else 1};; esac; cat {folder}/printed'
    return [program(folder / "c++", script)]


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the environment of a Debian whose only program is a glslc that works."""
    program(tmp_path / "bin/glslc", "echo shaderc 2025.2")
    monkeypatch.setattr(gpu_tools, "read", lambda _path: "ID=linuxmint\nID_LIKE='ubuntu debian'")
    return {"PATH": str(tmp_path / "bin")}


def test_headers_are_found_where_the_compiler_finds_them(environ: dict[str, str], tmp_path: Path) -> None:
    found = gpu_tools.vulkan(compiler(tmp_path, PRESENT), environ)
    assert found.includes == [Path("/sdk/include"), Path("/usr/include")]
    assert found.version == "1.4.309 shaderc 2025.2"


@pytest.mark.parametrize(
    ("os_release", "command"),
    [
        ("ID=debian", "sudo apt install glslc libvulkan-dev spirv-headers\n"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', "sudo dnf install glslc vulkan-headers vulkan-loader-devel"),
        ("NAME=Manjaro\nID=manjaro\nID_LIKE=arch", "sudo pacman -S shaderc vulkan-headers vulkan-icd-loader"),
        ('ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"', "sudo zypper install shaderc vulkan-devel"),
    ],
)
def test_missing_parts_are_named_with_the_command_of_the_distribution(
    os_release: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_tools, "read", lambda _path: os_release)
    with pytest.raises(CommandError) as caught:
        gpu_tools.vulkan(compiler(tmp_path, "missing: headers\nmissing: spirv\n"), {"PATH": "/nowhere"})
    assert "glslc (the shader compiler), the Vulkan headers and the SPIR-V headers" in str(caught.value)
    assert command in str(caught.value)
    assert "VULKAN_SDK" in str(caught.value)


def test_an_unknown_distribution_gets_no_command(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_tools, "read", lambda _path: "ID=nixos")
    with pytest.raises(CommandError, match="without the SPIR-V headers") as caught:
        gpu_tools.vulkan(compiler(tmp_path, "missing: spirv\n"), environ)
    assert "sudo" not in str(caught.value)


def test_headers_that_are_too_old_are_an_error_with_their_version(environ: dict[str, str], tmp_path: Path) -> None:
    old = PRESENT.replace("(4)", "(3)").replace("309", "239") + "\nmissing: newer headers\n"
    with pytest.raises(CommandError, match=r"1\.3\.239\) are too old") as caught:
        gpu_tools.vulkan(compiler(tmp_path, old), environ)
    assert "apt install" not in str(caught.value)  # it would install the same headers


def test_the_loader_is_needed_to_link_but_not_for_a_release(environ: dict[str, str], tmp_path: Path) -> None:
    cxx = compiler(tmp_path, PRESENT, links=False)
    with pytest.raises(CommandError, match=r"libvulkan\.so.*\n +sudo apt install libvulkan-dev\n"):
        gpu_tools.vulkan(cxx, environ)
    gpu_tools.vulkan(cxx, environ, linked=False)


def test_a_glslc_that_does_not_run_is_an_error_and_an_old_one_is_a_warning(
    environ: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(tmp_path / "bin/glslc", OLD_GLSLC)
    gpu_tools.vulkan(compiler(tmp_path, PRESENT), environ)
    assert "too old for matrix cores" in capsys.readouterr().err
    program(tmp_path / "bin/glslc", "echo libshaderc.so.1: cannot open; exit 127")
    with pytest.raises(CommandError, match=r"glslc does not work .*\n    libshaderc\.so\.1: cannot open"):
        gpu_tools.vulkan(compiler(tmp_path, PRESENT), environ)


def test_the_sdk_comes_before_the_system(environ: dict[str, str], tmp_path: Path) -> None:
    newer = program(tmp_path / "sdk/bin/glslc", "echo shaderc 2099")
    found = gpu_tools.vulkan(compiler(tmp_path, PRESENT), {**environ, "VULKAN_SDK": str(tmp_path / "sdk")})
    assert found.glslc == newer


def test_windows_needs_the_sdk() -> None:
    windows = GPU._replace(system="Windows")
    with pytest.raises(CommandError, match="the Vulkan SDK") as caught:
        gpu_tools.check(windows, "vulkan", {"PATH": "/nowhere"})
    assert "sudo" not in str(caught.value)


def test_places_that_the_user_gave_to_cmake_are_not_checked() -> None:
    gpu_tools.check(GPU, "vulkan", {"PATH": "/nowhere", "CMAKE_ARGS": "-DVulkan_INCLUDE_DIR=/opt/vulkan/include"})
    gpu_tools.check(GPU, "cuda", {"CMAKE_ARGS": "-DCMAKE_CUDA_COMPILER=/opt/cuda/bin/nvcc"})
    gpu_tools.check(GPU, "cpu", {})


def nvcc(folder: Path, release: str = "13.0", printed: str = "") -> str:
    check = f'echo "$*" > {folder}/arguments; printf "%s" "{printed}"; exit {1 if printed else 0}'
    version = f'case "$*" in --version) echo "Cuda compilation tools, release {release}, V{release}.88"; exit;; esac'
    return program(folder / "nvcc", f"{version}\n{check}")


def test_nvcc_compiles_for_the_gpus_of_the_machine_with_the_chosen_compiler(tmp_path: Path) -> None:
    machine = GPU._replace(nvcc=nvcc(tmp_path), capabilities="86;89")
    gpu_tools.check(machine, "cuda", {"CUDAHOSTCXX": "g++-13"})
    arguments = (tmp_path / "arguments").read_text()
    assert "-ccbin g++-13 -gencode arch=compute_86,code=sm_86 -gencode arch=compute_89,code=sm_89" in arguments


@pytest.mark.parametrize(
    ("release", "driver", "printed", "said"),
    [
        ("13.0", "550.54", "", r"version 13\.0 of the CUDA toolkit needs NVIDIA's driver 580 or newer, and 550\.54"),
        ("13.0", "580.65", "error: unsupported GNU version! gcc versions later than 15", "CUDAHOSTCXX=g..-14"),
        ("12.0", "550.54", "nvcc fatal: Unsupported gpu architecture 'compute_120'", "CUDACXX="),
        ("12.0", "550.54", "fatal error: cublas_v2.h: No such file", "A part of the CUDA toolkit is missing"),
    ],
)
def test_a_toolkit_that_does_not_fit_is_an_error_with_a_remedy(
    release: str, driver: str, printed: str, said: str, tmp_path: Path
) -> None:
    machine = GPU._replace(nvcc=nvcc(tmp_path, release, printed), driver=driver)
    with pytest.raises(CommandError, match=said) as caught:
        gpu_tools.check(machine, "cuda", {})
    assert printed in str(caught.value)
    assert "EDGESPEC_BACKEND=vulkan" in str(caught.value)


def test_without_nvcc_the_error_says_how_to_get_it(environ: dict[str, str]) -> None:
    with pytest.raises(CommandError, match=r"nvcc\) was not found.\n +sudo apt install nvidia-cuda-toolkit\n"):
        gpu_tools.check(GPU._replace(driver="470.1"), "cuda", environ)


@pytest.mark.parametrize(
    ("machine", "environ", "is_downloaded"),
    [
        (GPU, {}, True),
        (GPU._replace(capabilities="75;89"), {}, True),
        (GPU._replace(capabilities="61;89"), {}, False),  # CUDA 13 has no code for it
        (GPU._replace(capabilities=""), {}, False),
        (GPU._replace(driver="550.54"), {}, False),
        (GPU._replace(gpus="", capabilities="", driver=""), {}, False),
        (GPU._replace(nvcc="/usr/bin/nvcc"), {}, False),
        (GPU._replace(system="Windows"), {}, False),
        (GPU, {"CMAKE_ARGS": "-DCMAKE_CUDA_COMPILER=/opt/nvcc"}, False),
    ],
)
def test_the_toolkit_is_downloaded_where_it_is_missing_and_would_work(
    machine: Machine, environ: dict[str, str], is_downloaded: bool
) -> None:
    assert gpu_tools.needs_toolkit(machine, environ) == is_downloaded


def test_packages_become_a_toolkit_that_the_linker_can_use(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libcudart.so.13").write_text("runtime")
    cxx = program(tmp_path / "c++", 'while [ "$1" != -o ]; do shift; done; cat > "$2"')
    gpu_tools.complete_toolkit(tmp_path, [cxx])
    assert (tmp_path / "lib64/libcudart.so").read_text() == "runtime"
    assert "cuGetErrorString" in (tmp_path / "lib64/stubs/libcuda.so").read_text()


def test_a_failed_build_gets_the_advice_of_its_backend() -> None:
    assert "glslc" in gpu_tools.advice("vulkan")
    assert "CUDA" in gpu_tools.advice("cuda")
    assert "g++" not in gpu_tools.advice("vulkan")
