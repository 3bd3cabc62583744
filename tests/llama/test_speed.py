"""The speed at which this machine reads weights."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec.files.paths import cache_dir
from edgespec.llama import drivers, speed


@pytest.fixture(autouse=True)
def not_measured_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    speed.weights_per_s.cache_clear()
    monkeypatch.setattr(speed, "MEASURED_BYTES", 4 << 20)
    monkeypatch.setattr(speed, "MEASURED_S", 0.01)


def test_it_is_measured_once_and_remembered() -> None:
    measured = speed.weights_per_s()
    assert 1e8 < measured < 1e13
    [file] = (cache_dir() / "speed").iterdir()
    speed.weights_per_s.cache_clear()
    assert speed.weights_per_s() == round(measured)
    file.write_text("damaged", encoding="utf-8")
    speed.weights_per_s.cache_clear()
    assert 1e8 < speed.weights_per_s() < 1e13


def nvml(gpus: Sequence[tuple[int, int]], *, starts: bool = True) -> SimpleNamespace:
    """Return NVIDIA's library with these GPUs: the bits of their bus, and the MHz of their memory."""

    def write(value: int, place: Any) -> int:
        place._obj.value = value
        return 0

    def clock(device: ctypes.c_void_p, kind: int, place: Any) -> int:
        assert kind == 2  # the memory
        return write(gpus[(device.value or 0) - 1][1], place)

    return SimpleNamespace(
        nvmlInit_v2=lambda: 0 if starts else 1,
        nvmlShutdown=lambda: 0,
        nvmlDeviceGetCount_v2=lambda place: write(len(gpus), place),
        nvmlDeviceGetHandleByIndex_v2=lambda index, place: write(index + 1, place),
        nvmlDeviceGetMemoryBusWidth=lambda device, place: write(gpus[device.value - 1][0], place),
        nvmlDeviceGetMaxClockInfo=clock,
    )


def test_the_slowest_gpu_limits_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    geforce_3090, a100 = (384, 9751), (5120, 1215)
    for gpus, starts, per_s in (
        ((a100, geforce_3090), True, 936e9),  # as their maker says
        ((a100,), True, 1555e9),
        ((), True, 0),
        ((a100,), False, 0),
    ):
        monkeypatch.setattr(ctypes, "CDLL", lambda name, gpus=gpus, starts=starts: nvml(gpus, starts=starts))
        assert drivers.nvidia_bytes_per_s() == pytest.approx(per_s, rel=1e-3)


def test_without_nvidias_library_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert drivers.nvidia_bytes_per_s() == 0
