"""Tests that need a GPU: `@needs_gpu` and `@needs_two_gpus`, or `pytestmark = needs_gpu` for a whole file.

They run only with `-m gpu`, or an expression that begins with it, and are skipped where llama.cpp sees too few devices.
Mesa's software driver counts as one or several (`GGML_VK_VISIBLE_DEVICES=0` or `0,0`). In all other runs GPUs are
hidden, because results on a GPU are not exact, and memory is counted in other ways. This module must be imported before
llama.cpp is loaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

needs_gpu = pytest.mark.gpu
needs_two_gpus = pytest.mark.gpu(devices=2)

SOURCE = Path(__file__).with_name("fake_gpu.c")
# scripts/check_gpu compiles it for systems without a compiler.
LIBRARY = SOURCE.parents[2] / "build/check_gpu/fake_gpu.so"
HIDDEN = {
    "GGML_VK_VISIBLE_DEVICES": "",
    "CUDA_VISIBLE_DEVICES": "-1",
    "HIP_VISIBLE_DEVICES": "-1",
    "GGML_METAL_DEVICES": "0",
}

# Processes of pytest-xdist have other arguments, and inherit the environment.
if "PYTEST_XDIST_WORKER" not in os.environ and not any(argument.startswith("gpu") for argument in sys.argv):
    os.environ |= HIDDEN


@cache
def visible_gpus() -> list[str]:
    """Return the names of the GPUs that llama.cpp can use here, such as "Vulkan0"."""
    from edgespec.llama.library import gpus, supports_gpu

    return [gpu.name for gpu in gpus()] if supports_gpu() else []


def skip_without_gpu(item: pytest.Item) -> None:
    """Skip a test that is marked as in need of more devices than there are."""
    marker = item.get_closest_marker("gpu")
    if marker is not None and len(visible_gpus()) < (wanted := marker.kwargs.get("devices", 1)):
        pytest.skip(f"llama.cpp sees {len(visible_gpus())} GPUs here, {wanted} are needed (tests/support/gpu.py)")


def faults(**limits: int) -> dict[str, str]:
    """Return environment variables for a program that is to meet faults of a Vulkan driver.

    `submits=9` loses the device after 9 submitted batches; `allocations=9` lets all allocations after 9 fail.
    """
    if not visible_gpus()[0].startswith("Vulkan"):
        pytest.skip("faults of other drivers than Vulkan's cannot be faked")
    if not LIBRARY.exists() or LIBRARY.stat().st_mtime < SOURCE.stat().st_mtime:
        if not (compiler := shutil.which("cc")):
            pytest.skip("there is no C compiler")
        LIBRARY.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(LIBRARY), str(SOURCE)], check=True)
    return {"LD_PRELOAD": str(LIBRARY)} | {f"FAKE_GPU_{name.upper()}": str(most) for name, most in limits.items()}
