"""The first start compiles the shaders of a driver, which can take minutes. That is not the cost of a pass."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path

import pytest
from cli_program import COMMAND
from gpu import needs_gpu

SHADER_CACHES = ("XDG_CACHE_HOME", "__GL_SHADER_DISK_CACHE_PATH", "CUDA_CACHE_PATH")  # Mesa, NVIDIA, CUDA
OPTIONS = ["-m", "demo", "-ngl", "all", "-n", "64", "--no-store", "--fast", "--raw", "def fibonacci(n):"]
MOST = 30  # times as long: more than a busy machine adds, less than a compiler of shaders takes


def costs(home: Path, shaders: Path) -> dict[tuple[str, ...], float]:
    """Answer a prompt, and return the saved logarithms of the seconds of passes."""
    places = {"EDGESPEC_HOME": str(home)} | dict.fromkeys(SHADER_CACHES, str(shaders))
    subprocess.run([*COMMAND, "run", *OPTIONS], capture_output=True, cwd=shaders, env=os.environ | places, check=True)
    (saved,) = (home / "cache/pace").iterdir()
    rows = json.loads(saved.read_text("utf-8"))["costs"]["0"]
    return {tuple(map(str, key)): log_s for *key, log_s, _ in rows if "draft" in key or "target" in key}


@needs_gpu
@pytest.mark.long
@pytest.mark.timeout(900)
def test_compiling_shaders_is_no_cost_of_a_pass(tmp_path: Path) -> None:
    shaders = tmp_path / "shaders"
    shaders.mkdir()
    cold, warm = (costs(tmp_path / name, shaders) for name in ("cold", "warm"))
    assert ("step", "draft", "1", "1") in cold
    dearer = {key: math.exp(cold[key] - warm[key]) for key in cold.keys() & warm.keys()}
    assert max(dearer.values()) < MOST, dearer
