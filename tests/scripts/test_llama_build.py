"""The build of llama.cpp for a machine: backend, compiler, flags, and when a compiled wheel is used again."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from llama_build import (
    ADDITIONS,
    NO_AMX,
    Compiler,
    Machine,
    build_environment,
    cache_name,
    choose_backend,
    cpu_features,
    lacks_compiler,
    look,
    with_additions,
)

SAPPHIRE_RAPIDS = "processor\t: 0\nflags\t\t: fpu sse2 avx2 avx512f amx_bf16 amx_tile amx_int8\n\nprocessor\t: 1\n"
ZEN_4 = "processor\t: 0\nflags\t\t: fpu sse2 avx2 avx512f\n"
GCC_12, GCC_13_2, GCC_13_3 = Compiler("gcc", (12, 2)), Compiler("gcc", (13, 2)), Compiler("gcc", (13, 3))
AMX = Machine("Linux", "x86_64", SAPPHIRE_RAPIDS, GCC_12)
AMD = Machine("Linux", "x86_64", ZEN_4, GCC_12)
MAC = Machine("Darwin", "arm64", "Apple M3", Compiler("clang", (17, 0)))
WINDOWS = Machine("Windows", "AMD64", "Intel64 Family 6 Model 143")
BARE = AMX._replace(compiler=None)
GPU = AMD._replace(nvcc="/usr/local/cuda/bin/nvcc", gpus="NVIDIA L4")


@pytest.mark.parametrize(
    ("machine", "wanted", "backend"),
    [
        (AMD, "", "cpu"),
        (GPU, "", "cuda"),
        (GPU._replace(gpus=""), "", "cpu"),
        (GPU._replace(nvcc=""), "", "cpu"),
        (GPU, "cpu", "cpu"),
        (MAC, "", "metal"),
        (MAC._replace(architecture="x86_64"), "", "cpu"),
        (WINDOWS, "", "cpu"),
        (AMD, "Vulkan", "vulkan"),
    ],
)
def test_the_backend_is_the_one_asked_for_or_what_the_machine_offers(
    machine: Machine, wanted: str, backend: str
) -> None:
    assert choose_backend(machine, wanted) == backend


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"EDGESPEC_BACKEND=tpu.*cpu, cuda, metal, vulkan"):
        choose_backend(AMD, "tpu")


@pytest.mark.parametrize(
    ("machine", "backend", "changes"),
    [
        (AMD, "cpu", {}),
        (AMD, "vulkan", {"CMAKE_ARGS": "-DGGML_VULKAN=on"}),
        (GPU, "cuda", {"CMAKE_ARGS": "-DGGML_CUDA=on", "CUDACXX": "/usr/local/cuda/bin/nvcc"}),
        (MAC, "metal", {"CMAKE_ARGS": "-DGGML_METAL=on"}),
        (MAC, "cpu", {"CMAKE_ARGS": "-DGGML_METAL=off"}),
        (WINDOWS, "cpu", {}),
    ],
)
def test_a_backend_is_switched_on_through_cmake(machine: Machine, backend: str, changes: dict[str, str]) -> None:
    assert build_environment(machine, backend, {}) == changes


@pytest.mark.parametrize("compiler", [Compiler("gcc", (11, 4)), GCC_12, GCC_13_2])
def test_gcc_that_miscompiles_amx_leaves_amx_out(compiler: Compiler) -> None:
    assert build_environment(AMX._replace(compiler=compiler), "cpu", {}) == {"CFLAGS": NO_AMX, "CXXFLAGS": NO_AMX}


def test_a_working_clang_replaces_the_gcc_that_miscompiles_amx() -> None:
    assert build_environment(AMX._replace(clang_works=True), "cpu", {}) == {"CC": "clang", "CXX": "clang++"}


@pytest.mark.parametrize(
    "machine",
    [
        AMX._replace(compiler=GCC_13_3),
        AMX._replace(compiler=Compiler("gcc", (14, 1))),
        AMX._replace(compiler=Compiler("gcc", (10, 2))),  # before AMX and its flags
        AMX._replace(compiler=Compiler("clang", (14, 0))),
        AMX._replace(compiler=None),
        AMX._replace(system="Windows"),
        AMD._replace(clang_works=True),
        Machine("Linux", "aarch64", "Features\t: fp asimd i8mm sve\n", GCC_12),
    ],
)
def test_builds_without_the_fault_are_left_alone(machine: Machine) -> None:
    assert build_environment(machine, "cpu", {}) == {}


@pytest.mark.parametrize(
    "environ", [{"CC": "gcc-12"}, {"CXX": "g++-12"}, {"CMAKE_ARGS": "-DCMAKE_CXX_COMPILER=g++-12"}]
)
def test_a_compiler_the_user_chose_is_kept_but_leaves_amx_out(environ: dict[str, str]) -> None:
    assert build_environment(AMX._replace(clang_works=True), "cpu", environ) == {"CFLAGS": NO_AMX, "CXXFLAGS": NO_AMX}


def test_a_cuda_build_keeps_gcc_which_nvcc_needs() -> None:
    machine = AMX._replace(clang_works=True, nvcc="nvcc", gpus="NVIDIA H100")
    assert build_environment(machine, "cuda", {})["CXXFLAGS"] == NO_AMX


def test_a_cuda_build_is_for_the_gpus_of_this_machine() -> None:
    arguments = build_environment(GPU._replace(capabilities="86;89"), "cuda", {"CMAKE_ARGS": "-DX=1"})["CMAKE_ARGS"]
    assert shlex.split(arguments) == ["-DGGML_CUDA=on", "-DCMAKE_CUDA_ARCHITECTURES=86;89", "-DX=1"]


@pytest.mark.skipif(sys.platform == "win32", reason="a script of sh")
def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    lines = ["NVIDIA RTX A2000, 12 GB, 8.6, 580.65.06", "NVIDIA L4, 8.9, 580.65.06", "NVIDIA L4, 8.9, 580.65.06"]
    smi.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    machine = look({"CUDACXX": "/opt/cuda/bin/nvcc"})
    assert machine.gpus == "NVIDIA RTX A2000, 12 GB\nNVIDIA L4\nNVIDIA L4"
    assert (machine.capabilities, machine.driver, machine.nvcc) == ("86;89", "580.65.06", "/opt/cuda/bin/nvcc")


def test_what_the_user_set_comes_last_and_so_wins() -> None:
    environ = {"CMAKE_ARGS": "-DGGML_VULKAN=off", "CXXFLAGS": "-O3"}
    changes = build_environment(AMX, "vulkan", environ)
    assert changes["CMAKE_ARGS"] == "-DGGML_VULKAN=on -DGGML_VULKAN=off"
    assert changes["CXXFLAGS"] == f"{NO_AMX} -O3"


def test_the_bounds_of_the_kernels_are_read_into_every_build_and_leave_the_users_options_alone() -> None:
    options = shlex.split(with_additions({"CMAKE_ARGS": "-DGGML_RPC=on"})["CMAKE_ARGS"])
    assert options == [f"-DCMAKE_PROJECT_INCLUDE={(ADDITIONS / 'kernels.cmake').as_posix()}", "-DGGML_RPC=on"]


def test_another_version_of_the_bounds_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache_name("0.3.36", AMX, "cpu", {})
    (tmp_path / "kernels.h").write_text("other bounds")
    monkeypatch.setattr("llama_build.ADDITIONS", tmp_path)
    assert cache_name("0.3.36", AMX, "cpu", {}) != before


def test_cpu_features_are_those_of_the_first_processor_whatever_their_order() -> None:
    assert cpu_features("flags : b a\nflags : c\n") == ["a", "b"]
    assert cpu_features("Apple M3") == ["Apple", "M3"]


def test_a_wheel_is_used_again_only_where_it_would_be_compiled_the_same() -> None:
    name = cache_name("0.3.36", AMX, "cpu", {})
    assert name.startswith("0.3.36-cpu-linux-x86_64-")
    assert name == cache_name("0.3.36", AMX._replace(gpus="NVIDIA L4"), "cpu", {"LANG": "C"})
    others = {
        cache_name("0.3.37", AMX, "cpu", {}),
        cache_name("0.3.36", AMX, "vulkan", {}),
        cache_name("0.3.36", AMD, "cpu", {}),
        cache_name("0.3.36", AMX._replace(compiler=GCC_13_3), "cpu", {}),
        cache_name("0.3.36", AMX, "cpu", {"CXXFLAGS": NO_AMX}),
        cache_name("0.3.36", AMX, "cpu", {"CMAKE_ARGS": "-DGGML_RPC=on"}),
    }
    assert len(others | {name}) == 7
    assert cache_name("0.3.36", GPU, "cuda", {}) != cache_name("0.3.36", GPU._replace(gpus="NVIDIA H100"), "cuda", {})


@pytest.mark.parametrize(
    ("machine", "environ", "lacks"),
    [
        (BARE, {}, True),
        (AMX, {}, False),
        (WINDOWS, {}, False),  # Visual Studio is not on PATH
        (BARE, {"CXX": "icpx"}, False),
        (BARE, {"CMAKE_ARGS": "-DCMAKE_CXX_COMPILER=/opt/c++"}, False),
    ],
)
def test_a_machine_without_a_compiler_is_known_before_anything_is_built(
    machine: Machine, environ: dict[str, str], lacks: bool
) -> None:
    assert lacks_compiler(machine, environ) == lacks
