"""The devices of a build: which ones are used without being named, and how they are listed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli_program import edgespec_here

from edgespec.llama import devices, library
from edgespec.llama.library import Device, build_id, gpu_names, gpus, supports_gpu


def device(name: str, kind: str = "GPU", bus_id: str = "") -> Device:
    return Device(name, f"a {kind}", kind, 3 << 30, 4 << 30, backend=name.rstrip("0123456789"), bus_id=bus_id)


CPU, BUILT_IN = device("CPU", "CPU"), device("Vulkan1", "integrated GPU")


@pytest.mark.parametrize(
    ("found", "used"),
    [
        ([CPU], []),
        ([device("Vulkan0"), BUILT_IN, CPU], ["Vulkan0"]),
        ([BUILT_IN, CPU], ["Vulkan1"]),
        ([device("CUDA0"), device("CUDA1"), CPU], ["CUDA0", "CUDA1"]),
        # One GPU that two backends drive.
        ([device("CUDA0", bus_id="0000:c1:00.0"), device("Vulkan0", bus_id="0000:c1:00.0"), CPU], ["CUDA0"]),
        ([device("CUDA0", bus_id="0000:c1:00.0"), device("Vulkan0", bus_id="0000:c2:00.0")], ["CUDA0", "Vulkan0"]),
        ([device("SYCL0", "integrated GPU"), BUILT_IN, CPU], ["SYCL0"]),
        ([device("Vulkan0"), device("Vulkan1")], ["Vulkan0", "Vulkan1"]),  # of unknown addresses
    ],
)
def test_the_usual_gpus_are_those_of_llama_cpp(
    found: list[Device], used: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "devices", lambda: found)
    assert [gpu.name for gpu in gpus()] == used


def test_a_device_with_more_in_use_than_it_has_is_full() -> None:
    """llama.cpp subtracts without a sign."""
    assert library._free(2**64 - 5_000_000, 4 << 30) == 0
    assert library._free(3 << 30, 4 << 30) == 3 << 30
    assert library._free(1 << 30, 0) == 1 << 30  # a device that does not report its memory


def test_names_are_read_as_llama_cpp_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpu_names", lambda: {"CUDA0": 1, "CUDA1": 2})
    for names, found in (
        ("auto", ()), ("none", ()), ("CUDA1", ("CUDA1",)), ("cuda1, CUDA0", ("CUDA1", "CUDA0")),
        ("CUDA0,CUDA0", ("CUDA0",)),
    ):  # fmt: skip
        assert devices.chosen(names) == found


def test_devices_are_listed_as_llama_cpp_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "gpu_names", lambda: {"Vulkan1": 1})
    monkeypatch.setattr(devices, "gpus", lambda names: [BUILT_IN])
    assert devices.listing() == "Available devices:\n  Vulkan1: a integrated GPU (4096 MiB, 3072 MiB free)"


def test_the_list_needs_no_prompt_and_no_model(tmp_path: Path) -> None:
    done = edgespec_here("run", "--list-devices", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == devices.listing().splitlines()


def test_a_device_of_this_build_has_its_backend() -> None:
    found = library.devices()
    assert [each.backend for each in found if each.kind == "CPU"] == ["CPU"]
    assert [each.name for each in found if "GPU" in each.kind] == [*gpu_names()]
    assert supports_gpu() == bool(gpu_names())


def test_another_file_of_the_build_is_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = tmp_path / "libggml-cpu.so"
    for name in ("libggml-cpu.so", "libggml-vulkan.so", "readme.txt"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(library, "CPU_LIBRARY", chosen)
    before = build_id()
    (tmp_path / "readme.txt").write_text("changed")
    assert build_id() == before
    shutil.copyfile(chosen, tmp_path / "libggml-vulkan.so")
    assert build_id() != before
