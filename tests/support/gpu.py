"""Tests that need a GPU: `@needs_gpu` and `@needs_two_gpus`, or `pytestmark = needs_gpu` for a whole file.

They are skipped where llama.cpp sees too few devices. Mesa's software driver counts as one or several
(`GGML_VK_VISIBLE_DEVICES=0` or `0,0`).
"""

from __future__ import annotations

from functools import cache

import pytest

needs_gpu = pytest.mark.gpu
needs_two_gpus = pytest.mark.gpu(devices=2)


@cache
def visible_gpus() -> list[str]:
    """Return the names of the GPUs that llama.cpp can use here, such as "Vulkan0"."""
    from edgespec.llama.library import gpus, supports_gpu

    return [gpu.name for gpu in gpus()] if supports_gpu() else []


def skip_without_gpu(item: pytest.Item) -> None:
    """Skip a test that is marked as in need of more devices than there are."""
    marker = item.get_closest_marker("gpu")
    if marker is not None and len(visible_gpus()) < (wanted := marker.kwargs.get("devices", 1)):
        pytest.skip(f"llama.cpp sees {len(visible_gpus())} GPUs here, {wanted} are needed")
