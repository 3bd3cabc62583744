"""The first start compiles the shaders of a driver, which can take minutes. Later starts must not pay for it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_program import COMMAND
from gpu import needs_gpu

SHADER_CACHES = ("XDG_CACHE_HOME", "__GL_SHADER_DISK_CACHE_PATH", "CUDA_CACHE_PATH")  # Mesa, NVIDIA, CUDA
PROMPT = "def fibonacci(n):"


def statistics(home: Path, shaders: Path) -> dict[str, Any]:
    places = {"EDGESPEC_HOME": str(home)} | dict.fromkeys(SHADER_CACHES, str(shaders))
    options = ["-m", "demo", "-ngl", "all", "-n", "64", "--no-store", "--fast", "--json"]
    command = [*COMMAND, "run", *options, "--raw", PROMPT]
    done = subprocess.run(command, capture_output=True, cwd=shaders, env=os.environ | places, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return dict(json.loads(done.stdout))


@needs_gpu
@pytest.mark.long
@pytest.mark.timeout(900)
def test_drafting_after_a_first_start_without_compiled_shaders(tmp_path: Path) -> None:
    homes = [tmp_path / name for name in ("cold", "warm")]
    shaders = tmp_path / "shaders"
    shaders.mkdir()
    statistics(homes[0], shaders)  # measures what passes cost, and compiles
    statistics(homes[1], shaders)  # measures only
    after_cold, after_warm = (statistics(home, shaders)["timings"]["draft_n"] for home in homes)
    assert (after_cold > 0) == (after_warm > 0)
