"""A machine and a build, for a bug report, and what could be better."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgespec import __version__
from edgespec.text.figures import size_of

Facts = dict[str, Any]
Build = dict[str, dict[str, str]]  # flags and their values, by backend

LITTLE_BYTES = 2e9  # a 4-bit model of 3B parameters
LIBRARIES = ("huggingface_hub", "llguidance", "numpy", "textual")
# Names of instruction sets in llama.cpp, and in Linux
INSTRUCTIONS = {"AVX2": "avx2", "FMA": "fma", "F16C": "f16c", "AVX512": "avx512f", "AVX512_VNNI": "avx512_vnni",
                "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Advice:
    """What could be better, what that costs, and the command that fixes it, if there is one."""

    problem: str
    cost: str
    command: str = ""


def machine_facts() -> Facts:
    import psutil

    from edgespec.cli.setup.gpus import gpus_here
    from edgespec.llama import library
    from edgespec.llama.rpc import has_rpc
    from edgespec.llama.trial import self_check

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
        "gpus": [asdict(gpu) for gpu in gpus_here()],
        "self_check": self_check(),
        "threads": library.default_threads(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count(),
        "memory_total_bytes": psutil.virtual_memory().total,
        "memory_available_bytes": library.available_memory_bytes(),
        "folders": _folders(),
        "settings": _settings(),
        "hub": _hub(),
        "terminal": _terminal(),
    }
    return facts | {"advice": [asdict(advice) for advice in (*_of_build(facts), *_of_folders(facts))]}


def _folders() -> Facts:
    """The program's folders."""
    from edgespec.files.paths import cache_dir, config_dir, data_dir, is_writable

    folders = {"config": config_dir(), "cache": cache_dir(), "data": data_dir()}
    return {name: {"path": str(folder), "writable": is_writable(folder)} for name, folder in folders.items()}


def _settings() -> Facts:
    """Where settings come from; their values may be private."""
    from edgespec.cli.options.files import config_files, working_folder

    variables = sorted(name for name in os.environ if name.startswith("EDGESPEC_"))
    return {"files": [str(file) for file in config_files(working_folder()) if file.is_file()], "variables": variables}


def _hub() -> Facts:
    """Where models from the Hugging Face hub are, and whether more can be downloaded."""
    from edgespec.files.paths import free_in, is_writable
    from edgespec.models.hub.cache import cached_repositories, hub_cache, is_offline, token_file
    from edgespec.models.hub.removal import unfinished
    from edgespec.models.hub.requests import shown

    token = next((name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(name, "").strip()), "")
    endpoint = os.environ.get("HF_ENDPOINT", "")
    with suppress(OSError):
        token = token or (str(token_file()) if token_file().stat().st_size else "")
    return {
        "cache": str(hub_cache()),
        "is_there": os.path.isdir(hub_cache()),  # noqa: PTH112 - Path.is_dir raises for what may not be looked into
        "writable": is_writable(hub_cache()),
        "repositories": len(cached_repositories()),
        "unfinished": len(unfinished()),
        "free_bytes": free_in(hub_cache()),
        "offline": is_offline(),
        "offline_by": next((name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(name)), ""),
        "endpoint": endpoint and (shown(endpoint) or "HF_ENDPOINT, which is not a web address"),
        "token": token,  # where it is, never its value
    }


def _terminal() -> Facts:
    return {
        "term": os.environ.get("TERM", ""),
        "program": os.environ.get("TERM_PROGRAM", ""),
        "columns": shutil.get_terminal_size().columns,
        "lines": shutil.get_terminal_size().lines,
        "encoding": (getattr(sys.stdout, "encoding", None) or "").lower(),
        "colours": os.environ.get("COLORTERM", ""),
        "no_color": bool(os.environ.get("NO_COLOR")),
        "stdout_is_terminal": sys.stdout is not None and sys.stdout.isatty(),
    }


# --- what could be better ---------------------------------------------------------------------------------------------


def _of_build(facts: Facts) -> Iterator[Advice]:
    from edgespec.cli.setup.gpus import Gpu, how_to_use

    gpus = [Gpu(**gpu) for gpu in facts["gpus"]]
    if facts["self_check"] == "crashes":
        yield Advice("quantised models crash", "no such model can be loaded", _rebuild())
    if facts["self_check"] == "works without extra buffers":
        why = "quantised models crash with repacked weights; repacking is disabled (GCC 12 miscompiles AMX code)"
        yield Advice(why, "slower than necessary; rebuild with clang or GCC 13.3", _rebuild())
    if gpus and not facts["gpu_offload"]:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
        cost = "everything runs on the CPU; docs/install.md describes GPU builds"
        yield Advice(f"this build does not use the GPU ({names})", cost, how_to_use(gpus[0]))
    if unused := _unused_instructions(facts["build"].get("CPU", {})):
        names = ", ".join(unused)
        cost = "prefill and draft verification are slower than necessary"
        if unused == ["AMX_INT8"]:  # left out if the compiler is known to miscompile it
            cost += "; a build with it needs clang or GCC 13.3"
        yield Advice(f"this build does not use {names}, which the processor supports", cost, _rebuild())


def _of_folders(facts: Facts) -> Iterator[Advice]:
    costs = {
        "cache": "measurements are not saved, and no files can be created there",
        "data": "conversations and answers cannot be saved",
    }
    for name, cost in costs.items():
        if not facts["folders"][name]["writable"]:
            yield Advice(f"the {name} folder is not writable", f"{cost}; set EDGESPEC_HOME to another place")
    if not facts["hub"]["writable"]:
        yield Advice("the hub cache is not writable", "no model can be downloaded; set HF_HOME to another place")
    elif facts["hub"]["free_bytes"] < LITTLE_BYTES:
        free = size_of(facts["hub"]["free_bytes"])
        cost = (
            "most models are larger; free some space ('edgespec rm NAME' deletes a model), or set HF_HOME to another "
            "disk"
        )
        yield Advice(f"only {free} are free on the disk of the hub cache", cost, "edgespec ls --sort size")


def _unused_instructions(flags: dict[str, str]) -> list[str]:
    """Return the instruction sets of the processor that this build does not use."""
    has = processor_flags()
    return [name for name, flag in INSTRUCTIONS.items() if flag in has and flags.get(name) != "1"]


def processor_flags() -> set[str]:
    """Return Linux's names of what the processor supports; empty on other systems."""
    try:
        cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    found = re.search(r"^flags\s*:(.*)$", cpu, re.MULTILINE)
    return set(found[1].split()) if found else set()


def _rebuild() -> str:
    """The command that compiles llama.cpp again, for this machine."""
    from edgespec.cli.setup.gpus import REINSTALL, in_checkout
    from edgespec.files.paths import cache_dir

    if not in_checkout():
        return REINSTALL
    if os.name == "nt":
        return rf'Remove-Item -Recurse .venv, "{cache_dir()}\wheels"; scripts\edgespec doctor'
    return f"rm -r .venv '{cache_dir()}/wheels'; ./scripts/edgespec doctor"


# --- how it is found --------------------------------------------------------------------------------------------------


def _backends(flags: str) -> Build:
    """`CPU : AVX = 1 | AVX2 = 1 | ` by backend and flag."""
    backends: Build = {}
    backend: dict[str, str] = {}
    for part in flags.split("|"):
        name, found, flag = part.rpartition(" : ")
        if found:
            backend = backends.setdefault(name.strip(), {})
        key, _, value = flag.partition("=")
        if key.strip():
            backend[key.strip()] = value.strip()
    return backends
