"""What a bug report needs to know about a machine and a build: facts, and the lines that tell them."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec import __version__
from edgespec.figures import size_of

if TYPE_CHECKING:
    from edgespec.gpus import Gpu

Facts = dict[str, Any]

SELF_CHECK = {
    "works": "quantised models work",
    "works without extra buffers": (
        "quantised models crash with repacked weights, which are switched off: slower than need be "
        "(GCC 12 miscompiles AMX code; build llama-cpp-python again with clang or GCC 13)"
    ),
    "crashes": "quantised models crash: install llama-cpp-python again, built on this machine",
}
# What llama.cpp calls an instruction set, and Linux
INSTRUCTIONS = {"AVX2": "avx2", "FMA": "fma", "F16C": "f16c", "AVX512": "avx512f", "AVX512_VNNI": "avx512_vnni",
                "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8"}  # fmt: skip
_LABEL, _COLUMNS = 18, 80


def machine_facts() -> Facts:
    import psutil

    from edgespec.gpus import gpus_here
    from edgespec.llama import library
    from edgespec.llama.context import available_memory_bytes
    from edgespec.llama.trial import self_check
    from edgespec.paths import cache_dir, config_dir, data_dir

    build, gpus = _backends(library.build_flags()), gpus_here()
    return {
        "edgespec": __version__,
        "llama_cpp_python": version("llama-cpp-python"),
        "library": str(library.library_path()),
        "python": f"{platform.python_version()} {platform.python_implementation()}",
        "executable": sys.executable,
        "system": platform.platform(),
        "machine": platform.machine(),
        "build": build,
        "devices": [asdict(device) for device in library.devices()],
        "gpu_offload": library.supports_gpu(),
        "gpus": [asdict(gpu) for gpu in gpus],
        "advice": list(_advice(build, gpus, offload=library.supports_gpu())),
        "threads": library.default_threads(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else psutil.cpu_count(),
        "memory_total_bytes": psutil.virtual_memory().total,
        "memory_available_bytes": available_memory_bytes(),
        "self_check": self_check(),
        "folders": {
            name: {"path": str(folder), "writable": _is_writable(folder)}
            for name, folder in (("config", config_dir()), ("cache", cache_dir()), ("data", data_dir()))
        },
        "hub": _hub(),
        "terminal": _terminal(),
    }


def _hub() -> Facts:
    """Where models from the Hugging Face hub lie, and whether more of them can come."""
    from edgespec.models.cache import hub_cache

    cache = hub_cache()
    there = next(parent for parent in (cache, *cache.parents) if parent.exists())
    home = Path(os.environ.get("HF_HOME") or cache.parent)
    token_file = Path(os.environ.get("HF_TOKEN_PATH") or home / "token")
    with_token = next((name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(name)), "")
    return {
        "cache": str(cache),
        "writable": _is_writable(cache),
        "repositories": len(list(cache.glob("models--*"))),
        "free_bytes": shutil.disk_usage(there).free,
        "offline": os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"),
        "endpoint": os.environ.get("HF_ENDPOINT", ""),
        "token": with_token or (str(token_file) if token_file.is_file() else ""),  # where it is, never what
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
    }


def _advice(build: dict[str, dict[str, str]], gpus: list[Gpu], *, offload: bool) -> Iterator[str]:
    """What this build does not use of this machine, and how to get one that does."""
    from edgespec.gpus import how_to_use

    if gpus and not offload:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
        yield f"this build does not use the GPU ({names}); build llama.cpp again for it: {how_to_use(gpus[0])}"
    try:
        found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"), re.M)
    except OSError:
        return
    has = set(found[1].split()) if found else set[str]()
    unused = [name for name, flag in INSTRUCTIONS.items() if flag in has and build.get("CPU", {}).get(name) != "1"]
    if unused:
        yield (
            f"this build does not use {', '.join(unused)}, which the processor has: prompts and wide passes are slower "
            "than need be; build llama-cpp-python again on this machine"
        )


def _backends(flags: str) -> dict[str, dict[str, str]]:
    """`CPU : AVX = 1 | AVX2 = 1 | ` by backend and flag."""
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


def _is_writable(folder: Path) -> bool:
    """Whether files can be made in `folder`, or the folder itself where it is not there yet."""
    there = next((parent for parent in (folder, *folder.parents) if os.path.lexists(parent)), folder)
    return there.is_dir() and os.access(there, os.W_OK)


def machine_lines(facts: Facts) -> Iterator[str]:
    yield from row("edgespec", facts["edgespec"])
    yield from row("llama-cpp-python", facts["llama_cpp_python"])
    yield from row("library", shown(facts["library"]))
    yield from row("Python", facts["python"])
    yield from row("interpreter", shown(facts["executable"]))
    yield from row("system", f"{facts['system']}, {facts['machine']}")
    for name, flags in facts["build"].items():
        used = (flag if value == "1" else f"{flag}={value}" for flag, value in flags.items() if value != "0")
        yield from row(f"build {name}", " ".join(used))
    for device in facts["devices"]:
        memory = ""
        if "GPU" in device["kind"] and device["total_bytes"]:
            memory = f", {size_of(device['free_bytes'])} of {size_of(device['total_bytes'])} free"
        yield from row(device["kind"], f"{device['description']}{memory}")
    if not facts["gpu_offload"]:
        other = [name for name in facts["build"] if name != "CPU"]
        there = ", ".join(dict.fromkeys(gpu["name"] for gpu in facts["gpus"]))
        none = f"none in this build, though there is one: {there}" if there else "none in this build"
        yield from row("GPU", f"{', '.join(other)} in this build, but no device" if other else none)
    yield from row(
        "threads",
        f"{facts['threads']} by default, of {facts['logical_cores']} logical and "
        f"{facts['physical_cores'] or 'an unknown number of'} physical cores"
        + (
            f", {facts['usable_cores']} of them for this process"
            if facts["usable_cores"] != facts["logical_cores"]
            else ""
        ),
    )
    available, total = size_of(facts["memory_available_bytes"]), size_of(facts["memory_total_bytes"])
    yield from row("memory", f"{available} of {total} free")
    for name, folder in facts["folders"].items():
        yield from row(name, shown(folder["path"]) + ("" if folder["writable"] else " (cannot be written)"))
    yield from _hub_lines(facts["hub"])
    terminal = facts["terminal"]
    parts = [terminal["program"], terminal["term"] or "no TERM", f"{terminal['columns']} x {terminal['lines']}"]
    parts += [terminal["encoding"], terminal["colours"], "NO_COLOR" if terminal["no_color"] else ""]
    yield from row("terminal", ", ".join(filter(None, parts)))
    yield from row("self-check", SELF_CHECK[facts["self_check"]])
    for advice in facts["advice"]:
        yield from row("advice", advice)


def _hub_lines(hub: Facts) -> Iterator[str]:
    holds = "1 repository" if hub["repositories"] == 1 else f"{hub['repositories']} repositories"
    cannot = "" if hub["writable"] else " (cannot be written)"
    yield from row("hub cache", f"{shown(hub['cache'])}{cannot}, {holds}, {size_of(hub['free_bytes'])} free")
    state = "offline: nothing is fetched (HF_HUB_OFFLINE)" if hub["offline"] else "fetches what is asked for"
    token = f"a token in {shown(hub['token'])}" if hub["token"] else "no token"
    yield from row("hub", ", ".join(filter(None, [state, token, hub["endpoint"] and f"at {hub['endpoint']}"])))


# --- layout -----------------------------------------------------------------------------------------------------------


def row(label: str, text: str) -> list[str]:
    """A label and its text beside it, wrapped to the usual width; paths stay whole."""
    return textwrap.wrap(
        text,
        _COLUMNS,
        initial_indent=f"{label:<{_LABEL}}",
        subsequent_indent=" " * _LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    )


def shown(path: str) -> str:
    """A path without the user's name, which need not stand in a bug report."""
    try:
        return str(Path("~") / Path(path).relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return path
