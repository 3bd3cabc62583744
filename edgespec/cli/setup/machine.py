"""Facts about the machine and the build of llama.cpp for `doctor`, and advice."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from edgespec import __version__

Facts = dict[str, Any]

DRIVER_WAIT_S = 10  # GPU drivers can take seconds to wake up
LIBRARIES = ("huggingface_hub", "llguidance", "numpy", "textual")
INSTRUCTIONS = {"AVX2": "avx2", "FMA": "fma", "F16C": "f16c", "AVX512": "avx512f", "AVX512_VNNI": "avx512_vnni",
                "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8"}  # fmt: skip
"""Instruction sets by llama.cpp's name, with Linux's name."""
REINSTALL = f"pip install --force-reinstall --no-cache-dir --no-deps llama-cpp-python=={version('llama-cpp-python')}"


class Gpu(NamedTuple):
    """A GPU, and the backend of llama.cpp that uses it."""

    name: str
    backend: str


class Advice(NamedTuple):
    """A problem, its cost, and the command that solves it, if there is one."""

    problem: str
    cost: str
    command: str = ""


def machine_facts() -> Facts:
    """Return what a bug report needs. It contains no tokens and no values of settings."""
    import psutil

    from edgespec.cli.options.files import config_files, working_folder
    from edgespec.files.paths import cache_dir, config_dir, data_dir, is_writable
    from edgespec.llama import library
    from edgespec.llama.rpc import has_rpc
    from edgespec.llama.trial import self_check

    folders = {"config": config_dir(), "cache": cache_dir(), "data": data_dir()}
    facts: Facts = {
        "edgespec": __version__,
        "llama_cpp_python": version("llama-cpp-python"),
        "libraries": {name: version(name) for name in LIBRARIES},
        "library": str(library.library_path()),
        "python": f"{platform.python_version()} {platform.python_implementation()}",
        "executable": sys.executable,
        "system": platform.platform(),
        "machine": platform.machine(),
        "build": _backends(library.build_flags()),
        "devices": [asdict(device) for device in library.devices()],
        "gpu_offload": library.supports_gpu(),
        "rpc": has_rpc(),
        "gpus": [gpu._asdict() for gpu in gpus_here()],
        "self_check": self_check(),
        "threads": library.default_threads(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count(),
        "memory_total_bytes": psutil.virtual_memory().total,
        "memory_available_bytes": library.available_memory_bytes(),
        "folders": {name: {"path": str(path), "writable": is_writable(path)} for name, path in folders.items()},
        "settings": {
            "files": [str(file) for file in config_files(working_folder())],
            "variables": sorted(name for name in os.environ if name.startswith("EDGESPEC_")),
        },
        "hub": _hub(),
        "terminal": {
            "term": os.environ.get("TERM", ""),
            "program": os.environ.get("TERM_PROGRAM", ""),
            "columns": shutil.get_terminal_size().columns,
            "lines": shutil.get_terminal_size().lines,
            "encoding": (getattr(sys.stdout, "encoding", None) or "").lower(),
        },
    }
    return facts | {"advice": [advice._asdict() for advice in (*_build_advice(facts), *_folder_advice(facts))]}


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


def _hub() -> Facts:
    """Return where models from the Hugging Face hub are, and whether more can be downloaded."""
    from edgespec.files.paths import free_in, is_writable
    from edgespec.models.hub.cache import hub_cache, is_offline, token_file
    from edgespec.models.hub.requests import shown

    token = next((name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(name, "").strip()), "")
    endpoint = os.environ.get("HF_ENDPOINT", "")
    with suppress(OSError):
        token = token or (str(token_file()) if token_file().stat().st_size else "")
    return {
        "cache": str(hub_cache()),
        "writable": is_writable(hub_cache()),
        "free_bytes": free_in(hub_cache()),
        "offline": is_offline(),
        "endpoint": endpoint and (shown(endpoint) or "HF_ENDPOINT, which is not a web address"),
        "token": token,  # its place, never its value
    }


def _backends(flags: str) -> dict[str, dict[str, str]]:
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


# --- advice -----------------------------------------------------------------------------------------------------------


def _build_advice(facts: Facts) -> Iterator[Advice]:
    if facts["self_check"] == "crashes":
        yield Advice("quantised models crash", "no such model can be loaded", _rebuild())
    if facts["self_check"] == "works without extra buffers":
        why = "quantised models crash with repacked weights; repacking is disabled (GCC 12 miscompiles AMX code)"
        yield Advice(why, "slower than necessary; rebuild with clang or GCC 13.3", _rebuild())
    gpus = [Gpu(**gpu) for gpu in facts["gpus"]]
    if gpus and not facts["gpu_offload"]:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
        cost = "everything runs on the CPU; docs/install.md describes GPU builds"
        yield Advice(f"this build does not use the GPU ({names})", cost, gpu_build(gpus[0]))
    has, flags = processor_flags(), facts["build"].get("CPU", {})
    if unused := [name for name, flag in INSTRUCTIONS.items() if flag in has and flags.get(name) != "1"]:
        cost = "prefill and draft verification are slower than necessary"
        if unused == ["AMX_INT8"]:  # the build leaves it out if the compiler is known to miscompile it
            cost += "; a build with it needs clang or GCC 13.3"
        names = ", ".join(unused)
        yield Advice(f"this build does not use {names}, which the processor supports", cost, _rebuild())


def _folder_advice(facts: Facts) -> Iterator[Advice]:
    folders = facts["folders"]
    for folder, name, cost, variable in (
        (folders["cache"], "cache folder", "measurements are not saved", "EDGESPEC_HOME"),
        (folders["data"], "data folder", "conversations and answers cannot be saved", "EDGESPEC_HOME"),
        (facts["hub"], "hub cache", "no model can be downloaded", "HF_HOME"),
    ):
        if not folder["writable"]:
            yield Advice(f"the {name} is not writable", f"{cost}; set {variable} to another place")


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
