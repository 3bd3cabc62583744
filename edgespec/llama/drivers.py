"""The drivers of GPUs, asked without llama.cpp: their versions, and the devices that they offer."""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from contextlib import suppress
from functools import cache
from typing import NamedTuple

_VULKAN = {"win32": "vulkan-1.dll", "darwin": "libvulkan.1.dylib"}.get(sys.platform, "libvulkan.so.1")
_NVML = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_MEMORY_CLOCK = 2  # NVML_CLOCK_MEM
_MOST_DEVICES = 16
_CPU = 4  # VK_PHYSICAL_DEVICE_TYPE_CPU


class VulkanDevice(NamedTuple):
    """A device that Vulkan's loader sees, and its driver; llama.cpp leaves out those that compute on the CPU."""

    name: str
    driver: str
    is_cpu: bool


def driver_of(description: str, backend: str) -> str:
    """Return the version of the driver of a device, by llama.cpp's names; "" if it is unknown.

    Of AMD's compute driver (ROCm) the version is unknown: its libraries are found by llama.cpp's own.
    """
    if backend == "Vulkan":
        return next((device.driver for device in vulkan_devices() or [] if device.name == description), "")
    if backend == "CUDA":
        return nvidia_driver()
    return platform.mac_ver()[0] if backend == "MTL" else ""


@cache
def nvidia_driver() -> str:
    """Return the version of NVIDIA's driver; "" if there is none."""
    version = ctypes.create_string_buffer(96)
    with suppress(OSError, AttributeError):
        nvml = ctypes.CDLL(_NVML)
        if nvml.nvmlInit_v2() == 0:
            nvml.nvmlSystemGetDriverVersion(version, len(version))
            nvml.nvmlShutdown()
    return version.value.decode("ascii", "replace")


def nvidia_bytes_per_s() -> float:
    """Return how many bytes per second the slowest of NVIDIA's GPUs reads from its memory; 0 if it is unknown."""
    found = []
    with suppress(OSError, AttributeError):
        nvml = ctypes.CDLL(_NVML)
        if nvml.nvmlInit_v2() == 0:
            count = ctypes.c_uint()
            nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
            found = [_memory_bytes_per_s(nvml, index) for index in range(count.value)]
            nvml.nvmlShutdown()
    return min(found, default=0.0)


def _memory_bytes_per_s(nvml: ctypes.CDLL, index: int) -> float:
    """Return the bandwidth of a GPU's memory: two transfers in each cycle of its clock, as wide as its bus."""
    device, bits, clock_mhz = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
    nvml.nvmlDeviceGetMemoryBusWidth(device, ctypes.byref(bits))
    nvml.nvmlDeviceGetMaxClockInfo(device, _MEMORY_CLOCK, ctypes.byref(clock_mhz))
    return 2 * clock_mhz.value * 1e6 * bits.value / 8


@cache
def vulkan_devices() -> list[VulkanDevice] | None:
    """Return the devices of Vulkan's drivers, also those that llama.cpp leaves out; None without Vulkan's loader."""
    try:
        vulkan = ctypes.CDLL(_VULKAN)
    except OSError:
        return None
    # VkApplicationInfo and VkInstanceCreateInfo; the version is 1.2, from which on drivers are described.
    application = ctypes.create_string_buffer(struct.pack("@iPPIPII0P", 0, 0, 0, 0, 0, 0, 1 << 22 | 2 << 12))
    info = ctypes.create_string_buffer(
        struct.pack("@iPIPIPIP", 1, 0, 0, ctypes.addressof(application), 0, 0, 0, 0),
    )
    instance, count = ctypes.c_void_p(), ctypes.c_uint32(_MOST_DEVICES)
    if vulkan.vkCreateInstance(info, None, ctypes.byref(instance)) != 0:
        return []
    handles = (ctypes.c_void_p * _MOST_DEVICES)()
    vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), handles)
    found = [_described(vulkan, handle) for handle in handles[: count.value] if handle]
    vulkan.vkDestroyInstance(instance, None)
    return found


def _described(vulkan: ctypes.CDLL, handle: int) -> VulkanDevice:
    # VkPhysicalDeviceDriverProperties: two texts of 256 bytes after the number of the driver.
    driver = ctypes.create_string_buffer(struct.pack("@iPi", 1000196000, 0, 0), 2048)
    # VkPhysicalDeviceProperties2: after the head come five numbers, the last one the type, and the name.
    properties = ctypes.create_string_buffer(struct.pack("@iP", 1000059001, ctypes.addressof(driver)), 2048)
    vulkan.vkGetPhysicalDeviceProperties2(ctypes.c_void_p(handle), properties)
    _, version, _, _, kind = struct.unpack_from("@5I", properties, struct.calcsize("@iP"))
    start = struct.calcsize("@iPi")
    maker, release = _text(driver, start), _text(driver, start + 256) or hex(version)
    return VulkanDevice(_text(properties, struct.calcsize("@iP5I")), f"{maker} {release}".strip(), kind == _CPU)


def _text(buffer: ctypes.Array[ctypes.c_char], start: int) -> str:
    return buffer.raw[start : start + 256].split(b"\0")[0].decode("utf-8", "replace")
