"""This machine's GPUs, whether this build of llama.cpp uses them, and how to get a build that does."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

LOOKING_S = 10  # drivers that have to wake up take seconds
REINSTALL = f"pip install --force-reinstall --no-cache-dir --no-deps llama-cpp-python=={version('llama-cpp-python')}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by its name, and the backend of llama.cpp that uses it."""

    name: str
    backend: str


def gpus_here() -> list[Gpu]:
    """Those that can be found without a library: by NVIDIA's own tool, AMD's driver, or as a part of Apple's chips."""
    if platform.system() == "Darwin":
        return [Gpu("Apple GPU", "metal")] if platform.machine() == "arm64" else []
    names = _said(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).splitlines()
    if names:
        return [Gpu(name.strip(), "cuda") for name in names]
    return [Gpu("AMD GPU", "vulkan")] if Path("/dev/kfd").exists() else []


def how_to_use(gpu: Gpu) -> str:
    """The command that makes a build of llama.cpp that uses it."""
    if in_checkout():
        if os.name == "nt":
            return rf'$env:EDGESPEC_BACKEND = "{gpu.backend}"; scripts\edgespec doctor'
        return f"EDGESPEC_BACKEND={gpu.backend} ./scripts/edgespec doctor"
    options = f"-DGGML_{gpu.backend.upper()}=on"
    return f'$env:CMAKE_ARGS = "{options}"; {REINSTALL}' if os.name == "nt" else f'CMAKE_ARGS="{options}" {REINSTALL}'


def in_checkout() -> bool:
    """Whether edgespec runs in the environment that its own scripts made."""
    return (Path(sys.prefix).parent / "scripts" / "edgespec").is_file()


def _said(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOOKING_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
