"""The GPUs of a machine, and why a build of llama.cpp does not use them. The machines here are stand-ins."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgespec.llama import drivers, machine
from edgespec.llama.drivers import VulkanDevice
from edgespec.llama.machine import Gpu, gpus_here, why_unused


@pytest.fixture(autouse=True)
def an_empty_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "GRAPHICS", tmp_path)
    monkeypatch.setattr(machine, "_nvidia_names", list)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    for variable in machine.HIDING.values():
        monkeypatch.delenv(variable, raising=False)


def add_card(folder: Path, maker: str) -> None:
    device = folder / f"card{len([*folder.iterdir()])}" / "device"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{maker}\n")


@pytest.mark.parametrize(
    ("maker", "gpu"),
    [
        ("0x1002", Gpu("AMD GPU", "vulkan")),
        ("0x8086", Gpu("Intel GPU", "vulkan")),
        ("0x10de", Gpu("NVIDIA GPU", "cuda")),
    ],
)
def test_graphics_cards_are_known_by_their_makers(maker: str, gpu: Gpu, tmp_path: Path) -> None:
    assert gpus_here() == []
    add_card(tmp_path, "0x1a03")  # of a server, which computes nothing
    assert gpus_here() == []
    add_card(tmp_path, maker)
    assert gpus_here() == [gpu]


def test_nvidia_cards_have_the_names_of_nvidias_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_nvidia_names", lambda: ["RTX 4090"])
    for maker in ("0x8086", "0x10de", "nonsense"):
        add_card(tmp_path, maker)
    assert gpus_here() == [Gpu("RTX 4090", "cuda"), Gpu("Intel GPU", "vulkan")]


def test_on_windows_the_registry_lists_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    adapters = {"0000": r"PCI\VEN_8086&DEV_9A49", "0001": r"ROOT\BasicDisplay", "Properties": None}

    class Key(SimpleNamespace):
        def __enter__(self) -> Key:
            return self

        def __exit__(self, *_: object) -> None: ...

    def opened(above: object, name: str) -> Key:
        if name in adapters and adapters[name] is None:
            raise PermissionError(name)
        return Key(name=name)

    def name_of(_: Key, index: int) -> str:
        if index >= len(adapters):
            raise OSError("no more data")
        return [*adapters][index]

    registry = SimpleNamespace(
        HKEY_LOCAL_MACHINE=0, OpenKey=opened, EnumKey=name_of, QueryValueEx=lambda key, _: (adapters[key.name], 1)
    )
    monkeypatch.setitem(sys.modules, "winreg", registry)
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    assert gpus_here() == [Gpu("Intel GPU", "vulkan")]


def test_apples_chips_have_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    for processor, found in (("arm64", [Gpu("Apple GPU", "metal")]), ("x86_64", [])):
        monkeypatch.setattr(platform, "machine", lambda processor=processor: processor)
        assert gpus_here() == found


@pytest.mark.parametrize(
    ("devices", "why", "remedy"),
    [
        (None, "Vulkan's loader is not installed", "install the GPU's driver"),
        ([], "no Vulkan driver is installed", "install the GPU's driver"),
        (
            [VulkanDevice("llvmpipe", "Mesa 25", True)],
            "Vulkan sees only llvmpipe, which computes on the CPU",
            "GGML_VK_VISIBLE_DEVICES=0 uses it for tests",
        ),
        ([VulkanDevice("Old GPU", "Mesa 25", False)], "llama.cpp cannot use Old GPU", "install a newer driver"),
    ],
)
def test_vulkan_without_a_device_is_explained(
    devices: list[VulkanDevice] | None, why: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "vulkan_devices", lambda: devices)
    monkeypatch.setattr(machine, "RENDERERS", Path("nowhere"))
    found = why_unused("vulkan")
    assert found[0] == why
    assert remedy in found[1]


def test_a_device_that_the_user_may_not_open_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = tmp_path / "renderD128"
    node.touch()
    monkeypatch.setattr(machine, "vulkan_devices", lambda: [VulkanDevice("llvmpipe", "Mesa 25", True)])
    monkeypatch.setattr(machine, "RENDERERS", tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert why_unused("vulkan")[0] == f"this user may not open {node}"
    assert "'render'" in why_unused("vulkan")[1]


@pytest.mark.parametrize(("backend", "variable"), machine.HIDING.items())
def test_a_variable_that_hides_devices_is_named(backend: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "")
    assert why_unused(backend) == (f"{variable} is set to ''", f"unset {variable}, or name devices that exist")


def test_cuda_needs_a_driver_and_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "nvidia_driver", lambda: "")
    assert why_unused("cuda")[1] == "install the driver of the GPU"
    monkeypatch.setattr(machine, "nvidia_driver", lambda: "470.1")
    assert why_unused("cuda")[0] == "CUDA cannot use NVIDIA's driver 470.1"


def test_drivers_are_known_by_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        drivers, "vulkan_devices", lambda: [VulkanDevice("A", "1", False), VulkanDevice("B", "2", False)]
    )
    monkeypatch.setattr(drivers, "nvidia_driver", lambda: "580.1")
    assert [
        drivers.driver_of(*device) for device in (("B", "Vulkan"), ("C", "Vulkan"), ("A", "CUDA"), ("A", "ROCm"))
    ] == [
        *("2", "", "580.1", ""),
    ]


def test_asking_for_drivers_fails_nowhere() -> None:
    found = drivers.vulkan_devices()
    assert found is None or all(device.name and device.driver for device in found)
    assert isinstance(drivers.nvidia_driver(), str)
