"""GPUs, instruction sets and the build of llama.cpp: problems, and the commands that solve them."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

DRIVER_WAIT_S = 10  # GPU drivers can take seconds to wake up
INSTRUCTIONS = {"AVX2": "avx2", "FMA": "fma", "F16C": "f16c", "AVX512": "avx512f", "AVX512_VNNI": "avx512_vnni",
                "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8"}  # fmt: skip
"""Instruction sets by llama.cpp's name, with Linux's name."""
REINSTALL = f"pip install --force-reinstall --no-cache-dir --no-deps llama-cpp-python=={version('llama-cpp-python')}"

Build = Mapping[str, Mapping[str, str]]  # the flags of each backend


class Gpu(NamedTuple):
    """A GPU, and the backend of llama.cpp that uses it."""

    name: str
    backend: str


class Advice(NamedTuple):
    """A problem with its cost, and the command that solves it, if there is one."""

    problem: str
    command: str = ""


def gpus_here() -> list[Gpu]:
    """Return the GPUs that NVIDIA's tool, AMD's driver or the type of an Apple chip reveal."""
    if platform.system() == "Darwin":
        return [Gpu("Apple GPU", "metal")] if platform.machine() == "arm64" else []
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=DRIVER_WAIT_S, check=True)
        if names := done.stdout.splitlines():
            return [Gpu(name.strip(), "cuda") for name in names]
    return [Gpu("AMD GPU", "vulkan")] if Path("/dev/kfd").exists() else []


def processor_flags() -> set[str]:
    """Return Linux's names of the processor's instruction sets; empty on other systems."""
    try:
        cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    found = re.search(r"^flags\s*:(.*)$", cpu, re.MULTILINE)
    return set(found[1].split()) if found else set()


def build_of(flags: str) -> dict[str, dict[str, str]]:
    """Parse `CPU : AVX = 1 | AVX2 = 1 | ` into flags by backend."""
    backends: dict[str, dict[str, str]] = {}
    backend: dict[str, str] = {}
    for part in flags.split("|"):
        name, found, flag = part.rpartition(" : ")
        if found:
            backend = backends.setdefault(name.strip(), {})
        key, _, value = flag.partition("=")
        if key.strip():
            backend[key.strip()] = value.strip()
    return backends


def build_advice(self_check: str, gpus: Sequence[Gpu], build: Build) -> Iterator[Advice]:
    """Yield advice about the build of llama.cpp. `gpus` are those that it does not use."""
    if self_check == "crashes":
        yield Advice("quantised models crash: no such model can be loaded", _rebuild())
    if self_check == "works without extra buffers":
        why = "quantised models crash with repacked weights; repacking is disabled (GCC 12 miscompiles AMX code)"
        yield Advice(f"{why}: slower than necessary; rebuild with clang or GCC 13.3", _rebuild())
    if gpus:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
        cost = "everything runs on the CPU; docs/install.md describes GPU builds"
        yield Advice(f"this build does not use the GPU ({names}): {cost}", gpu_build(gpus[0]))
    has, flags = processor_flags(), build.get("CPU", {})
    if unused := [name for name, flag in INSTRUCTIONS.items() if flag in has and flags.get(name) != "1"]:
        cost = "prefill and draft verification are slower than necessary"
        if unused == ["AMX_INT8"]:  # the build leaves it out if the compiler is known to miscompile it
            cost += "; a build with it needs clang or GCC 13.3"
        yield Advice(f"this build does not use {', '.join(unused)}, which the processor supports: {cost}", _rebuild())


def gpu_build(gpu: Gpu) -> str:
    """Return the command that builds llama.cpp for a GPU."""
    if not _in_checkout():
        return _with_variable("CMAKE_ARGS", f"-DGGML_{gpu.backend.upper()}=on", REINSTALL)
    script = r"scripts\edgespec" if os.name == "nt" else "./scripts/edgespec"
    return _with_variable("EDGESPEC_BACKEND", gpu.backend, f"{script} doctor")


def _with_variable(name: str, value: str, command: str) -> str:
    """Return a line for the system's shell that runs a command with an environment variable."""
    return f'$env:{name} = "{value}"; {command}' if os.name == "nt" else f'{name}="{value}" {command}'


def _rebuild() -> str:
    """Return the command that compiles llama.cpp again, for this machine."""
    from edgespec.files.paths import cache_dir

    if not _in_checkout():
        return REINSTALL
    if os.name == "nt":
        return rf'Remove-Item -Recurse .venv, "{cache_dir()}\wheels"; scripts\edgespec doctor'
    return f"rm -r .venv '{cache_dir()}/wheels'; ./scripts/edgespec doctor"


def _in_checkout() -> bool:
    """Return whether edgespec runs in the environment that its own scripts made."""
    return (Path(sys.prefix).parent / "scripts" / "edgespec").is_file()
