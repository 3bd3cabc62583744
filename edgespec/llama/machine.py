"""The GPUs of this machine, whichever build of llama.cpp there is, and why a build does not use them."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from edgespec.llama.drivers import nvidia_driver, vulkan_devices

DRIVER_WAIT_S = 10  # GPU drivers can take seconds to wake up
GRAPHICS, RENDERERS = Path("/sys/class/drm"), Path("/dev/dri")
NVIDIA = 0x10DE
MAKERS = {NVIDIA: ("NVIDIA GPU", "cuda"), 0x1002: ("AMD GPU", "vulkan"), 0x8086: ("Intel GPU", "vulkan")}
"""Makers of GPUs by their number on the PCI bus, and the backend of llama.cpp for each."""
HIDING = {"cuda": "CUDA_VISIBLE_DEVICES", "vulkan": "GGML_VK_VISIBLE_DEVICES", "rocm": "HIP_VISIBLE_DEVICES"}
"""Environment variables that choose which devices a backend sees; an empty one hides all."""
_ADAPTERS = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
_INSTALL = (
    "install the GPU's driver for Vulkan (Debian and Ubuntu: libvulkan1 and mesa-vulkan-drivers, Fedora: vulkan-loader "
    "and mesa-vulkan-drivers; NVIDIA and Windows: the maker's driver)"
)


class Gpu(NamedTuple):
    """A GPU, and the backend of llama.cpp that uses it."""

    name: str
    backend: str


def gpus_here() -> list[Gpu]:
    """Return the GPUs that NVIDIA's tool, the system's list of graphics cards, or the type of an Apple chip reveal."""
    if platform.system() == "Darwin":
        return [Gpu("Apple GPU", "metal")] if platform.machine() == "arm64" else []
    found = [Gpu(name, "cuda") for name in _nvidia_names()]
    for maker in _makers_on_windows() if platform.system() == "Windows" else _makers_on_linux():
        if maker in MAKERS and not (maker == NVIDIA and found):
            found.append(Gpu(*MAKERS[maker]))
    return found


def why_unused(backend: str) -> tuple[str, str]:
    """Return why a GPU backend of this build has no device here, and what to do about it."""
    variable = HIDING.get(backend, "")
    if variable in os.environ:
        return f"{variable} is set to '{os.environ[variable]}'", f"unset {variable}, or name devices that exist"
    if backend == "vulkan":
        return _why_no_vulkan()
    if backend == "cuda" and nvidia_driver():
        return f"CUDA cannot use NVIDIA's driver {nvidia_driver()}", "install a newer driver, or an older CUDA"
    return "no driver was found for it", "install the driver of the GPU"


def _why_no_vulkan() -> tuple[str, str]:
    devices = vulkan_devices()
    if devices is None:
        return "Vulkan's loader is not installed", _INSTALL
    if not devices:
        return "no Vulkan driver is installed", _INSTALL
    names = ", ".join(device.name for device in devices)
    if not all(device.is_cpu for device in devices):
        return f"llama.cpp cannot use {names}", "install a newer driver"
    for node in sorted(RENDERERS.glob("renderD*")):
        if not os.access(node, os.R_OK | os.W_OK):
            owner = f"the group of {node}, usually 'render'"
            return f"this user may not open {node}", f"add the user to {owner}, and log in again"
    return f"Vulkan sees only {names}, which computes on the CPU", f"{_INSTALL}; {HIDING['vulkan']}=0 uses it for tests"


def _nvidia_names() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_WAIT_S, check=True)
        return [name.strip() for name in done.stdout.splitlines()]
    return []


def _makers_on_linux() -> Iterator[int]:
    for file in sorted(GRAPHICS.glob("card*/device/vendor")):
        with suppress(OSError, ValueError):
            yield int(file.read_text("ascii"), 16)


def _makers_on_windows() -> Iterator[int]:
    """Yield the makers of the display adapters in the registry, such as 0x10DE of "pci\\ven_10de&dev_2684"."""
    winreg: Any = import_module("winreg")
    with suppress(OSError), winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _ADAPTERS) as adapters:
        for index in count():
            name = winreg.EnumKey(adapters, index)  # raises OSError after the last one
            with suppress(OSError, ValueError), winreg.OpenKey(adapters, name) as adapter:
                device = str(winreg.QueryValueEx(adapter, "MatchingDeviceId")[0]).lower()
                yield int(device.partition("ven_")[2][:4], 16)
