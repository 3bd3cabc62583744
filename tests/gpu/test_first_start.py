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

from edgespec.llama.quantize import quantize
from edgespec.models.names.spec import resolve

SHADER_CACHES = ("XDG_CACHE_HOME", "__GL_SHADER_DISK_CACHE_PATH", "CUDA_CACHE_PATH")  # Mesa, NVIDIA, CUDA
OPTIONS = ["-m", "demo", "-ngl", "all", "-n", "64", "--no-store", "--fast", "--raw", "def fibonacci(n):"]
MOST = 30  # times as long: more than a busy machine adds, less than a compiler of shaders takes


def run(home: Path, shaders: Path, *options: str) -> None:
    shaders.mkdir(exist_ok=True)
    environ = os.environ | {"EDGESPEC_HOME": str(home)} | dict.fromkeys(SHADER_CACHES, str(shaders))
    subprocess.run([*COMMAND, "run", *OPTIONS, *options], capture_output=True, cwd=shaders, env=environ, check=True)


def costs(home: Path) -> dict[tuple[str, ...], float]:
    """Return the saved logarithms of the seconds of passes."""
    (saved,) = (home / "cache/pace").iterdir()
    rows = json.loads(saved.read_text("utf-8"))["costs"]["0"]
    return {tuple(map(str, key)): log_s for *key, log_s, _ in rows if "draft" in key or "target" in key}


@needs_gpu
@pytest.mark.long
@pytest.mark.timeout(900)
def test_compiling_shaders_is_no_cost_of_a_pass(tmp_path: Path) -> None:
    cold, warm, draft = tmp_path / "cold", tmp_path / "warm", tmp_path / "draft.gguf"
    quantize(resolve("demo:draft").path, draft, "F16", again=True)  # needs shaders that the target does not need
    use_draft = ("-md", str(draft), "-ngld", "all", "--spec-type", "draft")
    run(cold, tmp_path / "first shaders", *use_draft, "--pace", "off")  # after the trial load, which would compile them
    for home in (cold, warm):
        run(home, tmp_path / "other shaders", *use_draft)
    found, expected = costs(cold), costs(warm)
    assert ("step", "draft", "1", "1") in found
    dearer = {key: math.exp(found[key] - expected[key]) for key in found.keys() & expected.keys()}
    assert max(dearer.values()) < MOST, dearer
